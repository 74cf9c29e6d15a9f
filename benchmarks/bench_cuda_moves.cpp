// Kernels that move bytes alone on the first CUDA device: bandwidth of copies, cache writes,
// gathers, rotations, quantisers and merges, counting bytes read and written. Usage:
// bench_cuda_moves [cache folder] [regex of names]
#include <numeric>

#include "cuda_bench.h"

namespace attnbench {
namespace {

/// 65536 tokens, 8 heads of 128, pages of 16 in random order.
void time_cache_writes(CudaOps& ops, const std::string& filter) {
  constexpr std::int64_t kTokens = 65536;
  constexpr int kHeads = 8;
  constexpr int kSize = 128;
  constexpr int kBlockSize = 16;
  constexpr std::int64_t kElements = kTokens * kHeads * kSize;
  Bench bench(ops, filter);
  if (!bench.takes_any({"reshape_and_cache bf16", "reshape_and_cache fp8",
                        "reshape_and_cache fp8_per_token_head",
                        "reshape_and_cache int8_per_token_head"})) {
    return;
  }
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

/// What a plain copy of as many bytes reaches, which is less than one of gigabytes.
void time_copies(CudaOps& ops, const std::string& filter) {
  for (const std::int64_t megabytes : {200, 300, 600, 1200, 4000}) {
    Bench bench(ops, filter);
    const std::string name = fmt::format("copy of {} MB", megabytes);
    if (!bench.takes(name)) continue;
    const std::int64_t count = megabytes * 1000000 / 2 / 256 * 128;
    attn::CopyParams p{};
    p.source_element = p.output_element = attn::Element::kBF16;
    p.source = bench.many_normals(count * 2);
    p.output = bench.room(static_cast<std::size_t>(count * 2));
    p.extents[0] = p.extents[1] = p.extents[2] = 1;
    p.width = count;
    bench.time(name, static_cast<double>(4 * count), [&] { ops.copy(p); });
  }
}

/// The traffic of a rotation of MLA without its arithmetic: 128 of every 384 bytes, in place.
void time_strided_copy(CudaOps& ops, const std::string& filter) {
  constexpr std::int64_t kTokens = 131072;
  constexpr int kHeads = 16;
  constexpr int kWidth = 64;
  constexpr int kStride = 192;
  const std::string name = "copy of 128 of every 384 bytes, in place";
  Bench bench(ops, filter);
  if (!bench.takes(name)) return;
  attn::CopyParams p{};
  p.source_element = p.output_element = attn::Element::kBF16;
  p.output = bench.many_normals(kTokens * kHeads * kStride * 2);
  p.source = p.output;
  p.extents[0] = kTokens;
  p.extents[1] = kHeads;
  p.extents[2] = 1;
  p.source_strides[0] = p.output_strides[0] = std::int64_t{kHeads} * kStride;
  p.source_strides[1] = p.output_strides[1] = kStride;
  p.width = kWidth;
  bench.time(name, static_cast<double>(4 * kTokens * kHeads * kWidth), [&] { ops.copy(p); });
}

/// DeepSeek's latents in pages of 64 in random order, requests of 8192.
struct LatentPages {
  static constexpr int kLatent = 512;
  static constexpr int kRope = 64;
  static constexpr int kBlockSize = 64;
  static constexpr int kLength = 8192;

  LatentPages(Bench& bench, std::int64_t count) : tokens(count) {
    std::vector<int> blocks(static_cast<std::size_t>(tokens / kBlockSize));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(2));
    std::vector<attn::i64> all_slots;
    std::vector<int> requests, starts;
    for (std::int64_t t = 0; t < tokens; ++t) {
      all_slots.push_back(attn::i64{blocks[static_cast<std::size_t>(t / kBlockSize)]} * kBlockSize +
                          t % kBlockSize);
      requests.push_back(static_cast<int>(t / kLength));
    }
    for (std::int64_t t = 0; t <= tokens; t += kLength) starts.push_back(static_cast<int>(t));
    num_requests = static_cast<int>(starts.size()) - 1;
    slots = bench.numbers(all_slots);
    block_table = bench.numbers(blocks);
    token_to_seq = bench.numbers(requests);
    cu_seq_lens = bench.numbers(starts);
    seq_lens =
        bench.numbers(std::vector<int>(static_cast<std::size_t>(num_requests), int{kLength}));
  }

  attn::MlaEntries entries(attn::Element element, const void* cache, int entry_size) const {
    attn::MlaEntries result{};
    result.element = element;
    result.cache = cache;
    result.slot_stride = result.entry_size = entry_size;
    result.block_stride = attn::i64{kBlockSize} * entry_size;
    result.block_table = block_table;
    result.block_table_stride = kLength / kBlockSize;
    result.block_size = kBlockSize;
    return result;
  }

  std::int64_t tokens;
  int num_requests;
  const attn::i64* slots;
  const int* block_table;
  const int* token_to_seq;
  const int* cu_seq_lens;
  const int* seq_lens;
};

void time_latent_writes(CudaOps& ops, const std::string& filter, std::int64_t tokens) {
  Bench bench(ops, filter);
  const auto name = [&](const char* format) {
    return fmt::format("latent write {}, {} tokens", format, tokens);
  };
  if (!bench.takes_any({name("bf16"), name("fp8"), name("fp8_ds_mla")})) return;
  const LatentPages pages(bench, tokens);
  constexpr int kWidth = LatentPages::kLatent + LatentPages::kRope;
  attn::MlaCacheWriteParams p{};
  p.source_element = attn::Element::kBF16;
  p.kv_c = bench.many_normals(tokens * LatentPages::kLatent * 2);
  p.k_pe = bench.many_normals(tokens * LatentPages::kRope * 2);
  p.kv_c_token_stride = p.kv_lora_rank = LatentPages::kLatent;
  p.k_pe_token_stride = p.rope_head_dim = LatentPages::kRope;
  p.slot_mapping = pages.slots;
  p.num_slots = tokens;
  p.block_size = LatentPages::kBlockSize;
  p.k_scale = bench.numbers(std::vector<float>{0.02f});
  p.cache = bench.room(static_cast<std::size_t>(tokens * kWidth * 2));
  const auto time = [&](const char* title, attn::MlaEntry format, int elements, int bytes) {
    p.format = format;
    p.slot_stride = elements;
    p.block_stride = p.slot_stride * p.block_size;
    bench.time(name(title), static_cast<double>(tokens * (kWidth * 2 + bytes + 8)),
               [&] { ops.write_mla_cache(p); });
  };
  time("bf16", attn::MlaEntry::kCopy, kWidth, kWidth * 2);
  time("fp8", attn::MlaEntry::kE4M3, kWidth, kWidth);
  time("fp8_ds_mla", attn::MlaEntry::kDsMla, attn::kDsMlaEntryBytes, attn::kDsMlaEntryBytes);
}

void time_latent_gathers(CudaOps& ops, const std::string& filter, std::int64_t tokens) {
  Bench bench(ops, filter);
  const auto name = [&](const char* format) {
    return fmt::format("latent gather {}, {} tokens", format, tokens);
  };
  if (!bench.takes_any(
          {name("bf16"), name("fp8"), name("fp8_ds_mla as it is"), name("fp8_ds_mla to bf16")})) {
    return;
  }
  const LatentPages pages(bench, tokens);
  constexpr int kWidth = LatentPages::kLatent + LatentPages::kRope;
  const void* cache = bench.many_normals(tokens * kWidth * 2);
  void* output = bench.room(static_cast<std::size_t>(tokens * kWidth * 2));
  const auto bytes = [&](int entry, int row) {
    return static_cast<double>(tokens) * (entry + row);
  };
  attn::MlaGatherParams p{};
  p.output_element = attn::Element::kBF16;
  p.output = output;
  p.output_token_stride = kWidth;
  p.cu_seq_lens = pages.cu_seq_lens;
  p.token_to_seq = pages.token_to_seq;
  p.num_tokens = tokens;
  p.k_scale = bench.numbers(std::vector<float>{0.02f});
  p.entries = pages.entries(attn::Element::kBF16, cache, kWidth);
  bench.time(name("bf16"), bytes(kWidth * 2, kWidth * 2), [&] { ops.gather_mla(p); });
  p.entries = pages.entries(attn::Element::kE4M3, cache, kWidth);
  bench.time(name("fp8"), bytes(kWidth, kWidth * 2), [&] { ops.gather_mla(p); });
  attn::CpGatherParams raw{};
  raw.entries = pages.entries(attn::Element::kU8, cache, attn::kDsMlaEntryBytes);
  raw.output = output;
  raw.output_token_stride = attn::kDsMlaEntryBytes;
  raw.cu_seq_lens = pages.cu_seq_lens;
  raw.num_requests = pages.num_requests;
  raw.num_tokens = tokens;
  bench.time(name("fp8_ds_mla as it is"), bytes(attn::kDsMlaEntryBytes, attn::kDsMlaEntryBytes),
             [&] { ops.cp_gather(raw); });
  attn::DsMlaUpconvertParams packed{};
  packed.entries = raw.entries;
  packed.output = output;
  packed.output_token_stride = kWidth;
  packed.seq_lens = pages.seq_lens;
  packed.workspace_starts = pages.cu_seq_lens;
  packed.num_requests = pages.num_requests;
  packed.num_rows = tokens;
  bench.time(name("fp8_ds_mla to bf16"), bytes(attn::kDsMlaEntryBytes, kWidth * 2),
             [&] { ops.upconvert_ds_mla(packed); });
}

/// q_pe in the heads of the queries and k_pe; whole heads of queries and keys.
void time_rotations(CudaOps& ops, const std::string& filter) {
  struct Shape {
    const char* name;
    std::int64_t tokens;
    int heads, kv_heads, head_size, rotary_dim;
  };
  for (const Shape& shape :
       {Shape{"rope of MLA, 16 heads, 131072 tokens", 131072, 16, 1, 192, 64},
        Shape{"rope D128, 64/8 heads, 32768 tokens", 32768, 64, 8, 128, 128}}) {
    Bench bench(ops, filter);
    if (!bench.takes(shape.name)) continue;
    std::vector<attn::i64> positions(static_cast<std::size_t>(shape.tokens));
    std::iota(positions.begin(), positions.end(), 0);
    const std::int64_t row = std::int64_t{shape.heads} * shape.head_size;
    attn::RopeParams p{};
    p.element = p.cache_element = attn::Element::kBF16;
    p.positions = bench.numbers(positions);
    p.cos_sin_cache = bench.many_normals(shape.tokens * shape.rotary_dim * 2);
    p.query = static_cast<char*>(bench.many_normals(shape.tokens * row * 2)) +
              (shape.head_size - shape.rotary_dim) * 2;
    p.query_token_stride = row;
    p.query_head_stride = shape.head_size;
    p.key = bench.many_normals(shape.tokens * shape.kv_heads * shape.rotary_dim * 2);
    p.key_head_stride = shape.rotary_dim;
    p.key_token_stride = shape.kv_heads * p.key_head_stride;
    p.num_tokens = shape.tokens;
    p.num_heads = shape.heads;
    p.num_kv_heads = shape.kv_heads;
    p.rotary_dim = shape.rotary_dim;
    p.is_neox = 1;
    const std::int64_t rotated =
        std::int64_t{shape.heads + shape.kv_heads} * shape.rotary_dim * 2 * 2;
    bench.time(shape.name, static_cast<double>(shape.tokens * (rotated + shape.rotary_dim * 2 + 8)),
               [&] { ops.rope(p); });
  }
}

/// The encoder's heads out of a row of queries, keys and values; latent queries of MLA.
void time_quantisers(CudaOps& ops, const std::string& filter) {
  const attn::Element bf16 = attn::Element::kBF16;
  for (const int head_size : {72, 80}) {
    constexpr std::int64_t kTokens = 131072;
    constexpr int kHeads = 16;
    const std::string title = fmt::format("D{}, 16 heads, {} tokens", head_size, kTokens);
    Bench bench(ops, filter);
    if (!bench.takes_any({"quantise and pad " + title, "amax " + title})) continue;
    const std::int64_t elements = kTokens * kHeads * head_size;
    attn::PadQuantiseParams p{};
    p.source_element = bf16;
    p.source = bench.many_normals(3 * elements * 2);
    p.source_token_stride = std::int64_t{3} * kHeads * head_size;
    p.source_head_stride = head_size;
    p.scale = bench.numbers(std::vector<float>{0.02f});
    p.num_tokens = kTokens;
    p.num_heads = kHeads;
    p.head_size = head_size;
    p.padded_head_size = (head_size + 15) / 16 * 16;
    const std::int64_t codes = kTokens * kHeads * p.padded_head_size;
    p.codes = static_cast<unsigned char*>(bench.room(static_cast<std::size_t>(codes)));
    bench.time("quantise and pad " + title, static_cast<double>(elements * 2 + codes),
               [&] { ops.quantise_pad_fp8(p); });
    const attn::AmaxParams amax{bf16,
                                p.source,
                                p.source_token_stride,
                                p.source_head_stride,
                                kTokens,
                                kHeads,
                                head_size,
                                0,
                                static_cast<float*>(bench.room(4))};
    bench.time("amax " + title, static_cast<double>(elements * 2), [&] { ops.amax(amax); });
  }
  const std::string latent_queries = "quantise latent queries";
  constexpr std::int64_t kRows = 32768 * 16;
  constexpr int kColumns = LatentPages::kLatent;
  constexpr int kCodes = kColumns + LatentPages::kRope;
  Bench bench(ops, filter);
  if (!bench.takes(latent_queries)) return;
  attn::StaticQuantiseParams p{};
  p.source_element = bf16;
  p.source = bench.many_normals(kRows * kColumns * 2);
  p.source_row_stride = p.num_columns = kColumns;
  p.codes = static_cast<unsigned char*>(bench.room(kRows * kCodes));
  p.code_row_stride = kCodes;
  p.scale = bench.numbers(std::vector<float>{0.02f});
  p.num_saturated = static_cast<attn::i64*>(bench.room(8));
  p.num_rows = kRows;
  bench.time(latent_queries, static_cast<double>(kRows * kColumns * 3),
             [&] { ops.quantise_fp8(p); });
}

/// 16384 and 65536 tokens, 32 heads of 128.
void time_merges(CudaOps& ops, const std::string& filter) {
  constexpr int kHeads = 32;
  constexpr int kSize = 128;
  for (const std::int64_t tokens : {std::int64_t{16384}, std::int64_t{65536}}) {
    Bench bench(ops, filter);
    const std::string title = fmt::format("{} tokens", tokens);
    if (!bench.takes_any(
            {"merge_attn_states bf16, " + title, "merge_attn_states to fp8, " + title})) {
      continue;
    }
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

void time_all(CudaOps& ops, const std::string& filter) {
  time_copies(ops, filter);
  time_strided_copy(ops, filter);
  time_cache_writes(ops, filter);
  for (const std::int64_t tokens : {131072, 262144}) {
    time_latent_writes(ops, filter, tokens);
    time_latent_gathers(ops, filter, tokens);
  }
  time_rotations(ops, filter);
  time_quantisers(ops, filter);
  time_merges(ops, filter);
}

}  // namespace
}  // namespace attnbench

int main(int argc, char** argv) { return attnbench::run_sections(argc, argv, attnbench::time_all); }
