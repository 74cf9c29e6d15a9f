// Small cases of the operations that move, quantise, reduce and multiply.
#pragma once

#include "kernels/common/numeric.cuh"
#include "ops/cuda/operation_cases_testing.h"

namespace attnbench::cuda {

inline std::string title(const std::string& name, Dtype from, Dtype to) {
  return name + " " + std::string(dtype_name(from)) + " to " + std::string(dtype_name(to));
}

/// Element `index` of a tensor whose memory begins at `data`.
inline void* at_element(void* data, Dtype dtype, attn::i64 index) {
  return static_cast<char*>(data) + index * static_cast<attn::i64>(dtype_size(dtype));
}

struct CopyCase {
  Dtype from;
  Dtype to;
  int width;
  int padding;  // elements between rows of the source
};

/// Heads and tokens change places.
inline std::vector<Tensor> run_copy(Ops& ops, const CopyCase& c) {
  constexpr int kTokens = 7;
  constexpr int kHeads = 3;
  CaseMemory memory(ops);
  const attn::i64 row = c.width + c.padding;
  attn::CopyParams p{};
  p.source_element = element_of(c.from);
  p.output_element = element_of(c.to);
  p.source = memory.upload(drawn(c.from, {2, kTokens, kHeads, row}, 21, c.from == Dtype::kF32));
  p.output = memory.result(poisoned(c.to, {2, kHeads, kTokens + 1, c.width}));
  p.source_strides[0] = kTokens * kHeads * row;
  p.source_strides[1] = kHeads * row;
  p.source_strides[2] = row;
  p.output_strides[0] = attn::i64{kHeads} * (kTokens + 1) * c.width;
  p.output_strides[1] = c.width;
  p.output_strides[2] = attn::i64{kTokens + 1} * c.width;
  p.extents[0] = 2;
  p.extents[1] = kTokens;
  p.extents[2] = kHeads;
  p.width = c.width;
  ops.copy(p);
  return memory.results();
}

struct ConcatCase {
  Dtype dtype;
  int first_size;
  int second_size;
  bool shared_second;  // one second part for all heads
  bool zeros = false;
};

inline std::vector<Tensor> run_concat(Ops& ops, const ConcatCase& c) {
  constexpr int kTokens = 9;
  constexpr int kHeads = 5;
  CaseMemory memory(ops);
  const attn::i64 width = c.first_size + c.second_size;
  attn::ConcatParams p{};
  p.element = element_of(c.dtype);
  p.first = memory.upload(drawn(c.dtype, {kTokens, kHeads, c.first_size + 8}, 22));
  p.first_token_stride = kHeads * (c.first_size + attn::i64{8});
  p.first_head_stride = c.first_size + 8;
  if (!c.zeros) {
    p.second = memory.upload(drawn(c.dtype, {kTokens, kHeads, c.second_size}, 23));
    p.second_token_stride = attn::i64{kHeads} * c.second_size;
    p.second_head_stride = c.shared_second ? 0 : c.second_size;
  }
  p.output = memory.result(poisoned(c.dtype, {kTokens + 1, kHeads, width}));
  p.output_token_stride = kHeads * width;
  p.output_head_stride = width;
  p.num_tokens = kTokens;
  p.num_heads = kHeads;
  p.first_size = c.first_size;
  p.second_size = c.second_size;
  ops.concat(p);
  return memory.results();
}

inline std::vector<Tensor> run_gather_rows(Ops& ops, Dtype dtype, int width) {
  CaseMemory memory(ops);
  attn::GatherRowsParams p{};
  p.element = element_of(dtype);
  p.source = memory.upload(drawn(dtype, {6, width}, 24));
  p.source_row_stride = p.output_row_stride = p.width = width;
  p.rows = memory.upload(std::vector<attn::i64>{5, 0, 0, 3});
  p.num_rows = 4;
  p.output = memory.result(poisoned(dtype, {5, width}));
  ops.gather_rows(p);
  return memory.results();
}

struct MlaWriteCase {
  attn::MlaEntry format;
  Dtype source;
  int latent = 512;
  int rope = 64;
  int padding = 0;  // elements between rows of the source
  bool rotates = false;
  int first_byte = 0;  // of the cache: what it is aligned to
};

inline std::vector<Tensor> run_mla_write(Ops& ops, const MlaWriteCase& c) {
  constexpr int kTokens = 75;
  constexpr int kBlocks = 10;
  constexpr int kBlockSize = 8;
  constexpr int kPositions = 32;
  CaseMemory memory(ops);
  const bool is_ds_mla = c.format == attn::MlaEntry::kDsMla;
  const int entry = is_ds_mla ? attn::kDsMlaEntryBytes : c.latent + c.rope;
  Dtype cache = c.source;
  if (is_ds_mla) cache = Dtype::kU8;
  if (c.format == attn::MlaEntry::kE4M3) cache = Dtype::kE4M3;
  std::vector<attn::i64> slots;
  std::vector<attn::i64> positions;
  for (int t = 0; t < kTokens; ++t) {
    slots.push_back(t % 6 == 4 ? -1 : kBlocks * kBlockSize - 1 - t);
    positions.push_back(t * 5 % kPositions);
  }
  attn::MlaCacheWriteParams p{};
  p.format = c.format;
  p.source_element = element_of(c.source);
  p.kv_c = memory.upload(drawn(c.source, {kTokens, c.latent + c.padding}, 25, !is_ds_mla));
  p.kv_c_token_stride = c.latent + c.padding;
  void* k_pe = memory.result(drawn(c.source, {kTokens, c.rope + c.padding}, 26, false));
  p.k_pe = k_pe;
  p.k_pe_token_stride = c.rope + c.padding;
  p.cache = static_cast<char*>(memory.result(poisoned(cache, {kBlocks + 1, kBlockSize, entry}))) +
            c.first_byte;
  p.block_stride = attn::i64{kBlockSize} * entry;
  p.slot_stride = entry;
  p.slot_mapping = memory.upload(slots);
  p.num_slots = kTokens;
  p.block_size = kBlockSize;
  p.kv_lora_rank = c.latent;
  p.rope_head_dim = c.rope;
  p.k_scale = memory.upload(std::vector<float>{0.07f});
  if (!c.rotates) {
    ops.write_mla_cache(p);
    return memory.results();
  }
  attn::RopeParams rope{};
  rope.element = p.source_element;
  rope.cache_element = attn::Element::kF32;
  rope.positions = memory.upload(positions);
  rope.cos_sin_cache = memory.upload(drawn(Dtype::kF32, {kPositions, c.rope}, 27, false));
  rope.query = memory.result(drawn(c.source, {kTokens, 3, c.rope}, 28, false));
  rope.query_token_stride = attn::i64{3} * c.rope;
  rope.query_head_stride = c.rope;
  rope.key = k_pe;
  rope.key_token_stride = p.k_pe_token_stride;
  rope.key_head_stride = c.rope;
  rope.num_tokens = kTokens;
  rope.num_heads = 3;
  rope.num_kv_heads = 1;
  rope.rotary_dim = c.rope;
  ops.rope_and_write_mla_cache(rope, p);
  return memory.results();
}

/// "fp8_ds_mla" entries of drawn codes, scales and k_pe.
inline Tensor drawn_ds_mla(int entries, unsigned seed) {
  Tensor tensor(Dtype::kU8, {entries, attn::kDsMlaEntryBytes});
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int e = 0; e < entries; ++e) {
    std::byte* entry = tensor.bytes() + e * attn::kDsMlaEntryBytes;
    // Codes below 0x70 in magnitude: no NaN.
    for (int i = 0; i < attn::kDsMlaLatent; ++i) {
      entry[i] = static_cast<std::byte>(random() % 0x60 | (random() % 2) << 7);
    }
    for (int i = 0; i < 4; ++i) {
      const float scale = 0.01f * (1.0f + static_cast<float>(random() % 7));
      std::memcpy(entry + attn::kDsMlaLatent + 4 * i, &scale, sizeof scale);
    }
    for (int i = 0; i < attn::kDsMlaRope; ++i) {
      const attn::u16 code = attn::bf16_from_float(normal(random));
      std::memcpy(entry + attn::kDsMlaLatent + 16 + 2 * i, &code, sizeof code);
    }
  }
  return tensor;
}

