// Attention kernels alone on the first CUDA device: bandwidth of decode (keys and values read) and
// arithmetic of prefill.
// Usage: bench_cuda_ops [cache folder] [regex of names]
#include <cmath>
#include <numeric>

#include "core/tensor.h"
#include "cuda_bench.h"

namespace attnbench {
namespace {

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

/// 16384 tokens in sequences of 8192; keys contiguous, or in pages of 16 in random order.
void time_prefill(CudaOps& ops, const std::string& filter, int head_size, attn::Element element,
                  bool causal, bool paged) {
  constexpr int kBatch = 2;
  constexpr int kLength = 8192;
  constexpr int kBlockSize = 16;
  const int heads = 2048 / head_size;
  const std::string name =
      fmt::format("prefill {} D{} H{} S{} {}{}", cuda::short_name(element), head_size, heads,
                  kLength, causal ? "causal" : "full", paged ? " paged" : "");
  Bench bench(ops, filter);
  if (!bench.takes(name)) return;
  const CacheFormat format{"", element, element, false, false, false};
  const auto size = static_cast<std::size_t>(kBatch * kLength * heads * head_size);
  const auto bytes = size * static_cast<std::size_t>(cuda::size_of_element(element));
  attn::AttendParams p{};
  p.query_element = p.kv.element = element;
  p.output_element = attn::Element::kBF16;
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
  std::vector<int> table(kBatch * kLength / kBlockSize);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(2));
  p.query_start_loc = bench.numbers(starts);
  p.seq_lens = bench.numbers(std::vector<int>(kBatch, kLength));
  if (paged) {
    p.kv.block_table = bench.numbers(table);
    p.kv.block_table_stride = kLength / kBlockSize;
    p.kv.block_size = kBlockSize;
    p.kv.block_stride = kBlockSize * p.kv.token_stride_key;
  } else {
    p.kv.kv_start_loc = bench.numbers(kv_starts);
  }
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

void time_prefills(CudaOps& ops, const std::string& filter) {
  using enum attn::Element;
  for (const auto& [head_size, element] :
       {std::pair{64, kBF16}, {128, kBF16}, {256, kBF16}, {128, kE4M3}}) {
    for (const bool paged : {false, true}) {
      for (const bool causal : {false, true}) {
        time_prefill(ops, filter, head_size, element, causal, paged);
      }
    }
  }
}

}  // namespace
}  // namespace attnbench

int main(int argc, char** argv) {
  return attnbench::run_sections(argc, argv,
                                 [](attnbench::CudaOps& ops, const std::string& filter) {
                                   attnbench::time_decodes(ops, filter);
                                   attnbench::time_prefills(ops, filter);
                                 });
}
