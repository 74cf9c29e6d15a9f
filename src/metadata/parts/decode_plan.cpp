// Dealing of blocks to parts: each part takes one payload, request after request, and a request
// that a part leaves unfinished is a split more. The records are what the kernel reads; they are
// compared with upstream's, so ties and empty requests are treated as there.
#include "metadata/parts/decode_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/problem/problem.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

constexpr int kHeadTile = 64;

/// Where the next part begins.
struct Cursor {
  size_t request = 0;
  int32_t block = 0;
  int32_t split = 0;
};

/// Deals one payload out from `at` and records the splits of the requests it finishes.
void take_payload(Cursor& at, DecodePlan& plan, int fixed_overhead) {
  int64_t left = plan.payload;
  while (at.request < plan.num_blocks.size()) {
    const int32_t remaining = plan.num_blocks[at.request] - at.block;
    if (left < remaining + fixed_overhead) {
      if (left > fixed_overhead) {
        at.block += static_cast<int32_t>(left - fixed_overhead);
        ++at.split;
      }
      return;
    }
    plan.num_splits[at.request + 1] = plan.num_splits[at.request] + at.split + 1;
    left -= remaining + fixed_overhead;
    at = {.request = at.request + 1, .block = 0, .split = 0};
  }
}

/// Whether `num_parts` parts of plan.payload take all blocks.
bool is_enough(DecodePlan plan, int num_parts, int fixed_overhead) {
  Cursor at;
  for (int i = 0; i < num_parts; ++i) take_payload(at, plan, fixed_overhead);
  return at.request == plan.num_blocks.size();
}

DecodePart make_part(const Cursor& begin, const Cursor& end, std::span<const int32_t> num_blocks,
                     std::span<const int32_t> lens) {
  DecodePart part;
  part.begin_req = static_cast<int32_t>(begin.request);
  part.begin_block = begin.block;
  part.begin_split = begin.split;
  part.end_req = static_cast<int32_t>(end.request) - (end.block > 0 ? 0 : 1);
  if (part.end_req < 0) return part;
  const auto last = static_cast<size_t>(part.end_req);
  part.end_block = end.block > 0 ? end.block : (lens[last] == 0 ? 0 : num_blocks[last]);
  part.first_req_split = begin.block != 0 ? 1 : 0;
  part.last_req_split = part.end_block != num_blocks[last] && lens[last] != 0 ? 1 : 0;
  if (part.begin_req == part.end_req) {
    part.first_req_split |= part.last_req_split;
    part.last_req_split = part.first_req_split;
  }
  return part;
}

/// Deals all blocks out by plan.payload.
void deal_parts(DecodePlan& plan, std::span<const int32_t> lens, int num_parts,
                int fixed_overhead) {
  plan.parts.clear();
  plan.num_splits.assign(lens.size() + 1, 0);
  Cursor at;
  for (int i = 0; i < num_parts; ++i) {
    const Cursor begin = at;
    take_payload(at, plan, fixed_overhead);
    plan.parts.push_back(make_part(begin, at, plan.num_blocks, lens));
  }
  if (at.request != lens.size()) {
    fail(ErrorKind::kInternal, "decode plan: {} of {} requests left over", lens.size() - at.request,
         lens.size());
  }
}

/// Blocks and overhead of each request.
std::vector<int64_t> loads_of(std::span<const int32_t> num_blocks) {
  std::vector<int64_t> loads;
  for (const int32_t blocks : num_blocks) loads.push_back(blocks + kDecodePlanDenseOverhead);
  return loads;
}

/// Parts that runs of whole requests with at most `most` of load each take.
int64_t num_runs(std::span<const int64_t> loads, int64_t most) {
  int64_t runs = 0;
  int64_t left = 0;
  for (const int64_t load : loads) {
    if (load > left) {
      ++runs;
      left = most;
    }
    left -= load;
  }
  return runs;
}

/// The least load of the fullest of `num_parts` runs of whole requests.
int64_t least_full_run(std::span<const int64_t> loads, int num_parts) {
  int64_t low = loads.empty() ? 0 : *std::max_element(loads.begin(), loads.end());
  int64_t high = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (num_runs(loads, middle) <= num_parts) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// Part that begins with request `first` of a plan of whole requests, with at most `payload`; ends
/// with the request before `next`.
DecodePart whole_part(int32_t first, const DecodePlan& plan, std::span<const int64_t> loads,
                      std::span<const int32_t> lens, int32_t& next) {
  DecodePart part;
  part.begin_req = next = first;
  for (int64_t left = plan.payload; static_cast<size_t>(next) < loads.size(); ++next) {
    left -= loads[static_cast<size_t>(next)];
    if (left < 0) break;
  }
  part.end_req = next - 1;
  if (next == first) return part;
  const auto last = static_cast<size_t>(part.end_req);
  part.end_block = lens[last] == 0 ? 0 : plan.num_blocks[last];
  return part;
}

/// Runs of whole requests: no request has more than one split.
DecodePlan plan_whole_requests(std::span<const int32_t> lens, int num_parts,
                               std::vector<int32_t> num_blocks, std::span<const int64_t> loads,
                               int64_t payload) {
  DecodePlan plan;
  plan.num_blocks = std::move(num_blocks);
  plan.payload = payload;
  plan.num_splits.resize(lens.size() + 1);
  std::iota(plan.num_splits.begin(), plan.num_splits.end(), 0);
  int32_t next = 0;
  for (int i = 0; i < num_parts; ++i) {
    plan.parts.push_back(whole_part(next, plan, loads, lens, next));
  }
  return plan;
}

}  // namespace

