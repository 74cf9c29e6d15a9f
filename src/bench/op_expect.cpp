#include "bench/op_expect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "bench/op_inputs.h"
#include "inputs/cache_cells.h"
#include "inputs/int8_rows.h"
#include "inputs/mm_scale_file.h"
#include "reference/attention.h"
#include "reference/mla/mla_cache_entry.h"
#include "reference/ops/amax_history.h"
#include "reference/ops/int8_quant.h"
#include "reference/ops/merge_states.h"
#include "reference/ops/mla_query.h"
#include "reference/ops/mm_quant.h"
#include "reference/ops/nvfp4.h"
#include "reference/ops/output_quant.h"
#include "reference/ops/rope.h"
#include "reference/ops/strided_tensor.h"

namespace attnbench {
namespace {

OpExpectation equal(std::string name, std::string rule, Tensor bytes) {
  OpExpectation expected;
  expected.name = std::move(name);
  expected.rule = std::move(rule);
  expected.exact = std::move(bytes);
  return expected;
}

/// Values within a row of §14.2; `emulated` are those of the same maths in f32, which the storage
/// type rounds.
OpExpectation close(std::string name, const Tolerance& tolerance, std::vector<double> values,
                    std::vector<double> emulated, Dtype storage, std::vector<std::int32_t> rows) {
  OpExpectation expected;
  expected.name = std::move(name);
  expected.by_values = true;
  expected.tolerance = tolerance;
  expected.values = std::move(values);
  for (double& value : emulated) value = round_to(storage, static_cast<float>(value));
  expected.emulated = std::move(emulated);
  expected.rows = std::move(rows);
  return expected;
}

OpExpectation close_lse(MergedState state, MergedState emulated, std::vector<std::int32_t> rows) {
  OpExpectation expected = close("lse", lse_tolerance(Dtype::kF32), std::move(state.lse),
                                 std::move(emulated.lse), Dtype::kF32, std::move(rows));
  expected.is_lse = true;
  return expected;
}

// Doubles of expected and emulated values that are affordable: 1 GiB.
constexpr std::int64_t kMostElements = std::int64_t{1} << 26;

std::vector<std::int32_t> all_rows(std::int64_t count) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
  return rows;
}

/// All rows while that is affordable, or a sample of max_rows.
std::vector<std::int32_t> checked_rows(const Problem& problem, std::int64_t row_elements) {
  const std::int64_t tokens = problem.num_tokens();
  const std::int64_t most =
      std::max<std::int64_t>(1, kMostElements / std::max<std::int64_t>(1, row_elements));
  Problem sampled = problem;
  if (!problem.validation.max_rows) sampled.validation.max_rows = most;
  if (*sampled.validation.max_rows >= tokens) return all_rows(tokens);
  return select_rows(sampled, problem.inputs.seed);
}

// ---- Partial results --------------------------------------------------------------------------

OpExpectations expect_merge(const Problem& problem, const OpInputs& inputs) {
  const Tensor& prefix = inputs.at("prefix_output");
  const Tensor& suffix = inputs.at("suffix_output");
  const std::vector<std::int32_t> chosen = checked_rows(problem, suffix.dim(1) * suffix.dim(2));
  const StateRows rows{chosen, suffix.dim(0), suffix.dim(1), suffix.dim(2)};
  const PartialState p{&prefix, &inputs.at("prefix_lse"), 0, 0, prefix.dim(2)};
  const PartialState s{&suffix, &inputs.at("suffix_lse"), 0, 0, suffix.dim(2)};
  const std::int64_t merged = problem.op.tokens_with_context.value_or(suffix.dim(0));
  MergedState exact = merge_states(p, s, merged, rows, Arithmetic::kF64);
  MergedState emulated = merge_states(p, s, merged, rows, Arithmetic::kF32);
  ToleranceQuery query;
  query.output = prefix.dtype();
  if (problem.output_quant.type == OutputQuantType::kFp8Static) {
    query.static_fp8_scale = problem.output_quant.scale;
  }
  OpExpectations expected;
  expected.outputs.push_back(close("output", output_tolerance(query), exact.output, emulated.output,
                                   prefix.dtype(), chosen));
  expected.outputs.push_back(close_lse(std::move(exact), std::move(emulated), chosen));
  return expected;
}

/// The corrected partials [W, W, T, H / W, D] as rows of [W * W * T, H / W, D].
OpExpectation expect_corrected(const Problem& problem, std::span<const PartialState> ranks,
                               const StateRows& rows) {
  const auto parts = static_cast<std::int64_t>(ranks.size());
  const std::int64_t own = rows.num_heads / parts;
  std::vector<double> values, emulated;
  const auto append = [&](const MergedState& state, std::int64_t part, std::vector<double>& to) {
    for (std::size_t i = 0; i < rows.rows.size(); ++i) {
      const std::int64_t first =
          (static_cast<std::int64_t>(i) * rows.num_heads + part * own) * rows.head_size;
      const auto begin = state.output.begin() + first;
      to.insert(to.end(), begin, begin + own * rows.head_size);
    }
  };
  std::vector<std::int32_t> places;
  for (std::int64_t rank = 0; rank < parts; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const LseBase base = problem.op.lse_base;
    const MergedState exact = correct_state(ranks, r, base, rows, Arithmetic::kF64);
    const MergedState in_f32 = correct_state(ranks, r, base, rows, Arithmetic::kF32);
    for (std::int64_t part = 0; part < parts; ++part) {
      append(exact, part, values);
      append(in_f32, part, emulated);
      for (const std::int32_t row : rows.rows) {
        places.push_back(static_cast<std::int32_t>((rank * parts + part) * rows.num_tokens + row));
      }
    }
  }
  ToleranceQuery query;
  query.output = Dtype::kF32;
  return close("rank_output", output_tolerance(query), std::move(values), std::move(emulated),
               Dtype::kF32, std::move(places));
}

OpExpectations expect_dcp_correct(const Problem& problem, const OpInputs& inputs) {
  const Tensor& partial = inputs.at("partial_output");
  const Tensor& lses = inputs.at("partial_lse");
  const std::int64_t parts = partial.dim(0), tokens = partial.dim(1), heads = partial.dim(2);
  const std::int64_t width = partial.dim(3);
  OpExpectations expected;
  if (parts == 1) {
    Tensor copy(partial.dtype(), {tokens, heads, width});
    std::memcpy(copy.bytes(), partial.bytes(), partial.size_bytes());
    Tensor lse(Dtype::kF32, {heads, tokens});
    std::memcpy(lse.bytes(), lses.bytes(), lses.size_bytes());
    expected.outputs.push_back(equal("output", "semantics 7.3 identity of one rank", copy));
    expected.outputs.push_back(equal("lse", "semantics 7.3 identity of one rank", lse));
    expected.outputs.back().is_lse = true;
    return expected;
  }
  const std::vector<std::int32_t> chosen = checked_rows(problem, (parts + 1) * heads * width);
  const StateRows rows{chosen, tokens, heads, width};
  std::vector<PartialState> ranks;
  for (std::int64_t rank = 0; rank < parts; ++rank) {
    ranks.push_back({&partial, &lses, rank * tokens * heads * width, rank * heads * tokens, width});
  }
  const LseBase base = problem.op.lse_base;
  MergedState exact = combine_states(ranks, base, rows, Arithmetic::kF64);
  MergedState emulated = combine_states(ranks, base, rows, Arithmetic::kF32);
  ToleranceQuery query;
  query.output = partial.dtype();
  expected.outputs.push_back(close("output", output_tolerance(query), exact.output, emulated.output,
                                   partial.dtype(), chosen));
  expected.outputs.push_back(close_lse(std::move(exact), std::move(emulated), chosen));
  if (problem.dcp.comm != DcpComm::kA2a) {
    expected.outputs.push_back(expect_corrected(problem, ranks, rows));
  }
  return expected;
}

// ---- Caches -----------------------------------------------------------------------------------

/// The cache after a correct write of every new position, from the cells of `stored`.
Tensor written_cache(const OpInputs& inputs, const StoredKv& stored, Tensor* key_scales) {
  const Problem& base = inputs.base;
  const PagedCache& cache = inputs.cache;
  Tensor expected = cache.data;
  const CellWriter cells(cache.layout, stored, base.kv_cache.block_size);
  const std::vector<PositionRange> fresh = new_key_ranges(base);
  const std::vector<std::int64_t> starts = first_rows(base);
  const auto ranks = static_cast<std::int64_t>(base.dcp.world_size);
  const std::int64_t per_rank = cache.slot_mapping.num_elements() / ranks;
  const auto rank_bytes = static_cast<std::int64_t>(cache.data.size_bytes()) / ranks;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t* slot = cache.slot_mapping.data<std::int64_t>() + rank * per_rank;
    std::byte* data = expected.bytes() + rank * rank_bytes;
    for (std::size_t b = 0; b < fresh.size(); ++b) {
      for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p, ++slot) {
        if (*slot < 0) continue;
        const std::int64_t block = *slot / base.kv_cache.block_size;
        const std::int64_t offset = *slot % base.kv_cache.block_size;
        cells.write_key(data + cells.key_plane(block), starts[b] + p, offset);
        cells.write_value(data + cells.value_plane(block), starts[b] + p, offset);
        if (key_scales == nullptr) continue;
        cells.write_key_scales(key_scales->data<float>() +
                                   block * base.kv_cache.block_size * base.attention.num_kv_heads,
                               starts[b] + p, offset);
      }
    }
  }
  return expected;
}

