#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "comm/communicator.h"
#include "core/error.h"

namespace attnbench {
namespace {

/// Elements that are summed at a time, so that the f32 sums stay in the L1 cache.
constexpr std::int64_t kSumTile = 1024;

const std::byte* part_of(const void* buffer, std::size_t index, std::size_t size_bytes) {
  return static_cast<const std::byte*>(buffer) + index * size_bytes;
}
std::byte* part_of(void* buffer, std::size_t index, std::size_t size_bytes) {
  return static_cast<std::byte*>(buffer) + index * size_bytes;
}

void copy_bytes(void* destination, const void* source, std::size_t size_bytes) {
  if (size_bytes > 0) std::memcpy(destination, source, size_bytes);
}

/// output[i] = sum over the ranks of send[rank][offset + i]. The first term is taken as it is, so
/// that one rank alone gets back its bits, -0 included.
void sum_elements(SendBuffers send, std::int64_t offset, std::int64_t count, Dtype dtype,
                  void* output) {
  std::array<float, kSumTile> sum;
  std::array<float, kSumTile> term;
  const std::size_t size = dtype_size(dtype);
  for (std::int64_t begin = 0; begin < count; begin += kSumTile) {
    const std::int64_t n = std::min(kSumTile, count - begin);
    const auto at = static_cast<std::size_t>(offset + begin);
    load_floats(dtype, part_of(send[0], at, size), n, sum.data());
    for (std::size_t rank = 1; rank < send.size(); ++rank) {
      load_floats(dtype, part_of(send[rank], at, size), n, term.data());
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) sum[i] += term[i];
    }
    store_floats(dtype, sum.data(), n, part_of(output, static_cast<std::size_t>(begin), size));
  }
}

void check_summable(Dtype dtype) {
  if (dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16) return;
  fail(ErrorKind::kDtype, "sum over ranks: expected float32, float16 or bfloat16, got {}",
       dtype_name(dtype));
}

class SimulatedCommunicator : public Communicator {
 public:
  explicit SimulatedCommunicator(int world_size)
      : world_size_(world_size), num_ranks_(static_cast<std::size_t>(world_size)) {}

  int world_size() const override { return world_size_; }
  int num_local_ranks() const override { return world_size_; }

  void all_gather(SendBuffers send, ReceiveBuffers receive, std::size_t size_bytes) override {
    check_buffers("all_gather", send, receive);
    for (void* destination : receive) {
      for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
        copy_bytes(part_of(destination, rank, size_bytes), send[rank], size_bytes);
      }
    }
  }

  void all_to_all(SendBuffers send, ReceiveBuffers receive, std::size_t size_bytes) override {
    check_buffers("all_to_all", send, receive);
    for (std::size_t to = 0; to < num_ranks_; ++to) {
      for (std::size_t from = 0; from < num_ranks_; ++from) {
        copy_bytes(part_of(receive[to], from, size_bytes), part_of(send[from], to, size_bytes),
                   size_bytes);
      }
    }
  }

  void reduce_scatter_sum(SendBuffers send, ReceiveBuffers receive, Dtype dtype,
                          std::int64_t count) override {
    check_buffers("reduce_scatter_sum", send, receive);
    check_summable(dtype);
    for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
      sum_elements(send, static_cast<std::int64_t>(rank) * count, count, dtype, receive[rank]);
    }
  }

  void all_reduce_sum(SendBuffers send, ReceiveBuffers receive, Dtype dtype,
                      std::int64_t count) override {
    check_buffers("all_reduce_sum", send, receive);
    check_summable(dtype);
    sum_elements(send, 0, count, dtype, receive[0]);
    const std::size_t size_bytes = static_cast<std::size_t>(count) * dtype_size(dtype);
    for (void* destination : receive.subspan(1)) copy_bytes(destination, receive[0], size_bytes);
  }

 private:
  void check_buffers(std::string_view operation, SendBuffers send, ReceiveBuffers receive) const {
    if (send.size() == num_ranks_ && receive.size() == num_ranks_) return;
    fail(ErrorKind::kShape, "{}: expected {} send and receive buffers, got {} and {}", operation,
         num_ranks_, send.size(), receive.size());
  }

  int world_size_;
  std::size_t num_ranks_;
};

}  // namespace

std::unique_ptr<Communicator> make_simulated_communicator(int world_size) {
  if (world_size < 1) {
    fail(ErrorKind::kConfig, "world size must be >= 1, got {}", world_size);
  }
  return std::make_unique<SimulatedCommunicator>(world_size);
}

}  // namespace attnbench
