// Combining attention over parts of the keys in f64, for the literal forms of the reference
// (semantics §4.3, §6.3, §7.3, §15.4).
//
// A part is a normalised output with its log-sum-exp. The functions differ in what an odd LSE
// means, because the definitions do: ranks of a DCP group treat NaN as empty, a merge of prefix and
// suffix lets it through. reference/ops/merge_states.h has the same mathematics for the single
// operations; it works on stored tensors, this on results of the reference, and neither uses the
// other.
#pragma once

#include <cstdint>
#include <span>

#include "reference/attention.h"

namespace attnbench {

/// One (row, head) out of several partial results of the same shape: weights e^(lse_n - LSE), a
/// part of weight 0 contributes exactly 0. NaN and +inf LSEs count as empty (§7.3).
ReferenceOutput combine_partials(std::span<const ReferenceOutput> parts);

/// §6.3: rows whose token is below `merge_end` merge prefix and suffix, the others are the suffix.
/// +inf counts as empty; a NaN LSE propagates.
ReferenceOutput merge_partials(const ReferenceOutput& prefix, const ReferenceOutput& suffix,
                               std::int32_t merge_end);

/// The heads [begin, end) of a result.
ReferenceOutput slice_heads(const ReferenceOutput& whole, int begin, int end);

}  // namespace attnbench
