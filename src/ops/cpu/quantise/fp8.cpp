// Quantisation of activations to fp8 with one static scale or a scale per group of columns
// (semantics §8.7 step 2, §9.2, §9.3). The static form multiplies by the reciprocal and the form by
// groups divides: each as its definition says, since the codes differ where a value is near a tie.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/common/numeric.cuh"
#include "kernels/params_quant.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/quantise/fp8_code.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

/// A row of a source as floats.
template <typename Params>
float* load_source_row(const Params& params, std::int64_t row, Scratch& scratch) {
  float* values = room_for(scratch.line, params.num_columns);
  load_wide_row(params.source_element,
                element_at(params.source_element, params.source, row * params.source_row_stride),
                params.num_columns, values);
  return values;
}

/// Runs quantise_row(row, scratch) -> saturated elements for every row and counts.
template <typename Params, typename QuantiseRow>
void for_each_row(const Params& params, Workers& workers, const QuantiseRow& quantise_row) {
  std::atomic<attn::i64> saturated = 0;
  workers.pool.parallel_for(params.num_rows, [&](std::int64_t row, int thread) {
    saturated += quantise_row(row, workers.scratch[static_cast<std::size_t>(thread)]);
  });
  if (params.num_saturated != nullptr) *params.num_saturated += saturated;
}

/// max(scale, 1e-10) rounded up to a power of two; infinity stays.
float round_up_to_power_of_two(float scale) {
  // Why: adding the largest mantissa carries into the exponent unless the mantissa is 0.
  const attn::u32 bits = attn::float_bits(std::max(scale, 1e-10f));
  return attn::float_from_bits((bits + 0x7FFFFFu) & 0x7F800000u);
}

/// Scale of one group; with ue8m0 a power of two, which a format of exponents can hold.
float group_scale(const float* values, int count, bool ue8m0) {
  float largest = 1e-10f;
  for (int i = 0; i < count; ++i) largest = std::fmax(largest, std::fabs(values[i]));
  const float scale = largest / 448.0f;
  return ue8m0 ? round_up_to_power_of_two(scale) : scale;
}

}  // namespace

void quantise_fp8(const attn::StaticQuantiseParams& params, Workers& workers) {
  const float factor = 1.0f / params.scale[0];
  for_each_row(params, workers, [&](std::int64_t row, Scratch& scratch) {
    float* values = load_source_row(params, row, scratch);
    for (attn::i64 i = 0; i < params.num_columns; ++i) values[i] = scaled_by(values[i], factor);
    return encode_e4m3_row(values, params.num_columns, params.codes + row * params.code_row_stride);
  });
}

void quantise_fp8_groups(const attn::GroupQuantiseParams& params, Workers& workers) {
  const attn::i64 num_groups = params.num_columns / params.group_size;
  for_each_row(params, workers, [&](std::int64_t row, Scratch& scratch) {
    float* values = load_source_row(params, row, scratch);
    for (attn::i64 group = 0; group < num_groups; ++group) {
      float* members = values + group * params.group_size;
      const float scale = group_scale(members, params.group_size, params.ue8m0 != 0);
      for (int i = 0; i < params.group_size; ++i) members[i] /= scale;
      params.scales[row * params.scale_row_stride + group * params.scale_group_stride] = scale;
    }
    return encode_e4m3_row(values, params.num_columns, params.codes + row * params.code_row_stride);
  });
}

}  // namespace attnbench::cpu
