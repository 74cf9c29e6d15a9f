// Kernels alone on the first CUDA device: bandwidth of cache writes and merges (bytes read and
// written), of decode attention (keys and values read), and arithmetic of prefill attention, over
// the median of event-timed launches with a cold second-level cache.
// Usage: bench_cuda_ops [cache folder] [regex of names]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <regex>

#include "core/tensor.h"
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
  Bench(CudaOps& ops, const std::string& filter)
      : ops_(ops), filter_(filter), flush_(ops.allocate(kFlushBytes, "flush")) {}

  bool takes(const std::string& name) const { return std::regex_search(name, filter_); }

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

  /// Device memory filled with a pattern again and again.
  void* repeated(std::size_t size_bytes, const std::vector<std::uint8_t>& pattern) {
    auto* const first = static_cast<std::byte*>(room(size_bytes));
    Buffer& buffer = *buffers_.back();
    std::vector<std::uint8_t> all(size_bytes);
    for (std::size_t i = 0; i < size_bytes; i += pattern.size()) {
      std::copy_n(pattern.begin(), std::min(pattern.size(), size_bytes - i),
                  all.begin() + static_cast<std::ptrdiff_t>(i));
    }
    ops_.upload(buffer, all.data(), size_bytes);
    return first;
  }

  /// `amount` of bytes, or of operations, and what a billion of them a second is called.
  void time(const std::string& name, double amount, const std::function<void()>& launch,
            const char* unit = "GB/s") {
    if (!takes(name)) return;
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
    fmt::print("{:<44} {:>9.1f} us  {:>7.0f} {}\n", name, median_us, amount / median_us * 1e-3,
               unit);
    std::fflush(stdout);
    ops_.synchronize();
  }

 private:
  CudaOps& ops_;
  std::regex filter_;
  std::unique_ptr<Buffer> flush_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

