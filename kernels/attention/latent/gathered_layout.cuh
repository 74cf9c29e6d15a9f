// How gathered.cuh brings keys into the shared memory of latent.cuh, as pure functions: which
// thread copies which key, what ends the phase of a barrier, and where it is noted which keys there
// are.
#pragma once

#include "kernels/attention/latent/latent_layout.cuh"
#include "kernels/params_mla.h"

namespace attn {

/// The warpgroup that gathers. Warp w has keys 16 w to 16 w + 15 of a tile, four at a time: lane l
/// is one of eight that share key 16 w + 4 i + l / 8, i from 0 to 3.
constexpr int kGatherWarps = 4;
constexpr int kGatherKeys = kLatentKeys / kGatherWarps;  // of a warp
constexpr int kGatherSteps = kGatherKeys / 4;
ATTN_FN constexpr int gathered_key(int warp, int lane, int step) {
  return warp * kGatherKeys + step * 4 + lane / 8;
}

/// A word for every warp that gathers and tile of a pair: bit i says that key 16 w + i of the tile
/// is one, and not a hole of the list or past its end.
constexpr int kGatheredSeenAt = (kLatentEnd + 15) / 16 * 16;
constexpr int kGatheredEnd = kGatheredSeenAt + 2 * kGatherWarps * 4;
constexpr int kGatheredSharedBytes = kGatheredEnd - kLatentBase;
constexpr unsigned kAllSeen = 0xFFFF;
ATTN_FN constexpr int gathered_seen_at(int tile, int warp) {
  return kGatheredSeenAt + (tile * kGatherWarps + warp) * 4;
}

/// A step of loading: pieces of a tile that become free together, by order of the steps of a pair.
struct GatheredHalf {
  int tile;
  int half;  // of the columns
  /// Whether the rope part belongs to it: where the weights lie that the other warpgroup reads.
  ATTN_FN constexpr bool has_rope() const { return tile != half; }
};
constexpr int kGatheredHalves = 4;
ATTN_FN constexpr GatheredHalf gathered_half(int step) {
  return {step % 2, (step + 1) / 2 % 2};  // (0, left) (1, right) (0, right) (1, left)
}

/// Entries are copied as they are, or converted.
ATTN_FN constexpr bool is_copied(MlaEntry format) { return format == MlaEntry::kCopy; }
/// Every piece of what is copied may have its barrier; otherwise there is one for a half, that of
/// its first piece.
ATTN_FN constexpr bool has_barrier(bool by_pieces, int piece) {
  return by_pieces || (piece % kLatentHalfPieces == 0 && piece != kLatentRopePiece);
}
/// Arrivals at the barrier of a piece: of every thread when what it copied has come; and of every
/// warp where threads store themselves, what is there of the tile (with its first half) included.
ATTN_FN constexpr int gathered_arrivals(MlaEntry format, int tile, int piece) {
  const int half = piece / kLatentHalfPieces;
  const bool is_first = half == tile && piece % kLatentHalfPieces == 0;
  if (is_copied(format)) return 128 + (is_first ? kGatherWarps : 0);
  // k_pe of "fp8_ds_mla" is not converted.
  return kGatherWarps + (format == MlaEntry::kDsMla && half != tile ? 128 : 0);
}

/// Two CTAs with rows of the same token share the work of converting: each does so with the tile of
/// its own number, and sends what it stores to the other. That one's barriers wait for the bytes of
/// a half, announced by one warp, and for what every CTA does itself: by every warp notes of the
/// keys there are, with the first half, and the rope part, which threads copy in "fp8_ds_mla".
constexpr int kGatheredHalfBytes = kLatentHalfPieces * kLatentPieceBytes;
ATTN_FN constexpr int received_arrivals(MlaEntry format, int tile, int piece) {
  const bool has_rope = piece / kLatentHalfPieces != tile;
  return has_rope && format == MlaEntry::kDsMla ? 1 + 128 : kGatherWarps;
}

/// Where a converting thread has its codes: 16 of them from `gathered_code()` on in chunk 0 and 1
/// of a half, in steps of 128, the tile that shares a scale in "fp8_ds_mla".
ATTN_FN constexpr int gathered_code(int half, int chunk, int lane) {
  return (half * 2 + chunk) * kDsMlaTile + lane % 8 * 16;
}
/// Piece and the first of the two 16-byte parts that they become. Half of the lanes store the
/// second part first, so that eight lanes meet in no bank.
ATTN_FN constexpr int gathered_piece(int half, int chunk, int lane) {
  return gathered_code(half, chunk, lane) / 64;
}
ATTN_FN constexpr int gathered_part(int lane, int store) {
  return lane % 4 * 2 + (store ^ lane / 4 % 2);
}

}  // namespace attn
