// Counting without visiting: causal rule and window leave each row an interval of keys whose ends
// move by one from row to row, so their sum is that of a clamped arithmetic series. Only rows that
// a range of a multimodal prefix covers are looked at one by one.
#include "metadata/mask/visible_pairs.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

/// sum over x in [first, last] of clamp(x, 0, limit); 0 when first > last.
int64_t sum_clamped(int64_t first, int64_t last, int64_t limit) {
  if (first > last) return 0;
  const int64_t low = std::max<int64_t>(first, 1);
  const int64_t high = std::min(last, limit);
  const int64_t ramp = low <= high ? (low + high) * (high - low + 1) / 2 : 0;
  const int64_t saturated = std::max<int64_t>(last - std::max(first, limit + 1) + 1, 0);
  return ramp + saturated * limit;
}

/// Keys [begin, end) that the causal rule and the window leave to the row at `position`.
struct Keys {
  int64_t begin;
  int64_t end;
};

/// A row's keys are [clamp(p - left), clamp(p + right + 1)) with both ends clamped to [0, Sk].
Keys base_keys(const VisibleArgs& args, int64_t right, int64_t position) {
  const int64_t sk = args.seq_len;
  const int64_t begin =
      args.window_left < 0 ? 0 : std::clamp<int64_t>(position - args.window_left, 0, sk);
  const int64_t end = right < 0 ? sk : std::clamp<int64_t>(position + right + 1, 0, sk);
  return {begin, end};
}

/// Keys that the ranges around `position` add to `base`. ranges are sorted by start.
int64_t keys_added(Keys base, std::span<const MmRange> ranges, int64_t position) {
  int64_t added = 0;
  int64_t counted_to = 0;  // keys below are in an earlier range
  for (const auto& [start, last] : ranges) {
    if (position < start || position > last) continue;
    const int64_t begin = std::max(start, counted_to);
    const int64_t end = last + 1;
    if (begin >= end) continue;
    const int64_t shared = std::min(end, base.end) - std::max(begin, base.begin);
    added += end - begin - std::max<int64_t>(shared, 0);
    counted_to = end;
  }
  return added;
}

}  // namespace

int64_t visible_pairs(const VisibleArgs& args, std::span<const MmRange> mm_ranges) {
  if (args.query_len < 0 || args.seq_len < 0) {
    fail(ErrorKind::kValue, "visible_pairs: expected lengths >= 0, got query {} and keys {}",
         args.query_len, args.seq_len);
  }
  const int64_t sk = checked_int32(args.seq_len, "seq_len");
  const int64_t first = sk - checked_int32(args.query_len, "query_len");
  const int64_t last = sk - 1;
  // Why the clamp: beyond Sk and Sq a window is unlimited, and the sums below cannot overflow.
  const int64_t widest = sk + args.query_len;
  const int64_t right = args.causal ? 0 : std::min(args.window_right, widest);
  const int64_t left = std::min(args.window_left, widest);
  // Row p sees clamp(p + right + 1, 0, Sk) - clamp(p - left, 0, Sk) keys.
  int64_t pairs =
      right < 0 ? args.query_len * sk : sum_clamped(first + right + 1, last + right + 1, sk);
  if (left >= 0) pairs -= sum_clamped(first - left, last - left, sk);

  std::vector<MmRange> ranges = effective_mm_ranges(mm_ranges, sk);
  if (ranges.empty()) return pairs;
  std::ranges::sort(ranges);
  for (int64_t p = std::max(first, ranges.front()[0]); p <= last; ++p) {
    pairs += keys_added(base_keys(args, right, p), ranges, p);
  }
  return pairs;
}

}  // namespace attnbench
