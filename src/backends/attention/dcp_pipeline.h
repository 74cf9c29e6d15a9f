// Decode context parallelism of the FlashAttention backends (semantics §7.6): the ranks of a group
// as caches and buffers of one process, in upstream's order of operations. The context of a request
// is striped over the ranks, while the keys of this step are on all of them, so the two are
// attended apart and merged:
//
//   write_cache       its tokens' keys and values into each rank's part of the cache
//   all_gather_query  every rank receives the query heads of all
//   attend_context    all heads over the rank's own context keys, without a causal mask
//   all_gather_lse, correct, reduce_scatter or all_reduce; with a2a pack, all_to_all, combine
//                     partial results go to the ranks whose heads they are (ranks/exchange.h)
//   attend_new        own heads over the keys of this step, under the problem's mask
//   merge             context and new keys into the output of the rank's heads
//
// With dcp.overlap attend_new comes before attend_context, beside the gather: between
// all_gather_query and await_query where ranks are simulated, in the one step gather_and_attend_new
// where they are real. The steps with "attend" in their names and merge count in the time of the
// attention; the others are shown beside it. Simulated ranks spend nothing on a network.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "backends/device_buffers.h"

namespace attnbench {

/// A user's kernel in the place of attend_context, and what whoever changes inputs between runs
/// has to know.
struct DcpUsersKernel {
  /// Called once for each rank of this process when all of its memory is there: all heads over the
  /// `rank`'s own context, output and LSE in f32. What it gives back runs the call.
  std::function<std::function<void()>(DeviceBuffers& memory, const attn::AttendParams& call,
                                      int rank)>
      add_call;
  // Set by the pipeline.
  std::vector<const void*> queries;  // [T, H / W, D] of each rank, before they are gathered
  attn::CacheWriteParams write{};    // the new keys and values
  std::size_t attend_step = 0;
};

/// Each step does the work of all ranks, one after the other, so a time is that of the whole group
/// on one device. PipelineOutput::more holds what the ranks computed before the exchange:
/// rank_output f32 [W, T, H, Dv] and rank_lse f32 [W, H, T], which are judged rank by rank, so that
/// an error names the rank that made it.
///
/// `rules` are the backend's. `inputs` have the caches of all ranks, one behind the other in one
/// tensor, and a slot mapping for each rank, in which tokens of other ranks are -1; W divides the
/// number of heads, and the cache is not quantised. Errors: E-CAPACITY.
std::unique_ptr<Pipeline> make_dcp_pipeline(const Problem& problem, const BackendInputs& inputs,
                                            Ops& ops, const KernelRules& rules,
                                            DcpUsersKernel* users = nullptr);

/// Splits of a rank's context keys for the decodes that lead the batch: flash decoding. 1 where no
/// request of one token does, with a window, and for batch-invariant results.
int dcp_context_splits(const Problem& problem, int num_sms);

/// Ranks, context tokens of each (the stripes of short requests may leave some ranks with less work
/// than others), exchange and splits, for `attnbench explain`. Splits depend on the number of
/// multiprocessors, `num_sms`, and are those of the rank with the longest context: all ranks take
/// the same number, so that their partial buffers are one size.
Facts explain_dcp(const Problem& problem, int num_sms);

}  // namespace attnbench
