// Single operations on partial results of attention: each partial is an output with the LSE of the
// keys that it has seen, and both together make the result over all keys (semantics §6.3, §7.3 to
// §7.5). They are what splits, cascades and decode context parallelism end with.
#pragma once

#include "backends/op/pipeline.h"

namespace attnbench {

/// Prefix and suffix, [T, H, D] with LSE [H, T], into "output" and "lse". Rows from
/// op.tokens_with_context on have no prefix and take the suffix as it is; the output is e4m3 where
/// output_quant is fp8_static.
void queue_merge(OpPipeline& op);

/// Partials of W ranks, [W, T, H, D] with LSE [W, H, T] to the base op.lse_base, into the output of
/// all heads. dcp.comm says how: corrected by each rank, then summed over the ranks (ag_rs, ag_ar),
/// or exchanged by heads and combined (a2a). The timed step is the arithmetic; what moves between
/// ranks are steps beside it. One rank copies.
void queue_dcp_correct(OpPipeline& op);

}  // namespace attnbench