/// `first_byte` of the cache: what its entries are aligned to.
inline std::vector<Tensor> run_upconvert(Ops& ops, int first_byte) {
  constexpr int kBlockSize = 4;
  CaseMemory memory(ops);
  attn::DsMlaUpconvertParams p{};
  p.entries.element = attn::Element::kU8;
  const Tensor entries = drawn_ds_mla(8 * kBlockSize, 29);
  std::vector<std::byte> bytes(static_cast<std::size_t>(first_byte) + entries.size_bytes());
  std::copy_n(entries.bytes(), entries.size_bytes(), bytes.begin() + first_byte);
  p.entries.cache = memory.upload(bytes) + first_byte;
  p.entries.slot_stride = p.entries.entry_size = attn::kDsMlaEntryBytes;
  p.entries.block_stride = kBlockSize * attn::i64{attn::kDsMlaEntryBytes};
  p.entries.block_table = memory.upload(std::vector<int>{6, 1, 2, 7, 3, 0});
  p.entries.block_table_stride = 2;
  p.entries.block_size = kBlockSize;
  // Row 5 belongs to nobody, as does row 0.
  p.seq_lens = memory.upload(std::vector<int>{4, 0, 7});
  p.workspace_starts = memory.upload(std::vector<int>{1, 6, 6});
  p.num_requests = 3;
  p.num_rows = 14;
  p.output = memory.result(poisoned(Dtype::kBF16, {14, 576}));
  p.output_token_stride = 576;
  ops.upconvert_ds_mla(p);
  return memory.results();
}

