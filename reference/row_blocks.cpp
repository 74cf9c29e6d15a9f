// Cuts the rows of a case greedily: a row joins the block before it while the block stays small and
// while most of the rectangle (rows times keys from the first to the last visible one) is visible.
#include "reference/row_blocks.h"

#include <algorithm>

namespace attnbench {
namespace {

// As many as keep the packing of K and V cheap beside the product itself.
constexpr std::int64_t kMaxMatrixRows = 256;
// Scores of a block, all keys of a row at once: 16 MiB of f64. Enough rows to share a tile of K and
// V, few enough that a long decode of many heads is work for several threads.
constexpr std::int64_t kMaxScores = std::int64_t{2} << 20;

/// Rows [begin, end) of the list with the hull of their keys.
struct RowGroup {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  KeyRange keys;
};

std::int64_t length(const KeyRange& range) { return range.end - range.begin; }

KeyRange hull_of(const KeyRange& a, const KeyRange& b) {
  if (length(a) == 0) return b;
  if (length(b) == 0) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

class GroupPlanner {
 public:
  GroupPlanner(const AttentionMath& math, std::int64_t request, std::int64_t seq_len,
               std::int64_t heads)
      : math_(math), request_(request), seq_len_(seq_len), heads_(heads) {}

  /// Cuts rows [begin, end) of the list; `position_offset` turns a token index into a position.
  std::vector<RowGroup> cut(std::span<const std::int32_t> rows, std::int64_t begin,
                            std::int64_t end, std::int64_t position_offset) {
    std::vector<RowGroup> groups;
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t position = rows[static_cast<std::size_t>(row)] + position_offset;
      ranges_.clear();
      append_visible_ranges(math_, request_, position, seq_len_, ranges_);
      KeyRange keys;
      if (!ranges_.empty()) keys = {ranges_.front().begin, ranges_.back().end};
      if (groups.empty() || !fits(groups.back(), keys)) {
        groups.push_back({row, row, {}});
        hull_sum_ = 0;
      }
      groups.back().keys = hull_of(groups.back().keys, keys);
      groups.back().end = row + 1;
      hull_sum_ += length(keys);
    }
    return groups;
  }

 private:
  /// Whether one more row keeps the block small and mostly visible: rows far apart under a window
  /// would otherwise share a hull that none of them sees.
  bool fits(const RowGroup& group, const KeyRange& keys) const {
    const std::int64_t count = group.end - group.begin + 1;
    const std::int64_t area = count * length(hull_of(group.keys, keys));
    const std::int64_t visible = hull_sum_ + length(keys);
    return count * heads_ <= kMaxMatrixRows && area * heads_ <= kMaxScores &&
           area - visible <= visible / 4 + 128 * count;
  }

  const AttentionMath& math_;
  std::int64_t request_;
  std::int64_t seq_len_;
  std::int64_t heads_;
  std::int64_t hull_sum_ = 0;  // of the rows of the last group
  std::vector<KeyRange> ranges_;
};

}  // namespace

void append_visible_ranges(const AttentionMath& math, std::int64_t request, std::int64_t position,
                           std::int64_t seq_len, std::vector<KeyRange>& ranges) {
  const auto first = static_cast<std::ptrdiff_t>(ranges.size());
  const KeyRange window = visible_range(math, position, seq_len);
  if (window.begin < window.end) ranges.push_back(window);
  for (const auto& range : math.ranges_of(request)) {
    if (position < range[0] || position > range[1]) continue;
    const KeyRange extra{range[0], std::min(range[1] + 1, seq_len)};
    if (extra.begin < extra.end) ranges.push_back(extra);
  }
  if (static_cast<std::ptrdiff_t>(ranges.size()) - first < 2) return;
  std::sort(ranges.begin() + first, ranges.end(),
            [](const KeyRange& a, const KeyRange& b) { return a.begin < b.begin; });
  auto last = ranges.begin() + first;
  for (auto next = last + 1; next != ranges.end(); ++next) {
    if (next->begin <= last->end) {
      last->end = std::max(last->end, next->end);
    } else {
      *++last = *next;
    }
  }
  ranges.erase(last + 1, ranges.end());
}

std::int64_t count_visible(const AttentionMath& math, std::int64_t request, std::int64_t position,
                           std::int64_t seq_len) {
  if (math.ranges_of(request).empty()) return length(visible_range(math, position, seq_len));
  std::vector<KeyRange> ranges;
  append_visible_ranges(math, request, position, seq_len, ranges);
  std::int64_t count = 0;
  for (const KeyRange& range : ranges) count += length(range);
  return count;
}

std::vector<RowBlock> plan_row_blocks(const AttentionMath& math, const BatchShape& shape,
                                      std::span<const std::int32_t> rows) {
  std::vector<RowBlock> blocks;
  const int group_size = shape.num_heads / shape.num_kv_heads;
  std::int64_t begin = 0;
  for (std::size_t request = 0; request < shape.seq_lens.size(); ++request) {
    const std::int64_t query_end = shape.query_start_loc[request + 1];
    const std::int64_t seq_len = shape.seq_lens[request];
    const std::int64_t end =
        std::lower_bound(rows.begin() + begin, rows.end(), query_end) - rows.begin();
    const std::int64_t affordable = kMaxScores / std::max<std::int64_t>(1, seq_len);
    const auto heads = static_cast<int>(
        std::clamp<std::int64_t>(std::min(affordable, kMaxMatrixRows), 1, group_size));
    GroupPlanner planner(math, static_cast<std::int64_t>(request), seq_len, heads);
    const std::int64_t position_offset = seq_len - query_end;
    for (const RowGroup& group : planner.cut(rows, begin, end, position_offset)) {
      for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
        for (int head = 0; head < group_size; head += heads) {
          blocks.push_back({static_cast<std::int64_t>(request), group.begin, group.end,
                            kv_head * group_size + head, std::min(heads, group_size - head),
                            group.keys});
        }
      }
    }
    begin = end;
  }
  const auto cost = [](const RowBlock& block) {
    return block.num_matrix_rows() * length(block.keys);
  };
  std::stable_sort(blocks.begin(), blocks.end(),
                   [&](const RowBlock& a, const RowBlock& b) { return cost(a) > cost(b); });
  return blocks;
}

}  // namespace attnbench
