// Bandwidth of the cache and merge kernels on the first CUDA device: bytes read and written over
// the median of event-timed launches, with a cold second-level cache.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>

#include "gpu/stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench {
namespace {

constexpr int kLaunches = 20;
constexpr int kWarmUps = 5;
constexpr std::size_t kFlushBytes = std::size_t{256} << 20;

class Bench {
 public:
  explicit Bench(CudaOps& ops) : ops_(ops), flush_(ops.allocate(kFlushBytes, "flush")) {}

  /// Device memory with normal values of the element, so that no codes are all alike.
  void* normals(std::size_t count, attn::Element element) {
    std::vector<std::uint16_t> halves(count);
    std::mt19937 random(1);
    // Sixteen-bit floats around 1 with random signs and mantissas, in either format.
    for (std::uint16_t& half : halves) half = static_cast<std::uint16_t>(random() & 0xBFFFu);
    return upload(halves.data(), count * static_cast<std::size_t>(cuda::size_of_element(element)));
  }
  void* upload(const void* data, std::size_t size_bytes) {
    buffers_.push_back(ops_.allocate(size_bytes, "tensor"));
    ops_.upload(*buffers_.back(), data, size_bytes);
    return buffers_.back()->data();
  }
  void* room(std::size_t size_bytes) {
    buffers_.push_back(ops_.allocate(size_bytes, "room"));
    return buffers_.back()->data();
  }

  void time(const std::string& name, double bytes, const std::function<void()>& launch) {
    std::vector<double> times_us;
    for (int i = 0; i < kWarmUps + kLaunches; ++i) {
      ops_.poison(*flush_);
      Event first(ops_.runtime());
      Event last(ops_.runtime());
      first.record(ops_.stream());
      launch();
      last.record(ops_.stream());
      const double time_us = Event::elapsed_us(first, last);
      if (i >= kWarmUps) times_us.push_back(time_us);
    }
    std::sort(times_us.begin(), times_us.end());
    const double median_us = times_us[times_us.size() / 2];
    fmt::print("{:<44} {:>9.1f} us  {:>7.0f} GB/s\n", name, median_us, bytes / median_us * 1e-3);
    std::fflush(stdout);
    ops_.synchronize();
  }