struct QuantiseCase {
  std::string kind;  // "static", "groups", "nvfp4", "pad"
  Dtype source;
  int columns;
  int padding = 0;
  int group = 128;
  bool flag = false;  // ue8m0; swizzled; no scale
};

inline std::vector<Tensor> run_quantise(Ops& ops, const QuantiseCase& c) {
  constexpr int kRows = 37;
  CaseMemory memory(ops);
  const attn::i64 row = c.columns + c.padding;
  const void* source = memory.upload(drawn(c.source, {kRows, row}, 30));
  const float* scale = memory.upload(std::vector<float>{0.37f});
  auto* saturated = static_cast<attn::i64*>(memory.result(Tensor(Dtype::kI64, {1})));
  const attn::Element element = element_of(c.source);
  if (c.kind == "nvfp4") {
    const int blocks = c.columns / attn::kNvfp4Block;
    attn::Nvfp4QuantiseParams p{};
    p.source_element = element;
    p.source = source;
    p.source_row_stride = row;
    p.packed =
        static_cast<unsigned char*>(memory.result(poisoned(Dtype::kU8, {kRows, c.columns / 2})));
    p.packed_row_stride = c.columns / 2;
    p.scales = static_cast<unsigned char*>(
        memory.result(poisoned(Dtype::kU8, {128, (blocks + 3) / 4 * 4})));
    p.swizzled = c.flag ? 1 : 0;
    p.global_scale = scale;
    p.num_rows = kRows;
    p.num_columns = c.columns;
    ops.quantise_nvfp4(p);
    return memory.results();
  }
  auto* codes =
      static_cast<unsigned char*>(memory.result(poisoned(Dtype::kU8, {kRows + 1, c.columns})));
  if (c.kind == "static") {
    ops.quantise_fp8({element, source, row, codes, c.columns, scale, saturated, kRows, c.columns});
    return memory.results();
  }
  const int groups = c.columns / c.group;
  auto* scales = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {groups, kRows + 3})));
  ops.quantise_fp8_groups({element, source, row, codes, c.columns, scales, 1, kRows + 3, saturated,
                           kRows, c.columns, c.group, c.flag ? 1 : 0});
  return memory.results();
}

