// Where latent.cuh keeps what in shared memory, and how its tiles are cut: pure functions, so that
// host and tests see the same numbers as the kernel.
#pragma once

#include "kernels/common/mask.cuh"
#include "kernels/params.h"

namespace attn {

constexpr int kLatentValues = 512;  // columns of a value, the first ones of its key
constexpr int kLatentRope = 64;     // the others
constexpr int kLatentRows = 64;     // query rows of a tile
constexpr int kLatentKeys = 64;     // keys of a tile
constexpr int kFewRows = 16;        // the most that latent_few.cuh multiplies

/// A tile of queries or keys is cut into pieces of 64 columns, 64 rows of 128 bytes each. Pieces 0
/// to 3 are the values of the left warpgroup, 4 to 7 of the right one, the last is the rope part.
constexpr int kLatentPieceBytes = 64 * 128;
constexpr int kLatentPieces = (kLatentValues + kLatentRope) / 64;
constexpr int kLatentHalfPieces = kLatentValues / 2 / 64;
constexpr int kLatentRopePiece = kLatentPieces - 1;
constexpr int kLatentTileBytes = kLatentPieces * kLatentPieceBytes;

constexpr int kLatentThreads = 384;  // warpgroups: left and right half of the output, loads

/// Where the dynamic shared memory of a CTA without any other begins on SM 9.0: the system has the
/// first 1024 bytes. Why a constant: descriptors made from an address that is only known when the
/// kernel runs cost six instructions a product, and a tenth of the speed (one NVIDIA H200,
/// 2026-11-22). The kernel checks it.
constexpr int kLatentBase = 1024;

// Addresses in shared memory.
constexpr int kLatentQueryAt = kLatentBase;
constexpr int kLatentKeysAt = kLatentQueryAt + kLatentTileBytes;  // two tiles
constexpr int kLatentScaleAt = kLatentKeysAt + 2 * kLatentTileBytes;
constexpr int kLatentMaximumAt = kLatentScaleAt + 2 * kLatentRows * 4;  // of either warpgroup
constexpr int kLatentSumAt = kLatentMaximumAt + 2 * kLatentRows * 4;
constexpr int kLatentFullAt = kLatentSumAt + 2 * kLatentRows * 4;     // a barrier for every piece
constexpr int kLatentFreeAt = kLatentFullAt + 2 * kLatentPieces * 8;  // [tile][left, right half]
constexpr int kLatentQueryFullAt = kLatentFreeAt + 4 * 8;
constexpr int kLatentQueryFreeAt = kLatentQueryFullAt + 8;
constexpr int kLatentCursorAt = kLatentQueryFreeAt + 8;  // of every warp
constexpr int kLatentEnd = kLatentCursorAt + kLatentThreads / 32 * 4;
constexpr int kLatentSharedBytes = kLatentEnd - kLatentBase;

ATTN_FN constexpr int latent_key_tile(int tile) { return kLatentKeysAt + tile * kLatentTileBytes; }

/// Byte of the 16-byte part `part` (0 to 7) of a row of a piece: the swizzle of 128 bytes.
ATTN_FN constexpr int latent_part_at(int row, int part) {
  return row * 128 + ((part ^ (row & 7)) * 16);
}

/// Query rows that one box has: so many divide the heads of a token, so that no box reaches past
/// the rows of a request, and a swizzle repeats after 8 of them. 0: no such number, and threads
/// copy the rows.
ATTN_FN constexpr int latent_query_box(int num_heads) {
  int box = kLatentRows;
  while (num_heads % box != 0) box /= 2;
  return box >= 8 ? box : 0;
}
/// Keys that one box has: of one block of the cache. 0: blocks of this size are not taken.
ATTN_FN constexpr int latent_key_box(int block_size) {
  if (block_size >= kLatentKeys) return block_size % kLatentKeys == 0 ? kLatentKeys : 0;
  return block_size == 16 || block_size == 32 ? block_size : 0;
}

/// What row tile `index` of a request sees of the keys [run.begin, run.end), which begin with a
/// tile of keys.
struct LatentKeys {
  int begin;  // of the first tile
  int end;    // behind the last key that any row sees; <= begin: none is seen
  int core;   // every row sees the keys before it

  ATTN_FN constexpr bool are_none() const { return end <= begin; }
};
/// Row r of the tile, packed row first_row + r of its request, sees the keys before this one.
ATTN_FN int latent_row_end(int context_len, int packed_row, int num_heads, int run_end) {
  return smaller(context_len + packed_row / num_heads + 1, run_end);
}
ATTN_FN LatentKeys latent_keys(KeyInterval run, int context_len, int first_row, int num_rows,
                               int num_heads) {
  if (num_rows <= 0) return {run.begin, run.begin, run.begin};
  return {run.begin, latent_row_end(context_len, first_row + num_rows - 1, num_heads, run.end),
          latent_row_end(context_len, first_row, num_heads, run.end)};
}

}  // namespace attn
