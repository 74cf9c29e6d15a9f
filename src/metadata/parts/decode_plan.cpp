// Dealing of blocks to parts: each part takes one payload, request after request, and a request
// that a part leaves unfinished is a split more. The records are what the kernel reads; they are
// compared with upstream's, so ties and empty requests are treated as there.
#include "metadata/parts/decode_plan.h"

#include <algorithm>

#include "core/error.h"
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

}  // namespace

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
  plan.num_splits.assign(lens.size() + 1, 0);
  Cursor at;
  for (int i = 0; i < num_parts; ++i) {
    const Cursor begin = at;
    take_payload(at, plan, fixed_overhead);
    plan.parts.push_back(make_part(begin, at, plan.num_blocks, counted));
  }
  if (at.request != lens.size()) {
    fail(ErrorKind::kInternal, "decode plan: {} of {} requests left over", lens.size() - at.request,
         lens.size());
  }
  return plan;
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

}  // namespace attnbench