/// Heads of an interleaved QKV; scale 0 is none.
inline std::vector<Tensor> run_pad(Ops& ops, Dtype source, int head_size, float scale) {
  constexpr int kTokens = 190;
  constexpr int kHeads = 3;
  CaseMemory memory(ops);
  const int padded = (head_size + 15) / 16 * 16;
  attn::PadQuantiseParams p{};
  p.source_element = element_of(source);
  p.source = memory.upload(drawn(source, {kTokens, 3, kHeads, head_size}, 31));
  p.source_token_stride = attn::i64{9} * head_size;
  p.source_head_stride = head_size;
  p.codes =
      static_cast<unsigned char*>(memory.result(poisoned(Dtype::kU8, {kTokens, kHeads, padded})));
  if (scale != 0) p.scale = memory.upload(std::vector<float>{scale});
  p.num_saturated = static_cast<attn::i64*>(memory.result(Tensor(Dtype::kI64, {1})));
  p.num_tokens = kTokens;
  p.num_heads = kHeads;
  p.head_size = head_size;
  p.padded_head_size = padded;
  ops.quantise_pad_fp8(p);
  return memory.results();
}

struct Int8Case {
  attn::Int8Granularity granularity;
  Dtype source;
  int head_size;
};

inline std::vector<Tensor> run_int8(Ops& ops, const Int8Case& c) {
  constexpr int kTokens = 150;
  constexpr int kHeads = 3;
  CaseMemory memory(ops);
  Tensor source = drawn(c.source, {kTokens, kHeads, c.head_size}, 32);
  for (int d = 0; d < c.head_size; ++d) source.set(d, 0.0);  // a vector of zeros
  const bool by_token = c.granularity == attn::Int8Granularity::kTokenHead;
  Tensor scale = by_token ? poisoned(Dtype::kF32, {kHeads, kTokens})
                          : poisoned(Dtype::kF32, {kHeads, c.head_size});
  if (c.granularity == attn::Int8Granularity::kChannelStatic) {
    for (std::int64_t i = 0; i < scale.num_elements(); ++i)
      scale.set(i, 0.01f * (1.0f + static_cast<float>(i)));
  }
  attn::Int8QuantiseParams p{};
  p.source_element = element_of(c.source);
  p.source = memory.upload(source);
  p.source_token_stride = p.code_token_stride = attn::i64{kHeads} * c.head_size;
  p.source_head_stride = p.code_head_stride = c.head_size;
  p.codes = static_cast<signed char*>(
      memory.result(poisoned(Dtype::kI8, {kTokens, kHeads, c.head_size})));
  p.granularity = c.granularity;
  p.scale = static_cast<float*>(memory.result(scale));
  p.scale_token_stride = 1;
  p.scale_head_stride = kTokens;
  p.num_tokens = kTokens;
  p.num_heads = kHeads;
  p.head_size = c.head_size;
  ops.quantise_int8(p);
  return memory.results();
}

