// The work items of a decode plan, and where the result of each goes (semantics §8.8).
#pragma once

#include <vector>

#include "kernels/params_mla.h"
#include "ops/cpu/attention/row_block.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// What one part does for one request.
struct PlanItem {
  int request = 0;  // absolute: first_request is added
  int split = 0;
  KeyRun keys;  // the last block may reach beyond the keys that there are
};

/// Every (part, request) of the plan once, in the order of the parts.
std::vector<PlanItem> plan_items(const attn::AttendParams& params, const attn::PlanParams& plan);

/// Stores the finished rows of `block` that `scratch` holds: as output and LSE where the request
/// has one split, as partials where it has more.
void store_plan_rows(const attn::AttendParams& params, const attn::PlanParams& plan,
                     const PlanItem& item, const RowBlock& block, Scratch& scratch);

}  // namespace attnbench::cpu