OpExpectations expect_cache_write(const OpInputs& inputs) {
  OpExpectations expected;
  if (inputs.base.kv_cache.int8_level == 0) {
    expected.outputs.push_back(equal("kv_cache", "semantics 5.1, 5.5: cache bytes",
                                     written_cache(inputs, inputs.stored, nullptr)));
    return expected;
  }
  Tensor scales = inputs.cache.key_scale_cache;
  Tensor cache = written_cache(inputs, inputs.stored, &scales);
  expected.outputs.push_back(equal("kv_cache", "semantics 11.6: cache bytes", std::move(cache)));
  expected.outputs.push_back(equal("key_scale_cache", "semantics 11.6: scales", std::move(scales)));
  return expected;
}

Tensor written_entries(const OpInputs& inputs, const Tensor& entries) {
  const Problem& base = inputs.base;
  Tensor expected = inputs.mla_cache.data;
  const std::size_t bytes = static_cast<std::size_t>(entries.dim(1)) * dtype_size(entries.dtype());
  const std::int64_t* slot = inputs.mla_cache.slot_mapping.data<std::int64_t>();
  const std::vector<PositionRange> fresh = new_key_ranges(base);
  const std::vector<std::int64_t> starts = first_rows(base);
  for (std::size_t b = 0; b < fresh.size(); ++b) {
    for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p, ++slot) {
      std::memcpy(expected.bytes() + static_cast<std::size_t>(*slot) * bytes,
                  entries.bytes() + static_cast<std::size_t>(starts[b] + p) * bytes, bytes);
    }
  }
  return expected;
}

