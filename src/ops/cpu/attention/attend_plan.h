// The work items of a decode plan, and where the result of each goes (semantics §8.8).
//
// A plan deals the blocks of keys of a batch to a fixed number of parts, so that every
// multiprocessor has about the same work. A part works through the end of one request, whole
// requests and the beginning of another; a request that more than one part works on is split. The
// CPU takes every (part, request) for itself, in any order: what counts are the bounds of the
// splits, which fix what is summed with what, as on the GPU.
//
// Dense and sparse decodes share this; combine_plan() puts the splits of either together.
#pragma once

#include <vector>

#include "kernels/params_mla.h"
#include "ops/cpu/attention/row_block.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// What one part does for one request.
struct PlanItem {
  int request = 0;  // absolute: first_request is added
  int split = 0;    // among the splits of the request; split 0 has the sink
  KeyRun keys;      // the last block may reach beyond the keys that there are
};

/// Every (part, request) of the plan once, in the order of the parts.
std::vector<PlanItem> plan_items(const attn::AttendParams& params, const attn::PlanParams& plan);

/// Stores the finished rows of `block` that `scratch` holds: as output and LSE where the request
/// has one split, as normalised partials with their LSE where it has more.
void store_plan_rows(const attn::AttendParams& params, const attn::PlanParams& plan,
                     const PlanItem& item, const RowBlock& block, Scratch& scratch);

}  // namespace attnbench::cpu