/// Two KV heads; the new tokens of three requests, one of which has none.
inline std::vector<Tensor> run_int8_write(Ops& ops, Dtype values, bool by_table, int head_size) {
  constexpr int kTokens = 11;
  constexpr int kHeads = 2;
  constexpr int kBlocks = 8;
  constexpr int kBlockSize = 4;
  CaseMemory memory(ops);
  const attn::i64 plane = attn::i64{kBlocks} * kHeads * kBlockSize * head_size;
  attn::Int8CacheWriteParams p{};
  p.key = static_cast<const signed char*>(
      memory.upload(drawn(Dtype::kI8, {kTokens, kHeads, head_size}, 33, false)));
  p.key_token_stride = p.value_token_stride = attn::i64{kHeads} * head_size;
  p.key_head_stride = p.value_head_stride = head_size;
  p.key_scale = static_cast<const float*>(memory.upload(drawn(Dtype::kF32, {kHeads, kTokens}, 34)));
  p.key_scale_token_stride = 1;
  p.key_scale_head_stride = kTokens;
  p.value_element = element_of(values);
  p.value = memory.upload(drawn(values, {kTokens, kHeads, head_size}, 35, false));
  p.key_cache = static_cast<signed char*>(memory.result(poisoned(Dtype::kI8, {plane})));
  p.value_cache = memory.result(poisoned(values, {plane}));
  p.key_scale_cache =
      static_cast<float*>(memory.result(poisoned(Dtype::kF32, {kBlocks, kHeads, kBlockSize})));
  p.block_stride = attn::i64{kHeads} * kBlockSize * head_size;
  p.slot_stride = head_size;
  p.head_stride = attn::i64{kBlockSize} * head_size;
  p.scale_block_stride = kHeads * kBlockSize;
  p.scale_slot_stride = 1;
  p.scale_head_stride = kBlockSize;
  p.num_tokens = kTokens;
  p.block_size = kBlockSize;
  p.num_kv_heads = kHeads;
  p.head_size = head_size;
  if (by_table) {
    p.block_table = memory.upload(std::vector<int>{3, 5, 1 << 30, 1 << 30, 0, 7});
    p.block_table_stride = 2;
    p.query_start_loc = memory.upload(std::vector<int>{0, 5, 5, 11});
    p.seq_lens = memory.upload(std::vector<int>{7, 0, 6});
    p.num_requests = 3;
  } else {
    p.slot_mapping = memory.upload(std::vector<attn::i64>{31, 0, -1, 7, 6, 5, -1, 20, 21, 22, 23});
  }
  ops.write_cache_int8(p);
  return memory.results();
}

struct MatmulCase {
  Dtype dtype;
  Dtype output;
  int batches;
  int m;
  int n;
  int k;
  bool transposed = false;
  int padding = 0;       // elements between rows of A and B
  bool one_row = false;  // of A, which a stride of 0 makes all of them
};

inline std::vector<Tensor> run_matmul(Ops& ops, const MatmulCase& c) {
  CaseMemory memory(ops);
  const attn::i64 b_rows = c.transposed ? c.n : c.k;
  const attn::i64 b_width = (c.transposed ? c.k : c.n) + c.padding;
  attn::MatmulParams p{};
  p.element = element_of(c.dtype);
  p.output_element = element_of(c.output);
  // [m, batches, k] as MLA's queries are.
  p.a = memory.upload(drawn(c.dtype, {c.m, c.batches, c.k + c.padding}, 36, false));
  p.a_batch_stride = c.k + c.padding;
  p.a_row_stride = c.one_row ? 0 : c.batches * p.a_batch_stride;
  p.b = memory.upload(drawn(c.dtype, {c.batches, b_rows, b_width}, 37, false));
  p.b_batch_stride = b_rows * b_width;
  p.b_row_stride = b_width;
  p.b_transposed = c.transposed ? 1 : 0;
  p.c = memory.result(poisoned(c.output, {c.m + 1, c.batches, c.n}));
  p.c_batch_stride = c.n;
  p.c_row_stride = attn::i64{c.batches} * c.n;
  p.num_batches = c.batches;
  p.m = c.m;
  p.n = c.n;
  p.k = c.k;
  ops.matmul(p);
  return memory.results();
}

inline OperationCase matmul_case(const MatmulCase& c) {
  using enum Dtype;
  const double tolerance = c.output == kBF16 ? 1e-2 : c.output == kF16 ? 2e-3 : 1e-4;
  // Sums of products of numbers up to thousands: what cancels is lost.
  return {title("matmul", c.dtype, c.output) + " k" + std::to_string(c.k), tolerance,
          [c](Ops& o) { return run_matmul(o, c); }, tolerance};
}

