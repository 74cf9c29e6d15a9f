// How the keys of a request are dealt to splits (split-KV decoding) and to segments (Triton's 3D
// attention, semantics §4.3). Host, CPU operations and kernels use the same functions, so that they
// agree on the bounds of every part. Parts are runs of whole tiles in the order of the keys and
// cover [0, seq_len) without overlap; the last ones may be empty.
#pragma once

#include "kernels/common/mask.cuh"
#include "kernels/params.h"

namespace attn {

ATTN_FN int divide_up(int a, int b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Keys [begin, end) of a split: its run of whole kSplitTile tiles. 64 bits in between, because
/// split * tiles * kSplitTile of a late, empty split can pass 2^31; the result is cut to seq_len.
ATTN_FN KeyInterval keys_of_split(int seq_len, int num_splits, int split) {
  const int tiles_per_split = divide_up(divide_up(seq_len, kSplitTile), num_splits);
  const i64 begin = static_cast<i64>(split) * tiles_per_split * kSplitTile;
  const i64 end = begin + static_cast<i64>(tiles_per_split) * kSplitTile;
  return {static_cast<int>(begin < seq_len ? begin : seq_len),
          static_cast<int>(end < seq_len ? end : seq_len)};
}

/// Keys of a segment: tps * TILE with tps = cdiv(seq_len, num_segments * TILE) tiles per segment
/// (semantics §4.3); 0 for an empty request.
ATTN_FN i64 segment_len(int seq_len, int num_segments, int tile) {
  const i64 keys = static_cast<i64>(num_segments) * tile;
  return (seq_len + keys - 1) / keys * tile;
}

/// A of semantics §4.3: segments that hold any key; the others are neither computed nor reduced.
/// Without keys the first one still holds the sink (§3.5).
ATTN_FN int num_active_segments(int seq_len, int num_segments, int tile) {
  const i64 len = segment_len(seq_len, num_segments, tile);
  return len == 0 ? 1 : static_cast<int>((seq_len + len - 1) / len);
}

/// Keys [begin, end) of a segment, cut to seq_len.
ATTN_FN KeyInterval keys_of_segment(int seq_len, int num_segments, int tile, int segment) {
  const i64 len = segment_len(seq_len, num_segments, tile);
  const i64 begin = segment * len;
  const i64 end = begin + len;
  return {static_cast<int>(begin < seq_len ? begin : seq_len),
          static_cast<int>(end < seq_len ? end : seq_len)};
}

}  // namespace attn
