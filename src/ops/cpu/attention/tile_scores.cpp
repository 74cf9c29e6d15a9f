#include "ops/cpu/attention/tile_scores.h"

#include <cmath>
#include <limits>

#include "ops/cpu/attention/soft_cap.h"

namespace attnbench::cpu {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

/// scores [rows] += bias of one key; `distance_of` maps p to the ALiBi distance (§3.4).
template <typename Distance>
void add_bias(const Distance& distance_of, const Scratch& scratch, float* scores) {
  const std::int32_t* position = scratch.position.data();
  const float* slope = scratch.slope.data();
  for (int r = 0; r < scratch.num_rows; ++r) scores[r] += slope[r] * distance_of(position[r]);
}

/// Linear forms are taken relative to the row's own position; scratch.shift is the rest.
void add_alibi(attn::Alibi form, int key, const Scratch& scratch, float* scores) {
  switch (form) {
    case attn::Alibi::kNone:
      return;
    case attn::Alibi::kKeyIndex:
    case attn::Alibi::kContextRelative:
      return add_bias([&](int p) { return static_cast<float>(key - p); }, scratch, scores);
    case attn::Alibi::kDistance:
      return add_bias([&](int p) { return -std::fabs(static_cast<float>(p - key)); }, scratch,
                      scores);
    case attn::Alibi::kSqrt:
      return add_bias([&](int p) { return -std::sqrt(static_cast<float>(p > key ? p - key : 0)); },
                      scratch, scores);
  }
}

}  // namespace

TileVisibility tile_visibility(const Scratch& scratch, std::int64_t begin, std::int64_t end) {
  bool all = true;
  bool some = false;
  for (int r = 0; r < scratch.num_rows; ++r) {
    const auto row = static_cast<std::size_t>(r);
    bool covered = false;
    for (int k = 0; k < scratch.num_intervals; ++k) {
      const KeyInterval& interval = scratch.intervals[static_cast<std::size_t>(k)];
      covered = covered || (interval.begin[row] <= begin && end <= interval.end[row]);
      some = some || (interval.begin[row] < end && begin < interval.end[row] &&
                      interval.begin[row] < interval.end[row]);
    }
    all = all && covered;
  }
  if (all) return TileVisibility::kAll;
  return some ? TileVisibility::kSome : TileVisibility::kNone;
}

bool is_visible(const Scratch& scratch, int row, std::int64_t key) {
  for (int k = 0; k < scratch.num_intervals; ++k) {
    const KeyInterval& interval = scratch.intervals[static_cast<std::size_t>(k)];
    const auto r = static_cast<std::size_t>(row);
    if (interval.begin[r] <= key && key < interval.end[r]) return true;
  }
  return false;
}

void transform_scores(const attn::ScoreParams& score, std::int64_t first_key, int keys,
                      Scratch& scratch) {
  float* scores = scratch.scores.data();
  const std::int64_t count = std::int64_t{keys} * scratch.row_stride;
  if (score.soft_cap > 0.0f) soft_cap(score.soft_cap, count, scores);
  if (score.alibi == attn::Alibi::kNone) return;
  for (int i = 0; i < keys; ++i, scores += scratch.row_stride) {
    add_alibi(score.alibi, static_cast<int>(first_key) + i, scratch, scores);
  }
}

void mask_scores(std::int64_t first_key, int keys, Scratch& scratch) {
  const int rows = scratch.num_rows;
  for (int i = 0; i < keys; ++i) {
    float* scores = scratch.scores.data() + std::int64_t{i} * scratch.row_stride;
    const int key = static_cast<int>(first_key) + i;
    if (scratch.num_intervals == 1) {
      const std::int32_t* begin = scratch.intervals[0].begin.data();
      const std::int32_t* end = scratch.intervals[0].end.data();
      for (int r = 0; r < rows; ++r) {
        const bool visible = (begin[r] <= key) & (key < end[r]);
        scores[r] = visible ? scores[r] : kNegInf;
      }
    } else {
      for (int r = 0; r < rows; ++r) {
        if (!is_visible(scratch, r, key)) scores[r] = kNegInf;
      }
    }
  }
}

}  // namespace attnbench::cpu