/// 65536 tokens, 8 heads of 128, pages of 16 in random order.
void time_cache_writes(CudaOps& ops, const std::string& filter) {
  constexpr std::int64_t kTokens = 65536;
  constexpr int kHeads = 8;
  constexpr int kSize = 128;
  constexpr int kBlockSize = 16;
  constexpr std::int64_t kElements = kTokens * kHeads * kSize;
  Bench bench(ops, filter);
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
void time_merges(CudaOps& ops, const std::string& filter) {
  constexpr int kHeads = 32;
  constexpr int kSize = 128;
  for (const std::int64_t tokens : {std::int64_t{16384}, std::int64_t{65536}}) {
    Bench bench(ops, filter);
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

/// Paged keys and values of one format.
struct CacheFormat {
  const char* name;
  attn::Element query;
  attn::Element cache;
  bool token_head_scales;
  bool rounded;   // semantics §4.4 mode 1
  bool segments;  // Triton's way of splitting
};

/// Normal numbers of the format, a power of two of cells with their scales.
std::vector<std::uint8_t> cells_of(const CacheFormat& format, int width) {
  constexpr int kCells = 4096;
  const auto size = static_cast<std::size_t>(cuda::size_of_element(format.cache));
  const std::size_t cell = static_cast<std::size_t>(width) * size;
  const std::size_t stride = cell + (format.token_head_scales ? 4 : 0);
  std::vector<std::uint8_t> bytes(kCells * stride);
  Tensor numbers(static_cast<Dtype>(format.cache), {kCells, width});
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const float spread = format.cache == attn::Element::kI8 ? 30.0f : 1.0f;
  for (std::int64_t i = 0; i < numbers.num_elements(); ++i) numbers.set(i, spread * normal(random));
  for (std::size_t i = 0; i < kCells; ++i) {
    std::memcpy(bytes.data() + i * stride, numbers.bytes() + i * cell, cell);
    const float scale = 1.0f / spread;
    if (format.token_head_scales) std::memcpy(bytes.data() + i * stride + cell, &scale, 4);
  }
  return bytes;
}

/// 32 heads on 8 of 128, pages of 16 in random order.
void time_decode(CudaOps& ops, const std::string& filter, const CacheFormat& format, int batch,
                 int seq_len, int splits) {
  constexpr int kHeads = 32;
  constexpr int kKvHeads = 8;
  constexpr int kSize = 128;
  constexpr int kBlockSize = 16;
  const std::string name = fmt::format("decode {} B{} S{}", format.name, batch, seq_len);
  Bench bench(ops, filter);
  if (!bench.takes(name)) return;
  const int cell = kSize + (format.token_head_scales ? 4 : 0);
  const int bytes = cuda::size_of_element(format.cache);
  const std::int64_t tokens = std::int64_t{batch} * seq_len;
  const std::int64_t plane = std::int64_t{kBlockSize} * kKvHeads * cell;
  attn::AttendParams p{};
  p.query_element = format.query;
  p.output_element = attn::Element::kBF16;
  const CacheFormat queries{"", format.query, format.query, false, false, false};
  p.query = bench.repeated(static_cast<std::size_t>(batch) * kHeads * kSize * 2,
                           cells_of(queries, kSize));
  p.query_token_stride = p.output_token_stride = kHeads * kSize;
  p.query_head_stride = p.output_head_stride = kSize;
  p.output = bench.room(static_cast<std::size_t>(batch) * kHeads * kSize * 2);
  std::vector<int> starts(static_cast<std::size_t>(batch) + 1);
  std::iota(starts.begin(), starts.end(), 0);
  const std::vector<int> lens(static_cast<std::size_t>(batch), seq_len);
  std::vector<int> table(static_cast<std::size_t>(tokens / kBlockSize));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(2));
  p.query_start_loc = static_cast<int*>(bench.upload(starts.data(), starts.size() * 4));
  p.seq_lens = static_cast<int*>(bench.upload(lens.data(), lens.size() * 4));
  p.num_requests = batch;
  p.num_heads = kHeads;
  p.num_kv_heads = kKvHeads;
  p.head_size = p.v_head_size = kSize;
  p.max_query_len = 1;
  p.score.softmax_scale = 0.088f;
  p.score.window_left = -1;
  attn::KvParams& kv = p.kv;
  kv.element = format.cache;
  kv.key = bench.repeated(static_cast<std::size_t>(2 * plane * tokens / kBlockSize * bytes),
                          cells_of(format, kSize));
  kv.value = static_cast<const char*>(kv.key) + plane * bytes;
  kv.block_stride = 2 * plane;
  kv.token_stride_key = kv.token_stride_value = kKvHeads * cell;
  kv.head_stride_key = kv.head_stride_value = cell;
  kv.block_table = static_cast<int*>(bench.upload(table.data(), table.size() * 4));
  kv.block_table_stride = seq_len / kBlockSize;
  kv.block_size = kBlockSize;
  kv.round_dequantized = format.rounded ? 1 : 0;
  if (format.rounded) {
    const std::vector<float> scales(kKvHeads, 0.7f);
    kv.k_scale = kv.v_scale = static_cast<float*>(bench.upload(scales.data(), kKvHeads * 4));
  }
  if (format.token_head_scales) {
    kv.key_scales = reinterpret_cast<const float*>(static_cast<const char*>(kv.key) + kSize);
    kv.value_scales = reinterpret_cast<const float*>(static_cast<const char*>(kv.value) + kSize);
    kv.scale_block_stride = kv.block_stride / 4;
    kv.scale_slot_stride = kv.token_stride_key / 4;
    kv.scale_head_stride = cell / 4;
  }
  const auto read = static_cast<double>(2 * tokens * kKvHeads * cell * bytes);
  if (splits == 1) {
    bench.time(name, read, [&] { ops.attend(p); });
  } else if (format.segments) {
    constexpr int kSegments = 16;
    const auto rows = static_cast<std::size_t>(kSegments * batch * kHeads);
    const attn::SegmentParams segments{
        kSegments, 16, static_cast<float*>(bench.room(rows * kSize * 4)),
        static_cast<float*>(bench.room(rows * 4)), static_cast<float*>(bench.room(rows * 4))};
    bench.time(name, read, [&] {
      ops.attend_segments(p, segments);
      ops.reduce_segments(p, segments);
    });
  } else {
    const auto rows = static_cast<std::size_t>(splits * batch * kHeads);
    const attn::SplitParams split{splits, batch, static_cast<float*>(bench.room(rows * kSize * 4)),
                                  static_cast<float*>(bench.room(rows * 4))};
    bench.time(name, read, [&] {
      ops.attend_splits(p, split);
      ops.combine_splits(p, split);
    });
  }
}

void time_decodes(CudaOps& ops, const std::string& filter) {
  using enum attn::Element;
  for (const CacheFormat& format :
       {CacheFormat{"bf16", kBF16, kBF16, false, false, false},
        CacheFormat{"fp8", kBF16, kE4M3, false, false, false},
        CacheFormat{"fp8 and fp8 queries", kE4M3, kE4M3, false, false, false},
        CacheFormat{"fp8 rounded", kBF16, kE4M3, false, true, true},
        CacheFormat{"fp8_per_token_head", kBF16, kE4M3, true, false, true},
        CacheFormat{"int8_per_token_head", kBF16, kI8, true, false, true}}) {
    time_decode(ops, filter, format, 64, 8192, 1);
    time_decode(ops, filter, format, 8, 32768, 4);
    time_decode(ops, filter, format, 1, 131072, 32);
  }
}

/// 16384 tokens of contiguous keys in sequences of 8192.
void time_prefills(CudaOps& ops, const std::string& filter) {
  constexpr int kBatch = 2;
  constexpr int kLength = 8192;
  using enum attn::Element;
  for (const auto& [head_size, heads, element] :
       {std::tuple{64, 32, kBF16}, {128, 16, kBF16}, {256, 8, kBF16}, {128, 16, kE4M3}}) {
    for (const bool causal : {false, true}) {
      const std::string name = fmt::format("prefill {} D{} H{} S{} {}", cuda::short_name(element),
                                           head_size, heads, kLength, causal ? "causal" : "full");
      Bench bench(ops, filter);
      if (!bench.takes(name)) continue;
      const CacheFormat format{"", element, element, false, false, false};
      const auto size = static_cast<std::size_t>(kBatch * kLength * heads * head_size);
      const auto bytes = size * static_cast<std::size_t>(cuda::size_of_element(element));
      attn::AttendParams p{};
      p.query_element = p.kv.element = element;
      p.output_element = kBF16;
      p.query = bench.repeated(bytes, cells_of(format, head_size));
      p.kv.key = bench.repeated(bytes, cells_of(format, head_size));
      p.kv.value = bench.repeated(bytes, cells_of(format, head_size));
      p.output = bench.room(size * 2);
      p.query_token_stride = p.output_token_stride = heads * head_size;
      p.query_head_stride = p.output_head_stride = head_size;
      p.kv.token_stride_key = p.kv.token_stride_value = heads * head_size;
      p.kv.head_stride_key = p.kv.head_stride_value = head_size;
      const std::vector<int> starts{0, kLength, 2 * kLength};
      const std::vector<attn::i64> kv_starts{0, kLength, 2 * kLength};
      const std::vector<int> lens(kBatch, kLength);
      p.query_start_loc = static_cast<int*>(bench.upload(starts.data(), starts.size() * 4));
      p.kv.kv_start_loc =
          static_cast<attn::i64*>(bench.upload(kv_starts.data(), kv_starts.size() * 8));
      p.seq_lens = static_cast<int*>(bench.upload(lens.data(), lens.size() * 4));
      p.num_requests = kBatch;
      p.num_heads = p.num_kv_heads = heads;
      p.head_size = p.v_head_size = head_size;
      p.max_query_len = kLength;
      p.score.softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_size));
      p.score.window_left = -1;
      p.score.window_right = causal ? 0 : -1;
      const double operations =
          4.0 * kBatch * heads * head_size * double{kLength} * kLength * (causal ? 0.5 : 1.0);
      bench.time(
          name, operations * 1e-3, [&] { ops.attend(p); }, "TFLOP/s");
    }
  }
}

int run(const std::string& cache_dir, const std::string& filter) {
  const std::unique_ptr<CudaOps> ops = make_cuda_ops(0, cache_dir);
  const DeviceInfo& device = ops->runtime().device();
  fmt::print("{}, {} multiprocessors\n", device.name, device.num_sms);
  time_cache_writes(*ops, filter);
  time_merges(*ops, filter);
  time_decodes(*ops, filter);
  time_prefills(*ops, filter);
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
    return attnbench::run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
  } catch (const attnbench::Error& error) {
    fmt::print(stderr, "{}\n", error.full_message());
    return 4;
  }
}
