// Rotations, alone and before a cache write (semantics §12).
#include <algorithm>
#include <cstring>

#include "bench/judge/op_expect_parts.h"
#include "core/parallel.h"
#include "inputs/cache/cache_cells.h"
#include "reference/mla/cache_entry.h"
#include "reference/ops/rope.h"

namespace attnbench {

namespace {

constexpr std::int64_t kTokensPerTask = 64;

/// Semantics §12.2.
Tolerance rope_tolerance(Dtype dtype) {
  Tolerance tolerance;
  tolerance.rule = "semantics 12 RoPE " + std::string(dtype_name(dtype));
  tolerance.atol = dtype == Dtype::kF32 ? 1e-5 : 1e-3;
  tolerance.rtol = dtype == Dtype::kF32 ? 1.3e-6 : (dtype == Dtype::kF16 ? 1e-3 : 1.6e-2);
  return tolerance;
}

/// All of x after the rotation of its columns [first, first + count) in the heads [0, heads).
OpExpectation expect_rotated(const Problem& problem, const OpInputs& inputs, std::string name,
                             const Tensor& x, std::int64_t heads, std::int64_t first,
                             std::int64_t count) {
  const Tensor& positions = inputs.at("positions");
  const std::span<const std::int64_t> at{positions.data<std::int64_t>(),
                                         static_cast<std::size_t>(positions.num_elements())};
  const RopeStyle style =
      problem.op.rope_style == RopePairs::kNeox ? RopeStyle::kNeox : RopeStyle::kGptJ;
  const Tensor& table = inputs.at("cos_sin_cache");
  Tensor part = slice(x, 0, heads, first, count);
  const std::vector<double> exact = rotated_rows(at, table, style, part);
  apply_rope(at, table, style, part);
  std::vector<double> values(static_cast<std::size_t>(x.num_elements()));
  std::vector<double> emulated(values.size());
  const std::int64_t row_size = x.dim(1) * x.dim(2);
  const auto expect_token = [&](std::int64_t t) {
    for (std::int64_t i = t * row_size; i < (t + 1) * row_size; ++i) {
      values[static_cast<std::size_t>(i)] = emulated[static_cast<std::size_t>(i)] = x.at(i);
    }
    for (std::int64_t i = 0; i < heads * count; ++i) {
      const auto to =
          static_cast<std::size_t>(t * row_size + i / count * x.dim(2) + first + i % count);
      const std::int64_t from = t * heads * count + i;
      values[to] = exact[static_cast<std::size_t>(from)];
      emulated[to] = part.at(from);
    }
  };
  for_each_chunk(x.dim(0), kTokensPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) expect_token(t);
  });
  return close(std::move(name), rope_tolerance(x.dtype()), std::move(values), std::move(emulated),
               x.dtype(), all_rows(x.dim(0)));
}

/// K and V whose new keys are those that the operation rotated.
StoredKv stored_with(const Problem& problem, const OpInputs& inputs, const Tensor& rotated) {
  AttentionInputs after = inputs.attention;
  const AttentionSpec& a = problem.attention;
  const std::size_t bytes = static_cast<std::size_t>(a.num_kv_heads) *
                            static_cast<std::size_t>(a.head_size) * dtype_size(a.dtype);
  const Tensor keys = slice(rotated, a.num_heads, a.num_kv_heads, 0, a.head_size);
  const std::vector<PositionRange> fresh = new_key_ranges(inputs.base);
  const std::vector<std::int64_t> starts = first_rows(inputs.base);
  std::size_t row = 0;
  for (std::size_t b = 0; b < fresh.size(); ++b) {
    for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p, ++row) {
      std::memcpy(after.key.bytes() + static_cast<std::size_t>(starts[b] + p) * bytes,
                  keys.bytes() + row * bytes, bytes);
    }
  }
  return store_kv(after, inputs.store_rule);
}

}  // namespace

OpExpectations expect_rope(const Problem& problem, const OpInputs& inputs,
                           const PipelineOutput* output) {
  const AttentionSpec& a = problem.attention;
  const Tensor& rows = inputs.at("projection");
  OpExpectations expected;
  expected.outputs.push_back(expect_rotated(problem, inputs, "output", rows,
                                            a.num_heads + a.num_kv_heads, 0, a.head_size));
  if (problem.op.name == OpKind::kRope || output == nullptr) return expected;
  const StoredKv stored = stored_with(problem, inputs, output->output);
  expected.outputs.push_back(equal("kv_cache", "semantics 12.2: bytes of the rotated keys",
                                   written_cache(inputs, stored, nullptr)));
  return expected;
}

namespace {

Tensor entries_with(const Problem& problem, const OpInputs& inputs, const Tensor& rotated) {
  Tensor k_pe = inputs.latents.k_pe;
  const std::size_t bytes =
      static_cast<std::size_t>(problem.mla.qk_rope_head_dim) * dtype_size(k_pe.dtype());
  const std::vector<PositionRange> fresh = new_key_ranges(inputs.base);
  const std::vector<std::int64_t> starts = first_rows(inputs.base);
  std::size_t row = 0;
  for (std::size_t b = 0; b < fresh.size(); ++b) {
    for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p, ++row) {
      std::memcpy(k_pe.bytes() + static_cast<std::size_t>(starts[b] + p) * bytes,
                  rotated.bytes() + row * bytes, bytes);
    }
  }
  const auto k_scale = static_cast<float>(problem.kv_cache.k_scale.at(0));
  return store_mla_cache(inputs.latents.kv_c, k_pe, problem.kv_cache.dtype, k_scale).codes;
}

}  // namespace

OpExpectations expect_mla_rope(const Problem& problem, const OpInputs& inputs,
                               const PipelineOutput* output) {
  const MlaSpec& mla = problem.mla;
  OpExpectations expected;
  expected.outputs.push_back(expect_rotated(problem, inputs, "output", inputs.at("query"),
                                            problem.attention.num_heads, mla.qk_nope_head_dim,
                                            mla.qk_rope_head_dim));
  expected.outputs.push_back(
      expect_rotated(problem, inputs, "key_output", inputs.at("k_pe"), 1, 0, mla.qk_rope_head_dim));
  if (problem.op.name == OpKind::kRope || output == nullptr) return expected;
  for (const auto& [name, tensor] : output->more) {
    if (name != "key_output") continue;
    expected.outputs.push_back(
        equal("kv_cache", "semantics 12.2: entries of the rotated k_pe",
              written_entries(inputs, entries_with(problem, inputs, tensor))));
  }
  return expected;
}

}  // namespace attnbench
