// Collectives as copies and sums. Ranks are served one after the other on one stream, so no step
// sees a half-written buffer of another rank.
#include "backends/ranks/communicator.h"

#include <string_view>

#include "core/error.h"

namespace attnbench {
namespace {

class OpsCommunicator final : public Communicator {
 public:
  OpsCommunicator(int world_size, Ops& ops)
      : ops_(ops), world_size_(world_size), num_ranks_(static_cast<std::size_t>(world_size)) {}

  int world_size() const override { return world_size_; }
  int num_local_ranks() const override { return world_size_; }

  void all_gather(SendBuffers send, ReceiveBuffers receive, std::size_t size_bytes) override {
    check_buffers("all_gather", send, receive);
    for (void* destination : receive) {
      for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
        copy_bytes(part_of(destination, rank * size_bytes), send[rank], size_bytes);
      }
    }
  }

  void all_to_all(SendBuffers send, ReceiveBuffers receive, std::size_t size_bytes) override {
    check_buffers("all_to_all", send, receive);
    for (std::size_t to = 0; to < num_ranks_; ++to) {
      for (std::size_t from = 0; from < num_ranks_; ++from) {
        copy_bytes(part_of(receive[to], from * size_bytes), part_of(send[from], to * size_bytes),
                   size_bytes);
      }
    }
  }

  void reduce_scatter_sum(SendBuffers send, ReceiveBuffers receive, Dtype dtype,
                          std::int64_t count) override {
    check_buffers("reduce_scatter_sum", send, receive);
    for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
      sum(send, static_cast<std::int64_t>(rank) * count, count, dtype, receive[rank]);
    }
  }

  void all_reduce_sum(SendBuffers send, ReceiveBuffers receive, Dtype dtype,
                      std::int64_t count) override {
    check_buffers("all_reduce_sum", send, receive);
    sum(send, 0, count, dtype, receive[0]);
    const std::size_t size_bytes = static_cast<std::size_t>(count) * dtype_size(dtype);
    // The sum is made once and copied: every rank of a real all-reduce has the same bytes too,
    // whatever the order of its additions was.
    for (void* destination : receive.subspan(1)) copy_bytes(destination, receive[0], size_bytes);
  }

 private:
  static const void* part_of(const void* base, std::size_t offset) {
    return static_cast<const char*>(base) + offset;
  }
  static void* part_of(void* base, std::size_t offset) { return static_cast<char*>(base) + offset; }

  void copy_bytes(void* destination, const void* source, std::size_t size_bytes) {
    if (size_bytes == 0) return;
    attn::CopyParams p{};
    p.source_element = p.output_element = attn::Element::kU8;
    p.source = source;
    p.output = destination;
    p.extents[0] = p.extents[1] = p.extents[2] = 1;
    p.width = static_cast<attn::i64>(size_bytes);
    ops_.copy(p);
  }

  /// output [count] = sums of elements from `offset` on.
  void sum(SendBuffers send, std::int64_t offset, std::int64_t count, Dtype dtype, void* output) {
    std::vector<const void*> parts;
    for (const void* part : send) {
      parts.push_back(part_of(part, static_cast<std::size_t>(offset) * dtype_size(dtype)));
    }
    sum_over_ranks(ops_, parts, dtype, count, output);
  }

  void check_buffers(std::string_view operation, SendBuffers send, ReceiveBuffers receive) const {
    if (send.size() == num_ranks_ && receive.size() == num_ranks_) return;
    fail(ErrorKind::kShape, "{}: expected {} send and receive buffers, got {} and {}", operation,
         num_ranks_, send.size(), receive.size());
  }

  Ops& ops_;
  int world_size_;
  std::size_t num_ranks_;
};

}  // namespace

std::unique_ptr<Communicator> make_ops_communicator(int world_size, Ops& ops) {
  if (world_size < 1) fail(ErrorKind::kConfig, "world size must be at least 1, got {}", world_size);
  return std::make_unique<OpsCommunicator>(world_size, ops);
}

void sum_over_ranks(Ops& ops, std::span<const void* const> parts, Dtype dtype, std::int64_t count,
                    void* output) {
  if (dtype != Dtype::kF32 && dtype != Dtype::kF16 && dtype != Dtype::kBF16) {
    fail(ErrorKind::kDtype, "sum over ranks: expected float32, float16 or bfloat16, got {}",
         dtype_name(dtype));
  }
  constexpr std::size_t kMost = attn::kMostSummedRanks;
  if (parts.size() > kMost && dtype != Dtype::kF32) {
    fail(ErrorKind::kCapacity, "sum over ranks: expected at most {} parts of {}, got {}", kMost,
         dtype_name(dtype), parts.size());
  }
  attn::SumRanksParams p{};
  p.element = static_cast<attn::Element>(dtype);
  p.output = output;
  p.count = count;
  // The sum so far is the first part of the next ones, which keeps the order of all additions.
  for (std::size_t next = 0; next < parts.size();) {
    std::size_t taken = 0;
    if (next > 0) p.parts[taken++] = output;
    while (taken < kMost && next < parts.size()) p.parts[taken++] = parts[next++];
    p.world_size = static_cast<int>(taken);
    ops.sum_ranks(p);
  }
}

}  // namespace attnbench
