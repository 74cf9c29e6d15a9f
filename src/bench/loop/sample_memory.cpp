// The CPU counts through the pieces that threads of a kernel take; both call the same functions.
#include "bench/loop/sample_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>

#include "core/system/page_swap.h"
#include "core/tensor.h"
#include "kernels/common/redraw.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/sample/sample_kernels.h"

namespace attnbench {
namespace {

template <int kElementBytes, bool kVector>
void redraw_all(const attn::RedrawParams& params) {
  constexpr int kElements = attn::redraw_piece_elements<kElementBytes, kVector>();
  const attn::i64 pieces = (params.num_rows * params.row_elements + kElements - 1) / kElements;
  for (attn::i64 piece = 0; piece < pieces; ++piece) {
    attn::redraw_piece<kElementBytes, kVector>(params, piece);
  }
}

template <int kElementBytes>
void redraw_by(const attn::RedrawParams& params) {
  const auto places = reinterpret_cast<std::uintptr_t>(params.source) |
                      reinterpret_cast<std::uintptr_t>(params.target);
  const bool vectors = places % 16 == 0 && params.row_elements * kElementBytes % 16 == 0;
  if (vectors) return redraw_all<kElementBytes, true>(params);
  redraw_all<kElementBytes, false>(params);
}

class CpuSampleMemory final : public SampleMemory {
 public:
  void* allocate(std::size_t size_bytes) override {
    return blocks_.emplace_back(std::max<std::size_t>(size_bytes, 1)).data();
  }
  void fill(void* memory, unsigned char byte, std::size_t size_bytes) override {
    std::memset(memory, byte, size_bytes);
  }
  void copy(void* target, const void* source, std::size_t size_bytes) override {
    std::memcpy(target, source, size_bytes);
  }
  void table(const std::vector<attn::BlockMove>& moves) override { moves_ = moves; }
  void move(std::size_t first, std::size_t count) override {
    for (std::size_t i = first; i < first + count; ++i) {
      std::memcpy(moves_[i].target, moves_[i].source, static_cast<std::size_t>(moves_[i].bytes));
    }
  }
  void redraw(int element_bytes, const attn::RedrawParams& params) override {
    const auto bytes = static_cast<std::size_t>(params.num_rows * params.row_elements) *
                       static_cast<std::size_t>(element_bytes);
    if (!PageSwap::is_possible(params.target, bytes)) return draw(element_bytes, params);
    attn::RedrawParams unseen = params;
    unseen.target = drawn_.emplace_back(params.target, bytes).room();
    draw(element_bytes, unseen);
  }
  void show() override {
    for (PageSwap& swap : drawn_) swap.show();
    drawn_.clear();
  }
  void clear_sums() override { sums_ = {}; }
  void digest(attn::DigestParams params) override {
    for (attn::i64 piece = 0; piece * 16 < params.bytes; ++piece) {
      attn::digest_piece(params, piece, sums_);
    }
  }
  attn::SampleDigest sums() override { return sums_; }

 private:
  static void draw(int element_bytes, const attn::RedrawParams& params) {
    if (element_bytes == 1) return redraw_by<1>(params);
    if (element_bytes == 2) return redraw_by<2>(params);
    redraw_by<4>(params);
  }

  std::vector<ZeroBytes> blocks_;
  std::deque<PageSwap> drawn_;  // that are not shown yet
  std::vector<attn::BlockMove> moves_;
  attn::SampleDigest sums_{};
};

class CudaSampleMemory final : public SampleMemory {
 public:
  explicit CudaSampleMemory(CudaOps& ops)
      : ops_(ops),
        runtime_(ops.runtime()),
        sums_(static_cast<attn::SampleDigest*>(allocate(sizeof(attn::SampleDigest)))) {}
  ~CudaSampleMemory() override {
    for (void* memory : owned_) runtime_.release_memory(memory);
    if (table_ != nullptr) runtime_.release_memory(table_);
  }
  CudaSampleMemory(const CudaSampleMemory&) = delete;
  CudaSampleMemory& operator=(const CudaSampleMemory&) = delete;

  void* allocate(std::size_t size_bytes) override {
    return owned_.emplace_back(runtime_.allocate(std::max<std::size_t>(size_bytes, 1)));
  }
  void fill(void* memory, unsigned char byte, std::size_t size_bytes) override {
    runtime_.fill(memory, byte, size_bytes, stream());
  }
  void copy(void* target, const void* source, std::size_t size_bytes) override {
    runtime_.copy_on_device(target, source, size_bytes, stream());
  }
  void table(const std::vector<attn::BlockMove>& moves) override {
    moves_ = moves;
    if (moves.empty()) return;
    if (moves.size() > room_) {
      if (table_ != nullptr) runtime_.release_memory(table_);
      table_ = nullptr;
      room_ = 0;
      table_ = static_cast<attn::BlockMove*>(runtime_.allocate(moves.size() * sizeof moves[0]));
      room_ = moves.size();
    }
    runtime_.copy_to_device(table_, moves.data(), moves.size() * sizeof moves[0], stream());
  }
  void move(std::size_t first, std::size_t count) override {
    if (count == 0) return;
    attn::i64 longest = 0;
    for (std::size_t i = first; i < first + count; ++i) {
      longest = std::max(longest, moves_[i].bytes);
    }
    cuda::launch_moves(ops_.launcher(), table_ + first, static_cast<std::int64_t>(count), longest);
  }
  void redraw(int element_bytes, const attn::RedrawParams& params) override {
    cuda::launch_redraw(ops_.launcher(), element_bytes, params);
  }
  /// The order of the stream is what keeps others away.
  void show() override {}
  void clear_sums() override { fill(sums_, 0, sizeof *sums_); }
  void digest(attn::DigestParams params) override {
    params.sums = sums_;
    cuda::launch_digest(ops_.launcher(), params);
  }
  attn::SampleDigest sums() override {
    attn::SampleDigest sums{};
    runtime_.copy_to_host(&sums, sums_, sizeof sums, stream());
    return sums;
  }

 private:
  StreamHandle stream() const { return ops_.stream().handle(); }

  CudaOps& ops_;
  Runtime& runtime_;
  std::vector<void*> owned_;
  attn::SampleDigest* sums_;
  std::vector<attn::BlockMove> moves_;
  attn::BlockMove* table_ = nullptr;
  std::size_t room_ = 0;  // moves that the table has memory for
};

}  // namespace

std::unique_ptr<SampleMemory> make_cpu_sample_memory() {
  return std::make_unique<CpuSampleMemory>();
}

std::unique_ptr<SampleMemory> make_cuda_sample_memory(CudaOps& ops) {
  return std::make_unique<CudaSampleMemory>(ops);
}

}  // namespace attnbench
