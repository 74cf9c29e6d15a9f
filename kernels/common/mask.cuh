// Which keys a query row may see (semantics §3.2, §3.3, §3.6): always one interval. That is what
// makes masks cheap: a row is described by two integers, a tile of keys is skipped, taken whole or
// masked by comparing them with its bounds, and no mask is ever stored.
//
// Positions count from the first key of the request. Query row i of query_len has position
// seq_len - query_len + i: the last row is aligned with the last key.
#pragma once

#include "kernels/common/platform.cuh"

namespace attn {

/// Keys [begin, end); empty when begin >= end.
struct KeyInterval {
  int begin;
  int end;
};

/// min and max: the names of the standard are not there under NVRTC.
ATTN_FN int smaller(int a, int b) { return a < b ? a : b; }
ATTN_FN int larger(int a, int b) { return a > b ? a : b; }

/// Row of absolute position p under a window (left, right), -1 = unlimited; causal is right = 0.
/// p < 0 happens when queries outnumber keys; such rows may see nothing.
ATTN_FN KeyInterval window_interval(int position, int seq_len, int left, int right) {
  // Why the comparisons: windows of 2^30 must not overflow.
  const int begin = left < 0 || position < left ? 0 : position - left;
  const int end =
      right < 0 || position > seq_len - 1 - right ? seq_len : larger(0, position + right + 1);
  return {begin, end};
}

/// Joins the window's interval with the bidirectional ranges that contain the position. Why one
/// interval is enough: each of them contains the position itself, so their union has no gap.
/// `ranges` [num_ranges, 2], both ends inclusive, start < end or ignored.
ATTN_FN KeyInterval join_ranges(KeyInterval window, int position, int seq_len, const int* ranges,
                                int num_ranges) {
  for (int r = 0; r < num_ranges; ++r) {
    const int start = ranges[2 * r];
    const int last = ranges[2 * r + 1];
    if (start >= last || position < start || position > last) continue;
    window.begin = smaller(window.begin, start);
    window.end = larger(window.end, smaller(seq_len, last + 1));
  }
  return window;
}

/// What a set of rows sees: nothing outside `hull`, everything inside `core` (which may be empty).
/// The hull is the union of the rows' intervals, grown to an interval: keys outside need not be
/// loaded. The core is their intersection: tiles inside need no mask.
struct TileBounds {
  KeyInterval hull;
  KeyInterval core;
};

/// Neutral for add_row(): an empty hull and a core of all keys, so that bounds can be combined by
/// minima and maxima in any order, across the lanes of a warp as well.
ATTN_FN TileBounds no_rows() {
  constexpr int kMost = 0x7FFFFFFF;
  return {{kMost, 0}, {0, kMost}};
}

/// A row that sees nothing leaves the hull as it is but empties the core, as it must: its keys are
/// all masked.
ATTN_FN TileBounds add_row(TileBounds bounds, KeyInterval row) {
  bounds.core.begin = larger(bounds.core.begin, row.begin);
  bounds.core.end = smaller(bounds.core.end, row.end);
  if (row.begin < row.end) {
    bounds.hull.begin = smaller(bounds.hull.begin, row.begin);
    bounds.hull.end = larger(bounds.hull.end, row.end);
  }
  return bounds;
}

/// Whether some (row, key) pair of a tile [begin, end) is masked.
ATTN_FN bool needs_mask(const TileBounds& bounds, int begin, int end) {
  return begin < bounds.core.begin || end > bounds.core.end;
}

}  // namespace attn
