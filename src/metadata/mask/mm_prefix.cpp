// Ranges of multimodal prefixes. A range past the end of its sequence is legal and cut: a prompt
// may still be arriving in chunks.
#include "metadata/mask/mm_prefix.h"

#include <algorithm>

#include "core/error.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

bool is_trivial(const std::vector<MmRange>& ranges) {
  return ranges.empty() || (ranges.size() == 1 && ranges[0] == MmRange{0, 0});
}

}  // namespace

void check_mm_range(const MmRange& range) {
  if (range[0] < 0 || range[1] < range[0]) {
    fail(ErrorKind::kValue, "mm_prefix range: expected 0 <= start <= end, got ({}, {})", range[0],
         range[1]);
  }
}

std::vector<MmRange> effective_mm_ranges(std::span<const MmRange> ranges, int64_t seq_len) {
  std::vector<MmRange> effective;
  for (const MmRange& range : ranges) {
    check_mm_range(range);
    if (range[0] < range[1] && range[0] < seq_len) {
      effective.push_back({range[0], std::min(range[1], seq_len - 1)});
    }
  }
  return effective;
}

std::optional<PackedMmRanges> pack_mm_ranges(std::span<const std::vector<MmRange>> ranges) {
  size_t max_ranges = 1;
  for (const auto& list : ranges) {
    for (const MmRange& range : list) check_mm_range(range);
    max_ranges = std::max(max_ranges, list.size());
  }
  if (std::ranges::all_of(ranges, is_trivial)) return std::nullopt;
  PackedMmRanges packed{.num_requests = static_cast<int64_t>(ranges.size()),
                        .max_ranges = static_cast<int64_t>(max_ranges),
                        .values = std::vector<int32_t>(ranges.size() * max_ranges * 2, 0)};
  for (size_t b = 0; b < ranges.size(); ++b) {
    auto out = packed.values.begin() + static_cast<std::ptrdiff_t>(b * max_ranges * 2);
    for (const auto& [start, end] : ranges[b]) {
      *out++ = checked_int32(start, "mm_prefix range start");
      *out++ = checked_int32(end, "mm_prefix range end");
    }
  }
  return packed;
}

}  // namespace attnbench
