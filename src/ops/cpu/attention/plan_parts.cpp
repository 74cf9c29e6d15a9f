#include "ops/cpu/attention/plan_parts.h"

#include <algorithm>
#include <limits>

#include "ops/cpu/attention/attend_block.h"
#include "ops/cpu/attention/output_row.h"

namespace attnbench::cpu {
namespace {

/// Record of one part, in the order of PlanParams::parts.
struct Part {
  int begin_req;
  int end_req;
  int begin_block;
  int end_block;
  int begin_split;
};

Part part_at(const attn::PlanParams& plan, int index) {
  const int* record = plan.parts + attn::i64{index} * attn::kPlanRecord;
  return {record[0], record[1], record[2], record[3], record[4]};
}

}  // namespace

std::vector<PlanItem> plan_items(const attn::AttendParams& params, const attn::PlanParams& plan) {
  std::vector<PlanItem> items;
  for (int index = 0; index < plan.num_parts; ++index) {
    const Part part = part_at(plan, index);
    for (int request = part.begin_req; request <= part.end_req; ++request) {
      PlanItem item{
          params.first_request + request, 0, {0, std::numeric_limits<std::int64_t>::max()}};
      if (request == part.begin_req) {
        item.split = part.begin_split;
        item.keys.begin = std::int64_t{part.begin_block} * attn::kPlanBlock;
      }
      if (request == part.end_req) item.keys.end = std::int64_t{part.end_block} * attn::kPlanBlock;
      items.push_back(item);
    }
  }
  return items;
}

void store_plan_rows(const attn::AttendParams& params, const attn::PlanParams& plan,
                     const PlanItem& item, const RowBlock& block, Scratch& scratch) {
  const int request = item.request - params.first_request;
  const bool is_whole = plan.num_splits[request + 1] - plan.num_splits[request] == 1;
  const std::int64_t query_start = params.query_start_loc[item.request];
  const std::int64_t query_len = params.query_start_loc[item.request + 1] - query_start;
  for (int row = 0; row < block.num_rows; ++row) {
    const RowPlace place = place_of_row(params, block, row);
    const float lse = row_lse(scratch, row);
    normalise_row(params, row, scratch);
    if (is_whole) {
      store_lse(params, place.token, place.head, lse);
      store_output_row(params, place.token, place.head, scratch.line.data());
      continue;
    }
    const std::int64_t partial_row =
        plan.partial_start_loc[request] + item.split * query_len + (place.token - query_start);
    const std::int64_t at = partial_row * params.num_heads + place.head;
    plan.partial_lse[at] = lse;
    std::copy_n(scratch.line.data(), params.v_head_size,
                plan.partial_output + at * params.v_head_size);
  }
}

}  // namespace attnbench::cpu
