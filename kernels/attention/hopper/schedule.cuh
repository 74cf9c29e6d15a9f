// Which CTA of the Hopper prefill kernel does which row tile, and which tiles of keys that one goes
// through: pure functions of integers.
#pragma once

#include "kernels/common/mask.cuh"

namespace attn {

/// What forms of a soft cap (soft_cap.cuh) need of cap c and scale, worked out by the host. Kernels
/// read it where parameters lie, so that it takes no registers.
struct SoftCap {
  static constexpr int kTerms = 6;
  static constexpr int kShortTerms = 3;
  float inner;           // 2^(inner s) = e^(2 s scale / c)
  float outer;           // c log2(e)
  float fall;            // -2 c log2(e)
  float bound;           // of |s|, up to which the series holds
  float series[kTerms];  // c tanh(s scale / c) log2(e) = s (series[0] + series[1] s^2 + ...)
  float short_bound;     // of a shorter one
  float short_series[kShortTerms];
};

/// Divides numbers from 0 to 2^31 - 1 by one from 1 on that the host knows: a product and a shift,
/// a sixth of the instructions of a division. Four warps of a CTA find each row tile by itself.
struct Divisor {
  unsigned factor;  // 2^(31 + shift) / number, rounded up
  int shift;        // the least for which 2^shift >= number