OpExpectations expect_mla_cache_write(const OpInputs& inputs) {
  OpExpectations expected;
  expected.outputs.push_back(equal("kv_cache", "semantics 8.4.1, 8.4.3: cache bytes",
                                   written_entries(inputs, inputs.entries)));
  return expected;
}

/// Row t is what position t - cu[b] + start[b] of request b reads as.
OpExpectations expect_gather(const Problem& problem, const OpInputs& inputs) {
  const auto k_scale = static_cast<float>(problem.kv_cache.k_scale.at(0));
  const StoredMlaCache stored =
      store_mla_cache(inputs.latents.kv_c, inputs.latents.k_pe, problem.kv_cache.dtype, k_scale);
  const bool packed = problem.kv_cache.dtype == KvCacheDtype::kFp8DsMla;
  const std::int64_t latent = problem.mla.kv_lora_rank;
  const std::int64_t width = latent + problem.mla.qk_rope_head_dim;
  const std::int64_t padding =
      packed || problem.op.raw ? 0
                               : inputs.at("token_to_seq").num_elements() - problem.num_tokens();
  const Dtype dtype = problem.op.raw ? stored.codes.dtype() : problem.attention.dtype;
  Tensor rows = poisoned_tensor(
      dtype, {problem.num_tokens() + padding, problem.op.raw ? stored.codes.dim(1) : width});
  const std::size_t raw_bytes =
      static_cast<std::size_t>(stored.codes.dim(1)) * dtype_size(stored.codes.dtype());
  std::int64_t t = 0;
  std::int64_t first = 0;
  for (const Request& request : problem.batch) {
    for (std::int64_t p = request.seq_len - request.query_len; p < request.seq_len; ++p, ++t) {
      const std::int64_t from = first + p;
      if (problem.op.raw) {
        std::memcpy(rows.bytes() + static_cast<std::size_t>(t) * raw_bytes,
                    stored.codes.bytes() + static_cast<std::size_t>(from) * raw_bytes, raw_bytes);
        continue;
      }
      for (std::int64_t d = 0; d < width; ++d) {
        rows.set(t * width + d,
                 d < latent ? stored.kv_c_dequantized.at(from * latent + d)
                            : stored.k_pe_dequantized.at(from * (width - latent) + d - latent));
      }
    }
    first += request.seq_len;
  }
  OpExpectations expected;
  expected.outputs.push_back(equal("output", "semantics 8.4.2 to 8.4.4: gathered bytes", rows));
  return expected;
}