inline std::vector<MatmulCase> matmul_cases() {
  using enum Dtype;
  return {{kBF16, kBF16, 3, 70, 512, 128},
          {kBF16, kBF16, 1, 200, 192, 512, true},
          {kF16, kF32, 2, 5, 130, 72},
          {kF16, kF16, 2, 33, 35, 21, true, 1},
          {kBF16, kBF16, 1, 4, 8, 0},
          {kF32, kF32, 2, 70, 65, 33},
          {kF32, kF32, 1, 70, 1, 1, false, 0, true},
          {kF32, kBF16, 1, 9, 40, 50, true}};
}

/// Infinities and NaN among the LSEs; a token that no rank saw anything for.
inline std::vector<Tensor> run_dcp(Ops& ops, Dtype partial, Dtype output, int head_size,
                                   bool combines, bool base_two) {
  constexpr int kRanks = 4;
  constexpr int kTokens = 13;
  constexpr int kHeads = 6;
  CaseMemory memory(ops);
  Tensor lse = drawn(Dtype::kF32, {kRanks, kTokens, kHeads}, 38, false);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (int r = 0; r < kRanks; ++r) {
    for (int h = 0; h < kHeads; ++h) lse.set((r * kTokens + 5) * kHeads + h, -kInf);
  }
  lse.set(3, std::numeric_limits<float>::quiet_NaN());
  lse.set(9, kInf);
  attn::RankLses lses{static_cast<const float*>(memory.upload(lse)),
                      attn::i64{kTokens} * kHeads,
                      kHeads,
                      1,
                      kRanks,
                      base_two ? 1 : 0};
  const attn::i64 row = attn::i64{kHeads} * head_size;
  const void* partials =
      memory.upload(drawn(partial, {kRanks, kTokens, kHeads, head_size}, 39, false));
  void* to = memory.result(poisoned(output, {kTokens, kHeads, head_size}));
  auto* output_lse = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {kHeads, kTokens})));
  const attn::Element from_element = element_of(partial);
  const attn::Element to_element = element_of(output);
  if (combines) {
    ops.combine_dcp({lses, from_element, partials, kTokens * row, row, head_size, to_element, to,
                     row, head_size, output_lse, 1, kTokens, kTokens, kHeads, head_size});
  } else {
    ops.correct_dcp({lses, 2, from_element, partials, row, head_size, to_element, to, row,
                     head_size, output_lse, 1, kTokens, kTokens, kHeads, head_size});
  }
  return memory.results();
}

inline std::vector<Tensor> run_sum_ranks(Ops& ops, Dtype dtype, int count) {
  constexpr int kRanks = 3;
  CaseMemory memory(ops);
  attn::SumRanksParams p{};
  p.element = element_of(dtype);
  p.world_size = kRanks;
  for (int r = 0; r < kRanks; ++r) {
    p.parts[r] = memory.upload(drawn(dtype, {count}, 54 + static_cast<unsigned>(r)));
  }
  p.output = memory.result(poisoned(dtype, {count + 1}));
  p.count = count;
  ops.sum_ranks(p);
  return memory.results();
}

/// `padding` elements between heads.
inline std::vector<Tensor> run_amax(Ops& ops, Dtype dtype, int head_size, bool is_signed,
                                    bool has_specials, int padding = 8) {
  constexpr int kTokens = 310;
  CaseMemory memory(ops);
  const int stride = head_size + padding;
  Tensor source = drawn(dtype, {kTokens, 4, stride}, 40, has_specials);
  if (is_signed) {
    // Nothing but negative numbers, so that the largest is one.
    for (std::int64_t i = 0; i < source.num_elements(); ++i) {
      source.set(i, -1.0f - std::fabs(source.at(i)));
    }
  }
  auto* amax = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {3})));
  ops.amax({element_of(dtype), memory.upload(source), attn::i64{4} * stride, stride, kTokens, 4,
            head_size, is_signed ? 1 : 0, amax});
  ops.amax({element_of(dtype), memory.upload(source), 0, 0, 0, 4, head_size, 0, amax + 1});
  return memory.results();
}

