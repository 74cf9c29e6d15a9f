// Where latent_codes.cuh keeps what in shared memory: pure functions, so that host and tests see
// the same numbers as the kernel.
#pragma once

#include "kernels/attention/latent/latent_layout.cuh"

namespace attn {

constexpr int kCodeEntry = kLatentValues + kLatentRope;  // bytes of an entry

/// A tile of queries or keys is cut into pieces of 128 codes, lines of 128 bytes with the swizzle
/// of 128. Of the last piece only the first half is there: the rope part.
constexpr int kCodePieces = (kCodeEntry + 127) / 128;
constexpr int kCodePieceBytes = kLatentKeys * 128;  // of keys
constexpr int kCodeTileBytes = kCodePieces * kCodePieceBytes;
/// Steps of 32 codes of a product that a piece has.
ATTN_FN constexpr int code_steps(int piece) { return piece == kCodePieces - 1 ? 2 : 4; }

/// For kRows query rows (16, 32 or 64): tiles of keys on their way or at work, and addresses.
template <int kRows>
struct CodesPlaces {
  // Even, so that in an item a stage is of one half only where halves take turns. With five, a half
  // that was ahead waited for the next use of a stage before the use that was still being loaded,
  // and by its parity took it for over.
  static constexpr int kStages = 4;
  static constexpr int kQueryPiece = kRows * 128;
  static constexpr int kWeightsOfHalf = kRows * 128;  // 64 keys of 16 bits a row

  static constexpr int kQueryAt = kLatentBase;
  static constexpr int kWeightsAt = kQueryAt + kCodePieces * kQueryPiece;
  static constexpr int kKeysAt = kWeightsAt + 2 * kWeightsOfHalf;
  static constexpr int kReducedAt = kKeysAt + kStages * kCodeTileBytes;  // [half][warp][row]
  static constexpr int kMaximumAt = kReducedAt + 2 * 4 * kRows * 4;      // [half][row]
  static constexpr int kSumAt = kMaximumAt + 2 * kRows * 4;
  static constexpr int kFullAt = kSumAt + 2 * kRows * 4;
  static constexpr int kFreeAt = kFullAt + kStages * 8;
  static constexpr int kEnd = kFreeAt + kStages * 8;
  static constexpr int kSharedBytes = kEnd - kLatentBase;
  static_assert(kStages % 2 == 0);
};

/// The columns of V that thread `index` of a warpgroup has: 16 in a row from here on, of every key.
ATTN_FN constexpr int code_column(int index) { return (index / 32 * 8 + index % 32 / 4) * 16; }

}  // namespace attn