// ---- Rotation ---------------------------------------------------------------------------------

/// Semantics §12.1.
Tolerance rope_tolerance(Dtype dtype) {
  Tolerance tolerance;
  tolerance.rule = "semantics 12 RoPE " + std::string(dtype_name(dtype));
  tolerance.atol = dtype == Dtype::kF32 ? 1e-5 : 1e-3;
  tolerance.rtol = dtype == Dtype::kF32 ? 1.3e-6 : (dtype == Dtype::kF16 ? 1e-3 : 1.6e-2);
  return tolerance;
}

/// [T, heads, columns first..first + count of x]: a part of every row that rotates on its own.
Tensor slice(const Tensor& x, std::int64_t first_head, std::int64_t heads, std::int64_t first,
             std::int64_t count) {
  Tensor part(x.dtype(), {x.dim(0), heads, count});
  const std::size_t size = dtype_size(x.dtype());
  std::byte* next = part.bytes();
  for (std::int64_t t = 0; t < x.dim(0); ++t) {
    for (std::int64_t h = first_head; h < first_head + heads; ++h) {
      const std::int64_t from = (t * x.dim(1) + h) * x.dim(2) + first;
      const std::size_t bytes = static_cast<std::size_t>(count) * size;
      std::memcpy(next, x.bytes() + static_cast<std::size_t>(from) * size, bytes);
      next += bytes;
    }
  }
  return part;
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
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = x.at(static_cast<std::int64_t>(i));
  std::vector<double> emulated = values;
  std::size_t from = 0;
  for (std::int64_t t = 0; t < x.dim(0); ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t d = 0; d < count; ++d, ++from) {
        const auto to = static_cast<std::size_t>((t * x.dim(1) + h) * x.dim(2) + first + d);
        values[to] = exact[from];
        emulated[to] = part.at(static_cast<std::int64_t>(from));
      }
    }
  }
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
  return store_kv(after, op_store_rule(problem, inputs.base));
}

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

// ---- Quantisation -----------------------------------------------------------------------------

