// How much of what is stored the scales clip: elements whose nearest code would lie beyond the
// largest one that the format has.
//
// Only scales that were chosen before the step can do that: k_scale, v_scale and q_scale of an
// 8-bit float cache, by tensor or by head, and the scales of int8 values by channel.
//
// A scale that is too small costs nothing that a comparison of kernels could show, because every
// kernel stores the same clipped codes. So it is counted here, from the values themselves. Scales
// that a step computes from its own data (per token and head, int8 keys) clip nothing.
#pragma once

#include <cstdint>
#include <span>

#include "core/numbers/dtype.h"
#include "core/tensor.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"

namespace attnbench {

/// Elements of `source` [rows, ...] for which |x / scale| rounds beyond the largest value of
/// `codes` (e4m3, e5m2, int8). NaN is not counted. `scales`: one, or as many as divide the elements
/// of a row into equal parts, e.g. one a head or one a channel.
std::int64_t count_saturated(const Tensor& source, std::span<const float> scales, Dtype codes);

/// Shares of all elements, 0 to 1. Values have scales of their own, and in many models a range of
/// their own, so the two are told apart.
struct KvSaturation {
  double key = 0;
  double value = 0;
};

/// What `rule` clips of keys and values.
KvSaturation kv_saturation(const AttentionInputs& inputs, const StoreRule& rule);

/// What the static scale of an e4m3 query clips of its rows that are tokens.
double query_saturation(const AttentionInputs& inputs, double q_scale);

}  // namespace attnbench
