// Scales of an fp8 cache made from the case's own data: calculate_kv_scales (semantics §5.4).
//
// vLLM takes them from the first step that a model runs and keeps them. A case is one step, so they
// come from the tokens that it brings, and not from the context, which an earlier step wrote. They
// replace those of the problem before anything is stored, so that pipelines, reference and result
// all see the numbers that were used.
#pragma once

#include "inputs/make_inputs.h"
#include "inputs/mla_inputs.h"

namespace attnbench {

/// What a largest element is divided by (vLLM's Q_, K_ and V_SCALE_CONSTANT), so what the scaled
/// one becomes. e4m3 reaches 448: the rest is room for later steps, whose elements may be larger
/// than any that the scales were made from.
struct KvScaleConstants {
  float query = 200.0f;
  float key = 200.0f;
  float value = 100.0f;
};
/// Those of the problem.
KvScaleConstants kv_scale_constants(const Problem& problem);

/// Whether the problem wants them and has a cache of one scale for a tensor: other formats keep
/// their scales in the cache or take them from a file.
bool calculates_kv_scales(const Problem& problem);

/// Sets q_scale, k_scale and v_scale to amax / range of what the step brings: its queries, and the
/// keys and values that it writes. 0 becomes 1, with a notice; a NaN among those elements becomes
/// the scale, which store_kv() then refuses. Nothing happens to other problems, nor where only
/// shapes are wanted.
void adopt_calculated_scales(AttentionInputs& inputs, Problem& problem);
/// The same with kv_c for keys and values; k_pe is not looked at.
void adopt_calculated_scales(MlaInputs& inputs, Problem& problem);

/// f32 [3]: the scales of query, key and value that the case uses, in the order in which the step
/// of a pipeline that computes them itself leaves them: it must come to the same numbers.
Tensor kv_scales_of(const Problem& problem);

}  // namespace attnbench
