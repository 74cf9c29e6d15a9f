// Tensors of a multimodal encoder's attention: seeded or from inputs.file, with the lengths that
// its wrappers take, and the interleaved buffer that V is a view into (semantics §10).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "inputs/make_inputs.h"

namespace attnbench {

struct MmInputs {
  /// query [T + padding, H, D], key and value [S, Hk, D], lengths of one sequence a request.
  AttentionInputs tensors;
  /// [n+1], or nothing for the form of mm_encoder.batch_size and kv_len (§10.2).
  std::optional<std::vector<std::int32_t>> cu_seqlens;
};

/// Errors: as make_inputs.
MmInputs make_mm_inputs(const Problem& problem);

/// Q, K and V of forward `step` of layer `layer` before the measured one, for the histories of
/// dynamic scales: drawn with a seed of their own; those of inputs.file are the same in every step.
AttentionInputs make_mm_observation(const Problem& problem, std::size_t layer, int step);

/// hidden_size / tp_size: elements of Q, K or V in a row of the interleaved buffer.
std::int64_t mm_query_unit(const Problem& problem);

/// The rows that a projection leaves behind: Q, K and V side by side. Only V is filled in; what
/// lies around it is NaN, since nothing may read it.
struct InterleavedValue {
  Tensor rows;                    // [T, token_stride]
  std::int64_t token_stride = 0;  // 3 * mm_query_unit
  std::int64_t first = 0;         // element of V within a row; heads lie head_size apart
};
/// Errors: E-CONFIG when a row is too short for the value heads.
InterleavedValue interleave_value(const Problem& problem, const AttentionInputs& inputs);

}  // namespace attnbench
