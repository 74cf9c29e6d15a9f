// Decode context parallelism of the FlashAttention backends (semantics §7.6): the ranks of a group
// as caches and buffers of one process, in upstream's order of operations.
#pragma once

#include <memory>

#include "backends/backend.h"

namespace attnbench {

/// Steps write_cache, all_gather_query, attend_context, exchange, attend_new, merge. Each does the
/// work of all ranks, one after the other, so a time is that of the whole group on one device;
/// the two collectives are steps only. PipelineOutput::more holds what the ranks computed before
/// the exchange: rank_output f32 [W, T, H, Dv] and rank_lse f32 [W, H, T].
std::unique_ptr<Pipeline> make_dcp_pipeline(const Problem& problem, const BackendInputs& inputs,
                                            Ops& ops, const KernelRules& rules);

Facts explain_dcp(const Problem& problem, int num_sms);

}  // namespace attnbench
