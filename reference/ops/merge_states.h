// Merging partial attention results of the same rows: prefix with suffix, and the ranks of a
// decode-context group (semantics §6.3, §7.3, §7.5). Reference of the single operations `merge` and
// `dcp_correct`.
//
// The states are borrowed and described by offsets and strides, since ranks lie one after the other
// in one buffer and padded outputs have a larger stride than their head size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"

namespace attnbench {

/// A partial result: normalised outputs and their LSEs. Element (t, h, d) of the output lies at
/// first_output + (t * H + h) * head_stride + d, the LSE of (t, h) at first_lse + h * T + t.
struct PartialState {
  const Tensor* output = nullptr;
  const Tensor* lse = nullptr;  // f32
  std::int64_t first_output = 0;
  std::int64_t first_lse = 0;
  std::int64_t head_stride = 0;
};

/// The rows to compute and the extents of the partial results.
struct StateRows {
  std::span<const std::int32_t> rows;
  std::int64_t num_tokens = 0;  // T
  std::int64_t num_heads = 0;   // H
  std::int64_t head_size = 0;   // D
};

struct MergedState {
  std::vector<double> output;  // [rows, H, D]
  std::vector<double> lse;     // [H, rows]
};

/// f64, or sums and weights in f32 as a kernel has them: the yardstick of err_ratio.
enum class Arithmetic { kF64, kF32 };

/// merge_attn_states: rows t >= num_merged are the suffix. Both infinities mean an empty part; two
/// empty parts give 0 and -inf; a part of weight 0 contributes exactly 0; a NaN LSE propagates.
MergedState merge_states(const PartialState& prefix, const PartialState& suffix,
                         std::int64_t num_merged, const StateRows& rows, Arithmetic arithmetic);

/// The sum over the ranks of partial * base^(lse - LSE); LSE in the base of the partials. NaN and
/// +inf LSEs count as empty.
MergedState combine_states(std::span<const PartialState> ranks, LseBase base, const StateRows& rows,
                           Arithmetic arithmetic);
/// One rank's share of that sum: exactly 0 where its weight is 0.
MergedState correct_state(std::span<const PartialState> ranks, std::size_t rank, LseBase base,
                          const StateRows& rows, Arithmetic arithmetic);

}  // namespace attnbench
