// Cells of a cache with a scale of its own for every token and head: D codes, then the scale
// (semantics §5.5). They start on multiples of 4 bytes only, while cp.async wants 16 for its fast
// form; so whole sectors of the cache are copied, 32 bytes each, and a row of the tile starts up to
// 28 bytes into its first sector. The first and last sector of a cell hold bytes of its neighbours,
// which are copied along and never looked at. The scale arrives with the codes: no copy of its own.
#pragma once

#include "kernels/attention/decode/layout.cuh"
#include "kernels/attention/kv_rows.cuh"

namespace attn {

/// Where the codes of a row start within their first sector. Blocks start on multiples of 32 bytes
/// and strides are multiples of 4, so rows 8 apart, and the same row of every step, agree.
struct CellShift {
  u32 first;   // of row 0
  u32 stride;  // bytes between tokens

  __device__ __forceinline__ u32 of(int row) const {
    return first + static_cast<u32>(row) * stride & 31u;
  }
};
__device__ __forceinline__ CellShift shift_of_cells(const Side& side) {
  return {static_cast<u32>(reinterpret_cast<unsigned long long>(side.base)),
          static_cast<u32>(side.token_stride)};
}

/// Start of the sector that holds a byte.
__device__ __forceinline__ const unsigned char* sector_of(const unsigned char* byte) {
  return reinterpret_cast<const unsigned char*>(reinterpret_cast<unsigned long long>(byte) &
                                                ~31ull);
}

/// Copies of the cells of 16 keys and of their values by kThreads threads, 16 bytes each. A tile
/// holds the sectors in the order of the threads, its values behind its keys. Several heads whose
/// cells follow each other are one cell of as many columns here; their first one starts on a
/// multiple of 4 bytes for each of them.
/// Why sectors: the second-level cache gives out whole ones, and one whose halves go to different
/// 32 bytes of shared memory twice. Of cells of 132 bytes 5 sectors a row then pass instead of the
/// 7.3 of a tile whose rows start on multiples of 16 bytes (counted by ncu on an H200).
template <int kColumns, int kVColumns, int kThreads>
class CellCopies {
 public:
  __device__ __forceinline__ CellCopies(const Side& key, const Side& value, int thread)
      : thread_(thread) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Side& side = is_key(i) ? key : value;
      const u32 row = shift_of_cells(side).of(0) + row_of(i) * static_cast<u32>(side.token_stride);
      offsets_[i] = (row & ~31u) + piece_of(i) * 16;
    }
  }

  /// `keys` and `values` point to the first row of each side; rows from `valid_rows` on become
  /// zeros and are not read.
  __device__ __forceinline__ void start(const unsigned char* keys, const unsigned char* values,
                                        int valid_rows, u32 to) const {
    keys = sector_of(keys);
    values = sector_of(values);
    to += thread_ * 16;
    if (valid_rows >= kRows) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        copy_async<16>(to + i * kThreads * 16, (is_key(i) ? keys : values) + offsets_[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const bool valid = row_of(i) < valid_rows;
        const unsigned char* from = is_key(i) ? keys : values;
        copy_async<16>(to + i * kThreads * 16, from + (valid ? offsets_[i] : 0), valid);
      }
    }
  }

 private:
  static constexpr int kRows = 16;
  /// Pieces of 16 bytes between rows of a tile: twice an odd number, so that 16 rows are copied by
  /// whole warps, and 32 by pairs of them. What lies behind the sectors of a row gets its last
  /// piece once more.
  static constexpr int kPieces = decode_pitch(kColumns, 1, true) / 16;
  static constexpr int kValuePieces = decode_pitch(kVColumns, 1, true) / 16;
  static constexpr int kKeyPieces = kRows * kPieces;
  static constexpr int kCount = (kKeyPieces + kRows * kValuePieces) / kThreads;  // of a thread
  static_assert(kCount * kThreads == kKeyPieces + kRows * kValuePieces);

  __device__ __forceinline__ int index_of(int i) const { return i * kThreads + thread_; }
  /// Known when this is compiled, but where a run of all threads has the last keys and the first
  /// values; the same for a whole warp.
  __device__ __forceinline__ bool is_key(int i) const {
    if ((i + 1) * kThreads <= kKeyPieces) return true;
    return i * kThreads < kKeyPieces && index_of(i) < kKeyPieces;
  }
  __device__ __forceinline__ int row_of(int i) const {
    return is_key(i) ? index_of(i) / kPieces : (index_of(i) - kKeyPieces) / kValuePieces;
  }
  __device__ __forceinline__ int piece_of(int i) const {
    return is_key(i) ? smaller(index_of(i) % kPieces, kColumns / 16 + 1)
                     : smaller((index_of(i) - kKeyPieces) % kValuePieces, kVColumns / 16 + 1);
  }

  int thread_;
  u32 offsets_[kCount];  // from the first row of their side on
};

/// Scales of the keys of a thread, for scale_columns(): in the cells of a tile. `address` is that
/// of the scale of the first one, `second` how far behind it that of the second lies.
template <int kPitch>
struct CellScales {
  u32 address;
  u32 second;
  __device__ __forceinline__ float2 of_block(int n) const {
    const u32 at = address + n * 8 * kPitch;
    return make_float2(float_from_bits(load_word(at)), float_from_bits(load_word(at + second)));
  }
};

}  // namespace attn
