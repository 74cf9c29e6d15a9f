// Cells of a cache with a scale of its own for every token and head: D codes, then the scale
// (semantics §5.5). They start on multiples of 4 bytes only, so the 16-byte pieces that hold a cell
// are copied, and a row of the tile starts up to 12 bytes into its first piece.
#pragma once

#include "kernels/attention/kv_rows.cuh"

namespace attn {

/// Where the codes of a row start within their first piece. Blocks start on multiples of 16 bytes
/// and strides are multiples of 4, so rows 4 apart, and the same row of every step, agree.
struct CellShift {
  u32 first;   // of row 0
  u32 stride;  // bytes between tokens

  __device__ __forceinline__ u32 of(int row) const {
    return first + static_cast<u32>(row) * stride & 15u;
  }
};
__device__ __forceinline__ CellShift shift_of_cells(const Side& side) {
  return {static_cast<u32>(reinterpret_cast<unsigned long long>(side.base)),
          static_cast<u32>(side.token_stride)};
}

/// Starts the copy of the last pieces, which hold the scales, of 16 keys (lanes 0 to 15) and their
/// values (lanes 16 to 31); the pieces before them are copy_run's.
template <int kColumns, int kVColumns, int kPitch, int kValuePitch>
__device__ __forceinline__ void copy_last_pieces(const unsigned char* keys, i64 key_stride,
                                                 const unsigned char* values, i64 value_stride,
                                                 int valid_rows, u32 key_tile, u32 value_tile,
                                                 int lane) {
  const int row = lane % 16;
  const bool valid = row < valid_rows;
  const bool is_key = lane < 16;
  const unsigned char* from = is_key ? keys : values;
  if (valid) from += row * (is_key ? key_stride : value_stride);
  const u32 to =
      is_key ? key_tile + row * kPitch + kColumns : value_tile + row * kValuePitch + kVColumns;
  copy_async<16>(to, start_of_row<true>(from) + (valid ? is_key ? kColumns : kVColumns : 0), valid);
}

/// Scales of the columns of a thread, for scale_columns(): in the cells of a tile. `address` is
/// that of the scale of row 2 t, `odd` how far behind it that of row 2 t + 1 lies.
template <int kPitch>
struct CellScales {
  u32 address;
  u32 odd;
  __device__ __forceinline__ float2 of_block(int n) const {
    const u32 at = address + n * 8 * kPitch;
    return make_float2(float_from_bits(load_word(at)), float_from_bits(load_word(at + odd)));
  }
};

}  // namespace attn
