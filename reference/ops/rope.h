// Rotary position embedding and its table of cosines and sines (semantics §12.1). Reference of the
// operations `rope` and `rope_and_cache`.
//
// Two results: apply_rope rounds every f32 operation as the definition has it, for what is written
// to a cache and compared by bytes; rotated_rows is the same rotation in f64, for what has a
// tolerance. T tokens, H query heads, Hk KV heads, D head size, rot <= D the rotary dimension.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace attnbench {

/// Which two elements of a head form pair k of rot/2.
enum class RopeStyle {
  kNeox,  // (k, k + rot/2)
  kGptJ   // (2k, 2k + 1)
};

/// [max_pos, rot]: cosines in the first half of a row, sines in the second, of the angle
/// position * base^(-2k/rot), computed in f64 and stored as `dtype`. E-SHAPE for an odd rot.
Tensor make_cos_sin_cache(std::int64_t max_pos, std::int64_t rot, Dtype dtype,
                          double base = 10000.0);

/// Rotates elements [0, rot) of every head of query [T, H, D] and key [T, Hk, D] (may be null) in
/// place: x' = x cos - y sin, y' = y cos + x sin, each operation in f32, stored in the tensor's
/// dtype. cos_sin_cache [max_pos, rot], f32 or of that dtype; positions [T].
/// E-VALUE: a position outside [0, max_pos). E-SHAPE: odd rot, rot > D, row counts. E-DTYPE.
/// Nothing is changed on an error.
void apply_rope(std::span<const std::int64_t> positions, const Tensor& cos_sin_cache,
                RopeStyle style, Tensor& query, Tensor* key = nullptr);

/// The rotated rows [T, heads, D] of x in f64, elements beyond the rotary dimension as they are.
/// Errors as apply_rope.
std::vector<double> rotated_rows(std::span<const std::int64_t> positions,
                                 const Tensor& cos_sin_cache, RopeStyle style, const Tensor& x);

}  // namespace attnbench
