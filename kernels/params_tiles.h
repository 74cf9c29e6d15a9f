// Arguments of attention by an explicit list of tiles (attend_tiles): which query rows meet which
// keys, and in which order. A batch of decodes and prefills, and a prefix that several requests
// share, are one launch then, in an order that keeps both the memory and the tensor cores busy. The
// list is made on the host (src/ops/tile_deal.h) from the lengths of a batch, as FlashInfer's
// plan() does; a list made for other lengths gives wrong results.
#pragma once

#include "kernels/params.h"

namespace attn {

/// Rows at most of a tile of few, as those of decodes are.
constexpr int kMostFewRows = 8;
/// Warps of a CTA that do such tiles beside the others.
constexpr int kBesideWarps = 4;

/// Query rows of one KV head against a run of keys. The rows are packed as everywhere: row r of a
/// sequence of tokens is token first_token + r / G, query head kv_head * G + r % G. A sequence may
/// be the tokens of one request, or of several that share the keys.
struct alignas(16) AttendTile {
  int first_token;  // of the sequence, in [T]
  int first_row;    // of the tile, in the sequence
  int num_rows;     // 1 to TileListParams::tile_rows
  int context_len;  // position of the sequence's first token; at least key_end where all rows see
                    // all of the keys
  int table_row;    // of the block table
  int key_begin;    // keys [key_begin, key_end); a multiple of the block size
  int key_end;      // <= key_begin: the rows get an empty result
  unsigned short kv_head;
  unsigned short part;  // < TileListParams::parts.num_splits
};

/// Every row of the batch is in exactly one tile of each part. The last num_beside tiles, of at
/// most kMostFewRows rows, are done beside the others (attention/hopper/beside.cuh); of these every
/// one is in one bundle. CTAs that stay for several tiles draw bundles: CTA c starts with bundle c,
/// and those behind the first of every CTA are drawn. Tiles beside are drawn one by one.
struct TileListParams {
  const AttendTile* tiles;  // [num_tiles], of either kind in the order in which they should start
  const int* bundles;       // [num_bundles + 1]: bundle b is tiles [bundles[b], bundles[b + 1])
  int* drawn;  // [2] bundles, and tiles beside, drawn so far: 0 before a launch, and again after it
  int num_tiles;
  int num_bundles;
  int num_beside;
  int num_ctas;   // that are there at a time; at most num_bundles of them are started
  int tile_rows;  // 128 or 192
  int most_keys;  // of a tile of more than 64 rows; only the time depends on it
  /// num_splits 1: tiles write output and LSE, and the pointers are null. More: normalised partial
  /// results, of which part 0 includes the sink, for combine_splits().
  SplitParams parts;
};

}  // namespace attn