/// How many elements were lost to saturation is a result of its own, and worth a notice.
void add_saturated(const Problem& problem, std::int64_t saturated, std::int64_t elements,
                   OpExpectations& expected) {
  expected.outputs.push_back(equal("num_saturated", "semantics 0.4: saturated elements",
                                   Tensor::from_i64(std::vector<std::int64_t>{saturated})));
  if (saturated == 0) return;
  expected.notices.push_back(fmt::format("{}/{}: {} of {} elements saturate in fp8",
                                         problem.scenario, problem.case_name, saturated, elements));
}

Tensor as_rows(const Tensor& x, std::int64_t count) {
  std::int64_t width = 1;
  for (std::size_t axis = 1; axis < x.shape().size(); ++axis) width *= x.shape()[axis];
  Tensor rows(x.dtype(), {count, width});
  if (!rows.empty()) std::memcpy(rows.bytes(), x.bytes(), rows.size_bytes());
  return rows;
}

OpExpectations expect_static(const Problem& problem, const Tensor& x, float scale,
                             std::vector<std::int64_t> shape, const char* rule) {
  Tensor codes(Dtype::kE4M3, std::move(shape));
  const std::int64_t saturated =
      quantise_fp8_static(x, scale, {codes.data<std::uint8_t>(), codes.size_bytes()});
  const std::int64_t elements = codes.num_elements();
  OpExpectations expected;
  expected.outputs.push_back(equal("output", rule, std::move(codes)));
  add_saturated(problem, saturated, elements, expected);
  return expected;
}

OpExpectations expect_group_output(const Problem& problem, const Tensor& x) {
  const OutputQuantSpec& quant = problem.output_quant;
  GroupFp8Rule rule;
  rule.group_size = quant.type == OutputQuantType::kFp8Group128 ? 128 : 64;
  rule.quant_group_size = rule.group_size;
  rule.ue8m0 = quant.ue8m0;
  rule.layout = quant.tma_aligned
                    ? ScaleLayout::kTmaAligned
                    : (quant.column_major ? ScaleLayout::kColumnMajor : ScaleLayout::kRowMajor);
  rule.scale_rows = x.dim(0);
  const std::int64_t groups = x.dim(1) / rule.group_size;
  const ScaleStrides strides = scale_strides(rule.layout, x.dim(0), groups);
  const bool by_column = rule.layout != ScaleLayout::kRowMajor;
  Tensor codes(Dtype::kE4M3,
               {x.dim(0), problem.attention.num_heads, problem.attention.v_head_size});
  Tensor scales =
      poisoned_tensor(Dtype::kF32, by_column ? std::vector<std::int64_t>{groups, strides.group}
                                             : std::vector<std::int64_t>{x.dim(0), groups});
  quantise_fp8_groups(x, rule, {codes.data<std::uint8_t>(), codes.size_bytes()},
                      {scales.data<float>(), static_cast<std::size_t>(scales.num_elements())});
  OpExpectations expected;
  expected.outputs.push_back(equal("output", "semantics 9.3: codes", std::move(codes)));
  expected.outputs.push_back(equal("output_scales", "semantics 9.3: scales", std::move(scales)));
  return expected;
}

OpExpectations expect_nvfp4_output(const Problem& problem, const Tensor& x) {
  const bool swizzle = problem.output_quant.swizzle;
  const std::int64_t blocks = x.dim(1) / kNvfp4BlockSize;
  const std::int64_t columns = swizzle ? (blocks + 3) / 4 * 4 : blocks;
  const std::int64_t bytes = nvfp4_scale_bytes(x.dim(0), x.dim(1), swizzle);
  Tensor codes(Dtype::kU8, {x.dim(0), x.dim(1) / 2});
  Tensor scales(Dtype::kE4M3, {columns == 0 ? 0 : bytes / columns, columns});
  quantise_nvfp4(x, static_cast<float>(problem.output_quant.scale), swizzle,
                 {codes.data<std::uint8_t>(), codes.size_bytes()},
                 {scales.data<std::uint8_t>(), scales.size_bytes()});
  OpExpectations expected;
  expected.outputs.push_back(equal("output", "semantics 9.4: codes", std::move(codes)));
  expected.outputs.back().e2m1_steps = true;
  expected.outputs.push_back(equal("output_scales", "semantics 9.4: scales", std::move(scales)));
  return expected;
}

