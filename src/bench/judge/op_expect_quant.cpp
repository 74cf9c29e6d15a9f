// Codes and scales by the reference's quantisers, in the layouts of the operation's outputs.
#include "bench/judge/op_expect_quant.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "bench/tensor_list.h"
#include "inputs/cache/int8_rows.h"
#include "inputs/cache/poison.h"
#include "inputs/files/encoder_scale_file.h"
#include "reference/mla/latent_query.h"
#include "reference/quantise/amax_history.h"
#include "reference/quantise/encoder.h"
#include "reference/quantise/int8.h"
#include "reference/quantise/nvfp4.h"
#include "reference/quantise/output_quant.h"
#include "reference/quantise/strided_tensor.h"

namespace attnbench {

namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

OpExpectations expect_quantize(const Problem& problem, const OpInputs& inputs) {
  const auto q_scale = static_cast<float>(problem.kv_cache.q_scale);
  if (problem.op.mla) {
    const std::int64_t tokens = problem.num_tokens();
    MlaQuantisedQuery quantised = quantise_mla_query(
        first_rows(inputs.at("ql_nope"), tokens), first_rows(inputs.at("q_pe"), tokens), q_scale);
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

}  // namespace attnbench