 private:
  CudaOps& ops_;
  std::unique_ptr<Buffer> flush_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

/// 65536 tokens, 8 heads of 128, pages of 16 in random order.
void time_cache_writes(CudaOps& ops) {
  constexpr std::int64_t kTokens = 65536;
  constexpr int kHeads = 8;
  constexpr int kSize = 128;
  constexpr int kBlockSize = 16;
  constexpr std::int64_t kElements = kTokens * kHeads * kSize;
  Bench bench(ops);
  std::vector<attn::i64> blocks(kTokens / kBlockSize);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(2));
  std::vector<attn::i64> slots;
  for (std::size_t t = 0; t < kTokens; ++t) {
    slots.push_back(blocks[t / kBlockSize] * kBlockSize + static_cast<attn::i64>(t % kBlockSize));
  }
  attn::CacheWriteParams p{};
  p.source_element = attn::Element::kBF16;
  p.key = bench.normals(kElements, p.source_element);
  p.value = bench.normals(kElements, p.source_element);
  p.key_token_stride = p.value_token_stride = kHeads * kSize;
  p.slot_mapping =
      static_cast<const attn::i64*>(bench.upload(slots.data(), slots.size() * sizeof(attn::i64)));
  p.num_slots = kTokens;
  p.block_size = kBlockSize;
  p.num_kv_heads = kHeads;
  p.head_size = p.v_head_size = kSize;
  const std::vector<float> scales(kHeads, 0.5f);
  p.k_scale = p.v_scale =
      static_cast<const float*>(bench.upload(scales.data(), scales.size() * sizeof(float)));
  struct Format {
    const char* name;
    attn::Element element;
    int quantise;
  };
  for (const Format& format :
       {Format{"reshape_and_cache bf16", attn::Element::kBF16, 0},
        Format{"reshape_and_cache fp8", attn::Element::kE4M3, 1},
        Format{"reshape_and_cache fp8_per_token_head", attn::Element::kE4M3, 2},
        Format{"reshape_and_cache int8_per_token_head", attn::Element::kI8, 2}}) {
    p.cache_element = format.element;
    p.quantise = format.quantise;
    const int cell = format.quantise == 2 ? kSize + 4 : kSize;
    const int element_bytes = cuda::size_of_element(format.element);
    const std::int64_t plane_bytes = kTokens * kHeads * cell * element_bytes;
    auto* cache = static_cast<char*>(bench.room(static_cast<std::size_t>(2 * plane_bytes)));
    p.key_cache = cache;
    p.value_cache = cache + plane_bytes;
    p.head_stride = cell;
    p.slot_stride = kHeads * cell;
    p.block_stride = kBlockSize * kHeads * cell;
    p.key_scales = static_cast<float*>(p.key_cache) + kSize / 4;
    p.value_scales = static_cast<float*>(p.value_cache) + kSize / 4;
    p.scale_head_stride = p.head_stride / 4;
    p.scale_slot_stride = p.slot_stride / 4;
    p.scale_block_stride = p.block_stride / 4;
    const double bytes = static_cast<double>(2 * (2 * kElements + plane_bytes) + 8 * kTokens);
    bench.time(format.name, bytes, [&] { ops.write_cache(p); });
  }
}

/// 16384 and 65536 tokens, 32 heads of 128.
void time_merges(CudaOps& ops) {
  constexpr int kHeads = 32;
  constexpr int kSize = 128;
  for (const std::int64_t tokens : {std::int64_t{16384}, std::int64_t{65536}}) {
    Bench bench(ops);
    const std::int64_t rows = tokens * kHeads;
    const auto elements = static_cast<std::size_t>(rows * kSize);
    attn::MergeParams p{};
    p.element = p.output_element = attn::Element::kBF16;
    p.prefix_output = bench.normals(elements, p.element);
    p.suffix_output = bench.normals(elements, p.element);
    std::vector<float> lse(static_cast<std::size_t>(rows));
    std::mt19937 random(3);
    for (float& value : lse) value = static_cast<float>(random() % 1000) * 1e-2f;
    p.prefix_lse = static_cast<const float*>(bench.upload(lse.data(), lse.size() * sizeof(float)));
    std::shuffle(lse.begin(), lse.end(), random);
    p.suffix_lse = static_cast<const float*>(bench.upload(lse.data(), lse.size() * sizeof(float)));
    p.output = bench.room(elements * 2);
    p.output_lse = static_cast<float*>(bench.room(lse.size() * sizeof(float)));
    p.output_lse_stride = tokens;
    p.num_tokens = p.num_merged = tokens;
    p.num_heads = kHeads;
    p.head_size = kSize;
    p.prefix_head_stride = kSize;
    const auto bytes = static_cast<double>(6 * elements + 12 * lse.size());
    bench.time(fmt::format("merge_attn_states bf16, {} tokens", tokens), bytes,
               [&] { ops.merge(p); });
    p.output_element = attn::Element::kE4M3;
    p.output_scale = 0.5f;
    bench.time(fmt::format("merge_attn_states to fp8, {} tokens", tokens),
               bytes - static_cast<double>(elements), [&] { ops.merge(p); });
  }
}

int run(const std::string& cache_dir) {
  const std::unique_ptr<CudaOps> ops = make_cuda_ops(0, cache_dir);
  const DeviceInfo& device = ops->runtime().device();
  fmt::print("{}, {} multiprocessors\n", device.name, device.num_sms);
  time_cache_writes(*ops);
  time_merges(*ops);
  for (const KernelInfo& kernel : ops->take_kernels()) {
    fmt::print("{:<52} {:>3} registers, {} bytes spilled\n", kernel.name, kernel.registers,
               kernel.spill_bytes);
  }
  return 0;
}

}  // namespace
}  // namespace attnbench

int main(int argc, char** argv) {
  try {
    return attnbench::run(argc > 1 ? argv[1] : "");
  } catch (const attnbench::Error& error) {
    fmt::print(stderr, "{}\n", error.full_message());
    return 4;
  }
}