OpExpectations expect_output_quant(const Problem& problem, const OpInputs& inputs) {
  const Tensor x = as_rows(inputs.at("input"), problem.num_tokens());
  switch (problem.output_quant.type) {
    case OutputQuantType::kFp8Group128:
    case OutputQuantType::kFp8Group64:
      return expect_group_output(problem, x);
    case OutputQuantType::kNvfp4:
      return expect_nvfp4_output(problem, x);
    case OutputQuantType::kNone:
    case OutputQuantType::kFp8Static:
      break;
  }
  return expect_static(problem, x, static_cast<float>(problem.output_quant.scale),
                       {x.dim(0), problem.attention.num_heads, problem.attention.v_head_size},
                       "semantics 9.2: codes");
}

/// Query, key and value heads of a projection.
std::array<Tensor, 3> projected(const Problem& problem, const OpInputs& inputs) {
  const AttentionSpec& a = problem.attention;
  const Tensor& rows = inputs.at("projection");
  return {slice(rows, 0, a.num_heads, 0, a.head_size),
          slice(rows, a.num_heads, a.num_kv_heads, 0, a.head_size),
          slice(rows, a.num_heads + a.num_kv_heads, a.num_kv_heads, 0, a.head_size)};
}

OpExpectations expect_int8(const Problem& problem, const OpInputs& inputs) {
  const std::array<Tensor, 3> heads = projected(problem, inputs);
  OpExpectations expected;
  const auto add = [&](const char* codes, const char* scales, Int8Quantised quantised) {
    expected.outputs.push_back(equal(codes, "semantics 11.2: codes", std::move(quantised.codes)));
    expected.outputs.push_back(equal(scales, "semantics 11.2: scales", std::move(quantised.scale)));
  };
  add("output", "output_scales", scaled_int8_quant_for_attn(heads[0], 2, true));
  add("key_output", "key_scales", scaled_int8_quant_for_attn(heads[1], 2, false));
  if (problem.kv_cache.int8_level != 1) return expected;
  const Tensor given =
      Tensor::from_f32(inputs.attention.value_channel_scale,
                       {problem.attention.num_kv_heads, problem.attention.head_size});
  add("value_output", "value_scales",
      scaled_int8_quant_for_attn(heads[2], 0, false,
                                 problem.kv_cache.value_scale_file ? &given : nullptr));
  return expected;
}

OpExpectations expect_quantize(const Problem& problem, const OpInputs& inputs) {
  const auto q_scale = static_cast<float>(problem.kv_cache.q_scale);
  if (problem.op.mla) {
    const std::int64_t tokens = problem.num_tokens();
    const Tensor& nope = inputs.at("ql_nope");
    const Tensor& rope = inputs.at("q_pe");
    const auto first = [&](const Tensor& x) { return slice(x, 0, x.dim(1), 0, x.dim(2)); };
    Tensor ql(nope.dtype(), {tokens, nope.dim(1), nope.dim(2)});
    Tensor qr(rope.dtype(), {tokens, rope.dim(1), rope.dim(2)});
    const Tensor all_ql = first(nope), all_qr = first(rope);
    if (!ql.empty()) std::memcpy(ql.bytes(), all_ql.bytes(), ql.size_bytes());
    if (!qr.empty()) std::memcpy(qr.bytes(), all_qr.bytes(), qr.size_bytes());
    MlaQuantisedQuery quantised = quantise_mla_query(ql, qr, q_scale);
    const std::int64_t elements = quantised.codes.num_elements();
    OpExpectations expected;
    expected.outputs.push_back(equal("output", "semantics 8.7: codes", std::move(quantised.codes)));
    add_saturated(problem, quantised.saturated, elements, expected);
    return expected;
  }
  if (problem.kv_cache.int8_level > 0) return expect_int8(problem, inputs);
  const Tensor query = projected(problem, inputs)[0];
  return expect_static(problem, as_rows(query, query.dim(0)), q_scale, query.shape(),
                       "semantics 9.2: codes");
}