inline std::vector<Tensor> run_scales(Ops& ops) {
  CaseMemory memory(ops);
  const float* amax = memory.upload(std::vector<float>{3.5f, 0.0f, std::nanf("")});
  auto* history = static_cast<float*>(memory.result(Tensor(Dtype::kF32, {3, 16})));
  auto* scale = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {3})));
  ops.update_amax_history({amax, history, scale, 0, 3});
  ops.update_amax_history(
      {memory.upload(std::vector<float>{1e-3f, 2.0f, 1.0f}), history, scale, 15, 3});
  auto* kv_scale = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {3})));
  ops.calc_kv_scales({amax, kv_scale, {200.0f, 200.0f, 100.0f}});
  return memory.results();
}

inline void add_move_cases(std::vector<OperationCase>& cases) {
  using enum Dtype;
  for (const CopyCase& c : std::vector<CopyCase>{{kBF16, kBF16, 128, 0},
                                                 {kF32, kBF16, 64, 0},
                                                 {kBF16, kF32, 33, 1},
                                                 {kI32, kI32, 8, 0},
                                                 {kU8, kU8, 48, 5}}) {
    cases.push_back({title("copy", c.from, c.to), 1e-30, [c](Ops& o) { return run_copy(o, c); }});
  }
  for (const ConcatCase& c : std::vector<ConcatCase>{{kBF16, 128, 64, true},
                                                     {kBF16, 512, 64, false},
                                                     {kE4M3, 16, 48, false, true},
                                                     {kF32, 5, 3, false}}) {
    cases.push_back({title("concat", c.dtype, c.dtype) + std::to_string(c.first_size), 0,
                     [c](Ops& o) { return run_concat(o, c); }});
  }
  cases.push_back({"gather_rows", 0, [](Ops& o) { return run_gather_rows(o, kBF16, 576); }});
  cases.push_back({"gather_rows f32", 0, [](Ops& o) { return run_gather_rows(o, kF32, 7); }});
  using attn::MlaEntry;
  for (const MlaWriteCase& c :
       std::vector<MlaWriteCase>{{MlaEntry::kCopy, kBF16},
                                 {MlaEntry::kE4M3, kBF16},
                                 {MlaEntry::kE4M3, kF32, 40, 12, 3},
                                 {MlaEntry::kDsMla, kBF16},
                                 {MlaEntry::kDsMla, kBF16, 512, 64, 1},
                                 {MlaEntry::kDsMla, kBF16, 512, 64, 0, false, 4},
                                 {MlaEntry::kCopy, kF16, 512, 64, 0, true},
                                 {MlaEntry::kE4M3, kF16, 512, 64, 0, true}}) {
    cases.push_back({title("write_mla_cache", c.source, kU8) + " format " +
                         std::to_string(static_cast<int>(c.format)) + " pad " +
                         std::to_string(c.padding) + " at " + std::to_string(c.first_byte),
                     0, [c](Ops& o) { return run_mla_write(o, c); }});
  }
  for (const int first_byte : {0, 4}) {
    cases.push_back({"upconvert_ds_mla at " + std::to_string(first_byte), 0,
                     [first_byte](Ops& o) { return run_upconvert(o, first_byte); }});
  }
}