  ATTN_FN int quotient(int n) const {
    const auto product = static_cast<unsigned long long>(static_cast<unsigned>(n)) * factor;
    return static_cast<int>(product >> (31 + shift));
  }
};
ATTN_FN constexpr Divisor divisor_of(int number) {
  int shift = 0;
  while ((1LL << shift) < number) ++shift;
  const long long power = 1LL << (31 + shift);
  return {static_cast<unsigned>((power + number - 1) / number), shift};
}

/// The row tiles of a launch. A unit is a request and a KV head, the head fastest; every unit has
/// `row_tiles` places, of which those that its request has no rows for stay idle.
struct HopperGrid {
  int row_tiles;
  int num_units;
  int group;           // units whose keys the L2 holds together
  int reverse;         // 1: every other unit of a group starts with its first row tile
  int heads = 1;       // query heads of a KV head
  int num_whole = 0;   // row tiles that are not cut; those behind them are (kTail)
  Divisor by_items{};  // of a group
  Divisor by_group{};
  Divisor by_heads{};  // KV heads of a request
  SoftCap cap{};       // of forms of soft cap that need it
};
ATTN_FN constexpr HopperGrid hopper_grid_of(int row_tiles, int num_units, int group, int reverse,
                                            int num_heads, int num_kv_heads) {
  HopperGrid grid{row_tiles, num_units, group, reverse, num_heads / num_kv_heads};
  // A launch without rows has no item to divide.
  grid.by_items = divisor_of(row_tiles > 0 ? row_tiles * group : 1);
  grid.by_group = divisor_of(group);
  grid.by_heads = divisor_of(num_kv_heads);
  return grid;
}

/// Row tiles of `num_tiles` that are done as a whole, where the others are cut into `pieces` of 64
/// rows. Row tiles that take about equally long leave multiprocessors idle at the end: of 688 on
/// 132, 28 are left when each has done 5. Cut, they take 0.7 of the time (one consumer has the
/// tensor cores to itself); where not all pieces find a place at once, nothing would be gained.
ATTN_FN constexpr i64 whole_tiles(i64 num_tiles, i64 places, int pieces) {
  const i64 left = places > 0 ? num_tiles % places : 0;
  return left * pieces <= places ? num_tiles - left : num_tiles;
}
/// Which row tile number `index` of a launch is, and which 64 rows of it, or all (-1).
struct HopperPiece {
  int tile;
  int piece;
};
ATTN_FN constexpr HopperPiece piece_of(int index, int num_whole, int pieces) {
  if (index < num_whole) return {index, -1};
  return {num_whole + (index - num_whole) / pieces, (index - num_whole) % pieces};
}

struct HopperWork {
  int unit;
  int from_last;  // row tiles of the unit behind this one, or before it where `from_first`
  bool from_first;
};

ATTN_FN int hopper_work_items(const HopperGrid& grid) { return grid.row_tiles * grid.num_units; }

/// Item `index` of hopper_work_items(). Groups of units follow one another, so that what runs at a
/// time shares keys; in a group the row tiles from the last one back come for all of its units in
/// turn. Why from the last back: under a causal mask it has the most keys, and long work must not
/// start last.
ATTN_FN HopperWork hopper_work(int index, const HopperGrid& grid) {
  const int nth = grid.by_items.quotient(index);
  const int first_unit = nth * grid.group;
  const int rest = index - nth * grid.row_tiles * grid.group;
  const int units = smaller(grid.group, grid.num_units - first_unit);
  // The last group may have fewer.
  const int from_last = units == grid.group ? grid.by_group.quotient(rest) : rest / units;
  const int unit = rest - from_last * units;
  return {first_unit + unit, from_last, grid.reverse != 0 && unit % 2 == 1};
}

/// Item that CTA `cta` of `num_ctas` does in its round `round`; there may be none of that number.
/// Why there and back again: items are sorted by what they cost, and a CTA that were first in every
/// round would have the most work of all.
ATTN_FN int item_of_round(int cta, int num_ctas, int round) {
  return round * num_ctas + (round % 2 == 0 ? cta : num_ctas - 1 - cta);
}

/// The row tile of a work item out of those that its request has; negative where it has none for
/// it.
ATTN_FN int row_tile_of(const HopperWork& work, int num_tiles) {
  if (work.from_last >= num_tiles) return -1;
  return work.from_first ? work.from_last : num_tiles - 1 - work.from_last;
}

/// Bounds of the rows of tokens at positions [first, last] under a window: begins and ends of the
/// intervals grow with the position, so those of the first and of the last row are enough. Ranges
/// (join_ranges()) break that order.
ATTN_FN TileBounds window_bounds(int first, int last, int seq_len, int left, int right) {
  const KeyInterval low = window_interval(first, seq_len, left, right);
  const KeyInterval high = window_interval(last, seq_len, left, right);
  TileBounds bounds = no_rows();
  bounds.core = {high.begin, low.end};
  // Why not the empty interval of `low`: rows before the first key see nothing, and begin at 0 as
  // the first row does that sees something.
  if (high.begin < high.end) bounds.hull = {low.begin, high.end};
  return bounds;
}

/// Tiles [first, end) of tile_n keys, of which tile n starts with key origin + n * tile_n.
struct KeyTiles {
  int origin;
  int first;
  int end;
};

/// The tiles that cover the hull, the last of which ends with the hull, rounded up to a multiple of
/// `step`. Of pages `step` is tile_n, so that tiles start on multiples of it; or the rows of a box
/// (fits_tiles), so that a window of keys has no tile too many. Of ragged keys it is 1: what lies
/// past a request's keys may be past all memory, while before its first key there are other
/// requests' keys, or nothing, which the copy engine reads as zeros. So no box ever reaches past
/// the last key, and the host need not know how many there are.
ATTN_FN KeyTiles key_tiles(KeyInterval hull, int tile_n, int step) {
  if (hull.begin >= hull.end) return {0, 0, 0};
  const int rest = (hull.end + step - 1) / step * step % tile_n;
  const int origin = rest != 0 ? rest - tile_n : 0;
  return {origin, (hull.begin - origin) / tile_n, (hull.end - origin + tile_n - 1) / tile_n};
}

/// The same of a run of keys that starts with `first_key`, where its first tile starts.
ATTN_FN KeyTiles key_tiles_from(KeyInterval hull, int tile_n, int first_key) {
  if (hull.begin >= hull.end) return {first_key, 0, 0};
  return {first_key, (hull.begin - first_key) / tile_n,
          (hull.end - first_key + tile_n - 1) / tile_n};
}

/// Bounds of the same rows where keys before `first_key` are another's.
ATTN_FN TileBounds cut_to(TileBounds bounds, int first_key) {
  bounds.hull.begin = larger(bounds.hull.begin, first_key);
  bounds.core.begin = larger(bounds.core.begin, first_key);
  return bounds;
}

/// The tiles of `tiles` of which some row sees a key (not even empty ones of a hull without keys).
ATTN_FN KeyInterval seen_tiles(const KeyTiles& tiles, KeyInterval hull, int tile_n) {
  if (hull.begin >= hull.end) return {tiles.end, tiles.end};
  return {(hull.begin - tiles.origin) / tile_n, (hull.end - tiles.origin + tile_n - 1) / tile_n};
}

/// The tiles of `tiles` that need no mask: those that lie in the core as a whole.
ATTN_FN KeyInterval unmasked_tiles(const KeyTiles& tiles, KeyInterval core, int tile_n) {
  // Why not core.end as it is: without rows it is the largest integer.
  const int last = smaller(core.end, tiles.origin + tiles.end * tile_n);
  const int end = larger(tiles.first, (last - tiles.origin) / tile_n);
  const int begin = larger(tiles.first, (core.begin - tiles.origin + tile_n - 1) / tile_n);
  return {smaller(begin, end), end};
}

}  // namespace attn