DecodePlan plan_dense_decode(std::span<const int32_t> lens, int num_parts) {
  DecodePlan split = plan_decode(lens, num_parts, kDecodePlanDenseOverhead);
  const std::vector<int64_t> loads = loads_of(split.num_blocks);
  const int64_t payload = least_full_run(loads, num_parts);
  if (payload > split.payload + kDecodePlanSplitCost) {
    const int64_t enough = split.payload;
    split.payload -= kDecodePlanDenseOverhead;
    while (split.payload < enough && !is_enough(split, num_parts, kDecodePlanDenseOverhead)) {
      ++split.payload;
    }
    deal_parts(split, lens, num_parts, kDecodePlanDenseOverhead);
    return split;
  }
  return plan_whole_requests(lens, num_parts, std::move(split.num_blocks), loads, payload);
}

DecodePlan plan_decode(std::span<const int32_t> lens, int num_parts, int fixed_overhead,
                       bool sparse) {
  if (num_parts < 1 || fixed_overhead < 0) {
    fail(ErrorKind::kConfig, "decode plan: expected parts >= 1 and overhead >= 0, got {} and {}",
         num_parts, fixed_overhead);
  }
  DecodePlan plan;
  std::vector<int32_t> counted(lens.begin(), lens.end());
  int64_t total = 0;
  for (int32_t& len : counted) {
    if (len < 0) fail(ErrorKind::kValue, "decode plan: expected lengths >= 0, got {}", len);
    if (sparse) len = std::max(len, 1);
    plan.num_blocks.push_back(std::max(len - 1, 0) / kDecodePlanBlock + 1);
    total += plan.num_blocks.back() + fixed_overhead;
  }
  plan.payload = ceil_div(total, num_parts) + fixed_overhead;
  deal_parts(plan, counted, num_parts, fixed_overhead);
  return plan;
}

bool DecodePlan::is_split() const {
  return num_splits.back() > static_cast<int32_t>(num_splits.size()) - 1;
}

int dense_decode_parts(int num_sms, int query_len, int num_heads, int num_kv_heads) {
  if (query_len < 1 || num_kv_heads < 1 || num_heads < num_kv_heads) {
    fail(ErrorKind::kShape,
         "decode parts: expected query_len >= 1 and heads >= KV heads >= 1, "
         "got {}, {} and {}",
         query_len, num_heads, num_kv_heads);
  }
  const int64_t row_tiles = ceil_div(int64_t{query_len} * num_heads / num_kv_heads, kHeadTile);
  return static_cast<int>(std::max<int64_t>(1, num_sms / num_kv_heads / row_tiles));
}

int sparse_decode_parts(int num_sms, int query_len, int num_heads) {
  if (query_len < 1 || num_heads < kHeadTile || num_heads % kHeadTile != 0) {
    fail(ErrorKind::kShape,
         "sparse decode parts: expected query_len >= 1 and a multiple of 64 heads, got {} and {}",
         query_len, num_heads);
  }
  return std::max(1, num_sms / query_len / (num_heads / kHeadTile));
}

/// Fewer splits are preferred among nearly equal ones, because each costs a partial result that is
/// written, read and combined.
int splits_of_waves(std::int64_t num_requests, int num_kv_heads, std::int64_t max_seq_len,
                    int num_sms) {
  constexpr std::int64_t kLeastSplitLen = 256;
  constexpr std::int64_t kMostSplits = 64;
  // Counted as if two parts fit on a multiprocessor at a time.
  const std::int64_t parts_at_once = std::int64_t{2} * num_sms;
  constexpr double kNearlyBest = 0.95;
  const std::int64_t unsplit = num_requests * num_kv_heads;
  if (unsplit == 0) return 1;
  // Share of the places of whole waves that the parts fill.
  const auto filled = [&](std::int64_t splits) {
    const std::int64_t waves = ceil_div(unsplit * splits, parts_at_once);
    return static_cast<double>(unsplit * splits) / static_cast<double>(waves * parts_at_once);
  };
  const std::int64_t most = std::clamp(max_seq_len / kLeastSplitLen, std::int64_t{1}, kMostSplits);
  double best = 0;
  for (std::int64_t splits = 1; splits <= most; ++splits) best = std::max(best, filled(splits));
  std::int64_t splits = 1;
  while (filled(splits) < kNearlyBest * best) ++splits;
  return static_cast<int>(splits);
}

/// Why none where there is a part for nearly every multiprocessor, or up to two: they read as fast
/// as the memory gives. One NVIDIA H200, 2026-11-28, 32 heads on 8 of 128, us unsplit and with the
/// splits that fill whole waves: 16q1s1k 27.8 and 30.3, 16q1s8k 133.4 and 136.0, 24q1s4k 106.9 and
/// 111.9; over fp8 19.4 and 21.1, 78.3 and 80.2, 65.5 and 71.0.
int choose_num_splits(std::int64_t num_requests, int num_kv_heads, std::int64_t max_seq_len,
                      int num_sms) {
  constexpr double kFewIdle = 0.9;
  const std::int64_t unsplit = num_requests * num_kv_heads;
  const bool is_busy = static_cast<double>(unsplit) >= kFewIdle * num_sms;
  if (is_busy && unsplit <= std::int64_t{2} * num_sms) return 1;
  return splits_of_waves(num_requests, num_kv_heads, max_seq_len, num_sms);
}

int num_splits_of(const Problem& problem, std::int64_t num_requests, int num_kv_heads,
                  std::int64_t max_seq_len, int num_sms) {
  if (num_requests == 0) return 1;
  if (problem.attention.num_splits) return *problem.attention.num_splits;
  return choose_num_splits(num_requests, num_kv_heads, max_seq_len, num_sms);
}

}  // namespace attnbench
