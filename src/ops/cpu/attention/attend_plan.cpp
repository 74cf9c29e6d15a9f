// Decode by an explicit plan of which part works on which blocks, and the combination of the splits
// by their LSE (semantics §8.8).
#include "ops/cpu/attention/attend_plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "metadata/parts/decode_plan.h"
#include "ops/cpu/attention/attend_block.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/plan_rows.h"

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

/// A block of rows of the request of an item.
struct Task {
  const PlanItem* item;
  RowBlock block;
};

/// Every item once for every block of rows of its request.
std::vector<Task> make_tasks(const attn::AttendParams& params, const std::vector<PlanItem>& items) {
  std::vector<std::vector<RowBlock>> blocks(static_cast<std::size_t>(params.num_requests));
  for (const RowBlock& block : row_blocks(params)) {
    blocks[static_cast<std::size_t>(block.request - params.first_request)].push_back(block);
  }
  std::vector<Task> tasks;
  for (const PlanItem& item : items) {
    for (const RowBlock& block :
         blocks[static_cast<std::size_t>(item.request - params.first_request)]) {
      tasks.push_back({&item, block});
    }
  }
  return tasks;
}

/// The splits of one (token, head) pair.
struct Splits {
  std::int64_t first;   // row of split 0 in [R, H]
  std::int64_t stride;  // rows between splits
  int count;
};

/// Combines into values [Dv] and returns the LSE.
float combine_row(const attn::AttendParams& params, const attn::PlanParams& plan,
                  const Splits& splits, float* values) {
  float maximum = kNegInf;
  for (int split = 0; split < splits.count; ++split) {
    const float lse = plan.partial_lse[splits.first + split * splits.stride];
    // The negated test lets a NaN through, so that it is seen in the result.
    if (!(lse <= maximum)) maximum = lse;
  }
  std::fill_n(values, params.v_head_size, 0.0f);
  float total = 0.0f;
  for (int split = 0; split < splits.count; ++split) {
    const std::int64_t row = splits.first + split * splits.stride;
    const float lse = plan.partial_lse[row];
    if (lse == kNegInf) continue;  // an empty split; also keeps -inf - -inf out of the exponent
    const float weight = lse == maximum ? 1.0f : std::exp(lse - maximum);
    if (weight == 0.0f) continue;
    const float* part = plan.partial_output + row * params.v_head_size;
    total += weight;
    for (int d = 0; d < params.v_head_size; ++d) values[d] += weight * part[d];
  }
  if (total == 0.0f) return kNegInf;
  const float factor = 1.0f / total;
  for (int d = 0; d < params.v_head_size; ++d) values[d] *= factor;
  return maximum + std::log(total);
}

/// Nothing for a request with one split: attend_plan() has stored its output.
void combine_request(const attn::AttendParams& params, const attn::PlanParams& plan, int index,
                     Scratch& scratch) {
  const int count = plan.num_splits[index + 1] - plan.num_splits[index];
  if (count <= 1) return;
  scratch.reserve(params.head_size, params.v_head_size, 0);
  const int* query_start = params.query_start_loc + params.first_request + index;
  const std::int64_t query_len = query_start[1] - query_start[0];
  for (std::int64_t i = 0; i < query_len; ++i) {
    for (int head = 0; head < params.num_heads; ++head) {
      const Splits splits{(plan.partial_start_loc[index] + i) * params.num_heads + head,
                          query_len * params.num_heads, count};
      const float lse = combine_row(params, plan, splits, scratch.line.data());
      store_lse(params, query_start[0] + i, head, lse);
      store_output_row(params, query_start[0] + i, head, scratch.line.data());
    }
  }
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
      // Requests between the first and the last of a part are its own from end to end.
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

void make_plan(const attn::MakePlanParams& params, Workers&) {
  const auto count = static_cast<std::size_t>(params.num_requests);
  const std::span<const std::int32_t> lens(params.seq_lens + params.first_request, count);
  const std::span<const std::int32_t> starts(params.query_start_loc + params.first_request,
                                             count + 1);
  const DecodePlan plan = plan_decode(lens, params.num_parts, params.fixed_overhead);
  static_assert(sizeof(DecodePart) == attn::kPlanRecord * sizeof(int));
  std::memcpy(params.parts, plan.parts.data(), plan.parts.size() * sizeof(DecodePart));
  std::ranges::copy(plan.num_splits, params.num_splits);
  std::ranges::copy(plan_partial_start_loc(plan.num_splits, starts), params.partial_start_loc);
}

void attend_plan(const attn::AttendParams& params, const attn::PlanParams& plan, Workers& workers) {
  const std::vector<PlanItem> items = plan_items(params, plan);
  const std::vector<Task> tasks = make_tasks(params, items);
  workers.pool.parallel_for(
      static_cast<std::int64_t>(tasks.size()), [&](std::int64_t i, int thread) {
        const Task& task = tasks[static_cast<std::size_t>(i)];
        Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
        const std::int64_t seq_len = params.seq_lens[task.block.request];
        const KeyRun keys{task.item->keys.begin, std::min(task.item->keys.end, seq_len)};
        attend_block(params, task.block, keys, task.item->split == 0, scratch);
        store_plan_rows(params, plan, *task.item, task.block, scratch);
      });
}

void combine_plan(const attn::AttendParams& params, const attn::PlanParams& plan,
                  Workers& workers) {
  workers.pool.parallel_for(params.num_requests, [&](std::int64_t index, int thread) {
    combine_request(params, plan, static_cast<int>(index),
                    workers.scratch[static_cast<std::size_t>(thread)]);
  });
}

}  // namespace attnbench::cpu