inline void add_quantise_cases(std::vector<OperationCase>& cases) {
  using enum Dtype;
  for (const QuantiseCase& c : std::vector<QuantiseCase>{{"static", kBF16, 576},
                                                         {"static", kF32, 33},
                                                         {"groups", kBF16, 512},
                                                         {"groups", kF16, 256, 0, 64, true},
                                                         {"groups", kF32, 256, 1, 128},
                                                         {"groups", kBF16, 16384, 8, 128},
                                                         {"nvfp4", kBF16, 256, 0, 128, true},
                                                         {"nvfp4", kF16, 48, 0, 128, false},
                                                         {"nvfp4", kF32, 32, 3, 128, true}}) {
    cases.push_back({"quantise " + c.kind + " " + std::string(dtype_name(c.source)) + " " +
                         std::to_string(c.columns),
                     0, [c](Ops& o) { return run_quantise(o, c); }});
  }
  struct PadCase {
    Dtype source;
    int head_size;
    float scale;
  };
  for (const PadCase& c : std::vector<PadCase>{{kBF16, 72, 0.21f},
                                               {kF16, 80, 0.21f},
                                               {kF32, 36, 0},
                                               {kBF16, 40, 0x1.fffffep-3f},
                                               {kBF16, 64, 0},
                                               {kF32, 72, 1e-39f},
                                               {kF16, 72, std::numeric_limits<float>::quiet_NaN()},
                                               {kF32, 80, 1e-39f}}) {
    cases.push_back({"pad fp8 " + std::string(dtype_name(c.source)) + " d" +
                         std::to_string(c.head_size) + " scale " + std::to_string(c.scale),
                     0, [c](Ops& o) { return run_pad(o, c.source, c.head_size, c.scale); }});
  }
  using attn::Int8Granularity;
  for (const Int8Case& c : std::vector<Int8Case>{{Int8Granularity::kTokenHead, kBF16, 128},
                                                 {Int8Granularity::kTokenHead, kF32, 36},
                                                 {Int8Granularity::kChannelDynamic, kF16, 64},
                                                 {Int8Granularity::kChannelStatic, kBF16, 40}}) {
    cases.push_back({"quantise_int8 " + std::to_string(static_cast<int>(c.granularity)) + " " +
                         std::string(dtype_name(c.source)),
                     0, [c](Ops& o) { return run_int8(o, c); }});
  }
  cases.push_back(
      {"write_cache_int8 level 1", 0, [](Ops& o) { return run_int8_write(o, kI8, false, 64); }});
  cases.push_back({"write_cache_int8 level 2 by table", 0,
                   [](Ops& o) { return run_int8_write(o, kBF16, true, 128); }});
  cases.push_back(
      {"write_cache_int8 odd", 0, [](Ops& o) { return run_int8_write(o, kF16, true, 35); }});
}

inline void add_reduce_cases(std::vector<OperationCase>& cases) {
  using enum Dtype;
  for (const MatmulCase& c : matmul_cases()) cases.push_back(matmul_case(c));
  cases.push_back(
      {"correct_dcp", 1e-5, [](Ops& o) { return run_dcp(o, kBF16, kF32, 128, false, false); }});
  cases.push_back({"correct_dcp in bf16", 8e-3,
                   [](Ops& o) { return run_dcp(o, kBF16, kBF16, 72, false, true); }});
  cases.push_back(
      {"combine_dcp", 8e-3, [](Ops& o) { return run_dcp(o, kBF16, kBF16, 512, true, false); }});
  cases.push_back({"combine_dcp base 2 of f32", 1e-5,
                   [](Ops& o) { return run_dcp(o, kF32, kF32, 35, true, true); }});
  // More than a CTA has places for.
  cases.push_back({"combine_dcp of rows of 515", 1e-5,
                   [](Ops& o) { return run_dcp(o, kF32, kF32, 515, true, false); }});
  cases.push_back({"sum_ranks f32", 1e-30, [](Ops& o) { return run_sum_ranks(o, kF32, 1024); }});
  cases.push_back({"sum_ranks bf16", 1e-30, [](Ops& o) { return run_sum_ranks(o, kBF16, 77); }});
  cases.push_back({"amax", 1e-30, [](Ops& o) { return run_amax(o, kBF16, 72, false, false); }});
  cases.push_back({"amax of heads without gaps", 1e-30,
                   [](Ops& o) { return run_amax(o, kBF16, 80, false, false, 0); }});
  cases.push_back(
      {"amax with NaN", 1e-30, [](Ops& o) { return run_amax(o, kF16, 64, false, true); }});
  cases.push_back({"amax of negative numbers", 1e-30,
                   [](Ops& o) { return run_amax(o, kF32, 35, true, false); }});
  cases.push_back({"scales of amax", 1e-30, run_scales});
}

inline void add_coverage_cases(std::vector<OperationCase>& cases) {
  add_move_cases(cases);
  add_quantise_cases(cases);
  add_reduce_cases(cases);
}

}  // namespace attnbench::cuda