OpExpectations expect_mm_quant(const Problem& problem, const OpInputs& inputs) {
  const MmEncoderSpec& mm = problem.mm_encoder;
  const std::array<Tensor, 3> heads = projected(problem, inputs);
  std::array<float, 3> scales{};
  std::array<bool, 3> skip{};
  if (mm.fp8_scale_path) {
    const MmScaleFile file = read_mm_scales(*mm.fp8_scale_path);
    const MmLayerScales& layer =
        require_mm_scales(file, mm.layer_names.front(), *mm.fp8_scale_path);
    const std::array<double, 3> loaded{layer.q, layer.k, layer.v};
    for (std::size_t i = 0; i < 3; ++i) {
      scales[i] = static_cast<float>(loaded[i]);
      skip[i] = loaded[i] == 1.0;
    }
  } else {
    std::array<float, 3> amax{};
    for (std::size_t i = 0; i < 3; ++i) amax[i] = tensor_amax(view_of(heads[i]), mm.amax);
    AmaxHistory history;
    history.update(amax);
    scales = history.scales();
  }
  constexpr std::array<const char*, 3> kNames{"query_codes", "key_codes", "value_codes"};
  OpExpectations expected;
  for (std::size_t i = 0; i < 3; ++i) {
    MmQuantised quantised = quantise_fp8_maybe_pad_head_dim(view_of(heads[i]), scales[i], skip[i]);
    if (quantised.saturated > 0) {
      expected.notices.push_back(
          fmt::format("{}/{}: {} of {} elements saturate in {}", problem.scenario,
                      problem.case_name, quantised.saturated, heads[i].num_elements(), kNames[i]));
    }
    expected.outputs.push_back(
        equal(kNames[i], "semantics 10.5: codes", std::move(quantised.codes)));
  }
  expected.outputs.push_back(
      equal("fp8_scales", "semantics 10.6: scales", Tensor::from_f32(scales)));
  return expected;
}

OpExpectations expect(const Problem& problem, const OpInputs& inputs,
                      const PipelineOutput* output) {
  const bool mla = problem.op.mla;
  switch (*problem.op.name) {
    case OpKind::kReshapeAndCache:
      return mla ? expect_mla_cache_write(inputs) : expect_cache_write(inputs);
    case OpKind::kMerge:
      return expect_merge(problem, inputs);
    case OpKind::kGather:
      return expect_gather(problem, inputs);
    case OpKind::kRope:
    case OpKind::kRopeAndCache:
      return mla ? expect_mla_rope(problem, inputs, output) : expect_rope(problem, inputs, output);
    case OpKind::kQuantize:
      return expect_quantize(problem, inputs);
    case OpKind::kDcpCorrect:
      return expect_dcp_correct(problem, inputs);
    case OpKind::kOutputQuant:
      return expect_output_quant(problem, inputs);
    case OpKind::kMmQuant:
      break;
  }
  return expect_mm_quant(problem, inputs);
}

}  // namespace

OpExpectations expect_op(const Problem& problem, const OpInputs& inputs,
                         const PipelineOutput* output) {
  OpExpectations expected = expect(problem, inputs, output);
  expected.num_tokens = problem.num_tokens();
  return expected;
}

std::string op_output_name(const Problem& problem) {
  if (problem.op.name == OpKind::kReshapeAndCache) return "kv_cache";
  return problem.op.name == OpKind::kMmQuant ? "query_codes" : "output";
}

}  // namespace attnbench
