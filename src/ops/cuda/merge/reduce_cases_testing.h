// Small cases of the operations that multiply, sum over ranks and find scales.
#pragma once

#include "ops/cuda/testing/operation_cases_testing.h"

namespace attnbench::cuda {

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
                                   bool combines, bool base_two, int part_heads = 0,
                                   int ranks = 4) {
  constexpr int kTokens = 13;
  constexpr int kHeads = 6;
  CaseMemory memory(ops);
  Tensor lse = drawn(Dtype::kF32, {ranks, kTokens, kHeads}, 38, false);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (int r = 0; r < ranks; ++r) {
    for (int h = 0; h < kHeads; ++h) lse.set((r * kTokens + 5) * kHeads + h, -kInf);
  }
  lse.set(3, std::numeric_limits<float>::quiet_NaN());
  lse.set(9, kInf);
  attn::RankLses lses{static_cast<const float*>(memory.upload(lse)),
                      attn::i64{kTokens} * kHeads,
                      kHeads,
                      1,
                      ranks,
                      base_two ? 1 : 0};
  const attn::i64 row = attn::i64{kHeads} * head_size;
  const void* partials =
      memory.upload(drawn(partial, {ranks, kTokens, kHeads, head_size}, 39, false));
  void* to = memory.result(poisoned(output, {kTokens, kHeads, head_size}));
  auto* output_lse = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {kHeads, kTokens})));
  const attn::Element from_element = element_of(partial);
  const attn::Element to_element = element_of(output);
  if (combines) {
    ops.combine_dcp({lses, from_element, partials, kTokens * row, row, head_size, to_element, to,
                     row, head_size, output_lse, 1, kTokens, kTokens, kHeads, head_size});
  } else {
    // In parts the tensor is [parts, T, heads of a part, D].
    const attn::i64 part_row = part_heads == 0 ? row : attn::i64{part_heads} * head_size;
    ops.correct_dcp({lses, ranks - 2, from_element, partials, row, head_size, to_element, to,
                     part_row, head_size, output_lse, 1, kTokens, kTokens, kHeads, head_size,
                     part_heads, kTokens * part_row});
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

inline void add_reduce_cases(std::vector<OperationCase>& cases) {
  using enum Dtype;
  for (const MatmulCase& c : matmul_cases()) cases.push_back(matmul_case(c));
  cases.push_back(
      {"correct_dcp", 1e-5, [](Ops& o) { return run_dcp(o, kBF16, kF32, 128, false, false); }});
  cases.push_back({"correct_dcp in parts of two heads", 1e-5,
                   [](Ops& o) { return run_dcp(o, kBF16, kF32, 128, false, false, 2); }});
  cases.push_back({"correct_dcp in bf16", 8e-3,
                   [](Ops& o) { return run_dcp(o, kBF16, kBF16, 72, false, true); }});
  cases.push_back(
      {"combine_dcp", 8e-3, [](Ops& o) { return run_dcp(o, kBF16, kBF16, 512, true, false); }});
  cases.push_back({"combine_dcp base 2 of f32", 1e-5,
                   [](Ops& o) { return run_dcp(o, kF32, kF32, 35, true, true); }});
  // Ranks beyond those that the lanes of a row have one of each.
  cases.push_back({"correct_dcp of 11 ranks", 1e-5,
                   [](Ops& o) { return run_dcp(o, kBF16, kF32, 128, false, false, 0, 11); }});
  cases.push_back({"combine_dcp of 11 ranks", 8e-3,
                   [](Ops& o) { return run_dcp(o, kBF16, kBF16, 64, true, false, 0, 11); }});
  cases.push_back({"combine_dcp of 3 ranks", 8e-3,
                   [](Ops& o) { return run_dcp(o, kBF16, kBF16, 128, true, false, 0, 3); }});
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

}  // namespace attnbench::cuda
