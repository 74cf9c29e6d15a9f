// Small cases of the operations that quantise.
#pragma once

#include "ops/cuda/testing/operation_cases_testing.h"

namespace attnbench::cuda {

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

/// Queries, keys and values of an interleaved QKV, twice, so that the second call finds the ring
/// and the counter of the first; `scales` are made from them, or those given where `is_static`.
inline std::vector<Tensor> run_encoder(Ops& ops, Dtype source, int head_size, int kv_heads,
                                       bool is_static) {
  constexpr int kTokens = 190;
  constexpr int kHeads = 4;
  CaseMemory memory(ops);
  const int padded = (head_size + 15) / 16 * 16;
  const attn::i64 row = attn::i64{kHeads + 2 * kv_heads} * head_size;
  Tensor drawn_rows = drawn(source, {kTokens, kHeads + 2 * kv_heads, head_size}, 33, false);
  // The last value of the last token that counts: its scale is NaN, and so are its codes.
  if (is_static) drawn_rows.set((kTokens - 14) * row - 1, std::nanf(""));
  const auto* const rows = static_cast<const char*>(memory.upload(drawn_rows));
  const auto size = static_cast<attn::i64>(dtype_size(source));
  attn::EncoderQuantiseParams codes{};
  attn::EncoderScalesParams p{};
  codes.source_element = p.element = element_of(source);
  codes.head_size = p.head_size = head_size;
  codes.padded_head_size = padded;
  p.amax = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {3})));
  p.history = static_cast<float*>(memory.result(Tensor(Dtype::kF32, {3, 16})));
  p.scale = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {3})));
  p.kv_scales = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {2, kv_heads})));
  p.num_kv_heads = kv_heads;
  p.partial = memory.upload(std::vector<float>(3 * attn::kMostAmaxCtas, std::nanf("")));
  p.arrivals = static_cast<int*>(memory.result(Tensor(Dtype::kI32, {1})));
  codes.num_saturated = static_cast<attn::i64*>(memory.result(Tensor(Dtype::kI64, {3})));
  const float* const given = memory.upload(std::vector<float>{0.01f, 0.4f});
  for (int i = 0; i < 3; ++i) {
    const int heads = i == 0 ? kHeads : kv_heads;
    const attn::i64 first = i == 0 ? 0 : kHeads + (i - 1) * kv_heads;
    codes.tensors[i] = {rows + first * head_size * size, kTokens - 7 * i, heads, row, head_size};
    p.tensors[i] = codes.tensors[i];
    codes.codes[i] =
        static_cast<unsigned char*>(memory.result(poisoned(Dtype::kU8, {kTokens, heads, padded})));
    codes.scale[i] = p.scale + i;
    if (is_static) codes.scale[i] = i == 2 ? nullptr : given + i;
  }
  for (const int position : {0, 1}) {
    p.position = position;
    p.is_signed = position;
    ops.encoder_scales(p);
    ops.quantise_encoder(codes);
  }
  return memory.results();
}

/// Heads of 16 bits, with zeros of both signs and values that are not finite.
inline std::vector<Tensor> run_counts(Ops& ops, int num_heads, int head_size, int num_tokens) {
  CaseMemory memory(ops);
  Tensor source = drawn(Dtype::kBF16, {num_tokens, num_heads, head_size}, 34);
  source.set(0, -0.0f);
  source.set(1, 0.0f);
  source.set(2, std::nanf(""));
  attn::PatternCountParams p{};
  p.source = memory.upload(source);
  p.num_tokens = num_tokens;
  p.num_heads = num_heads;
  p.head_size = head_size;
  p.counts = static_cast<attn::i64*>(memory.result(Tensor(Dtype::kI64, {num_heads, 65536})));
  ops.count_patterns(p);
  ops.count_patterns(p);
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
  struct EncoderCase {
    Dtype source;
    int head_size;
    int kv_heads;
    bool is_static;
  };
  for (const EncoderCase& c : std::vector<EncoderCase>{{kBF16, 72, 4, false},
                                                       {kBF16, 80, 2, false},
                                                       {kF16, 36, 1, true},
                                                       {kF32, 40, 4, true}}) {
    cases.push_back({"encoder at once " + std::string(dtype_name(c.source)) + " d" +
                         std::to_string(c.head_size) + (c.is_static ? " static" : " dynamic"),
                     0, [c](Ops& o) {
                       return run_encoder(o, c.source, c.head_size, c.kv_heads, c.is_static);
                     }});
  }
  cases.push_back(
      {"count_patterns of a tensor", 0, [](Ops& o) { return run_counts(o, 1, 8, 9000); }});
  cases.push_back({"count_patterns of heads", 0, [](Ops& o) { return run_counts(o, 3, 36, 250); }});
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

}  // namespace attnbench::cuda
