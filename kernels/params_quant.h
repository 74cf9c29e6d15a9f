// Arguments of the operations that quantise activations: the fp8 query of MLA and the attention
// output (semantics §8.7, §9). A scale always multiplies when codes are dequantised: x = code *
// scale.
#pragma once

#include "kernels/params.h"

namespace attn {

/// codes = rn_e4m3(x * (1 / scale)), the reciprocal rounded to f32 first: a product with it may
/// differ from the quotient in the last bit, and upstream multiplies. NaN gives 0x7F, zero stays
/// zero under any scale.
struct StaticQuantiseParams {
  Element source_element;  // f16, bf16 or f32
  const void* source;      // [num_rows, num_columns]
  i64 source_row_stride;
  unsigned char* codes;  // e4m3 [num_rows, num_columns]
  i64 code_row_stride;
  const float* scale;  // [1], finite, > 0
  i64* num_saturated;  // [1], is increased by the elements beyond +-464; or null
  i64 num_rows;
  i64 num_columns;
};

/// For every row and group of columns: s = max(1e-10, max|x|) / 448, with ue8m0 rounded up to a
/// power of two; codes = rn_e4m3(x / s), here a division. NaN takes no part in the maximum.
struct GroupQuantiseParams {
  Element source_element;  // f16, bf16 or f32
  const void* source;      // [num_rows, num_columns]
  i64 source_row_stride;
  unsigned char* codes;  // e4m3 [num_rows, num_columns]
  i64 code_row_stride;
  float* scales;           // (row, group) by the strides below; nothing else is written
  i64 scale_row_stride;    // row-major: G; column-major: 1
  i64 scale_group_stride;  // row-major: 1; column-major: rows, TMA-aligned: rows rounded up to 4
  i64* num_saturated;      // [1], is increased by the elements beyond +-464; or null
  i64 num_rows;
  i64 num_columns;  // a multiple of group_size
  int group_size;   // 128 or 64
  int ue8m0;
};

/// Columns of a group that a thread of the kernel holds: 16 codes are one 16-byte store, and 4 or 8
/// neighbouring threads have a group.
constexpr int kGroupPiece = 16;

/// Columns that share a scale in NVFP4.
constexpr int kNvfp4Block = 16;

/// Byte of the scale of (row, block) in the 128 x 4 tiles that tensor cores read (semantics §9.4);
/// tiles_across = ceil(num_columns / 64). A tile is 512 bytes, [row % 32][row / 32 % 4][block % 4]:
/// 16 bytes hold the four scales of four rows that lie 32 apart.
ATTN_FN i64 nvfp4_swizzled_offset(i64 row, i64 block, i64 tiles_across) {
  // Why shifts: of 64-bit numbers that could be negative a quotient takes a GPU several steps.
  const i64 tile = (row >> 7) * tiles_across + (block >> 2);
  const unsigned row_of_tile = static_cast<unsigned>(row) % 128;
  return tile * 512 + row_of_tile % 32 * 16 + row_of_tile / 32 * 4 +
         static_cast<unsigned>(block) % 4;
}

/// Per 16 columns: sf = rn_e4m3(g * (max|x| / 6)), m = 0 if sf = 0 else 1 / (sf / g),
/// code = rn_e2m1(x * m), the even column in the low nibble. A code is dequantised as code * sf /
/// g. All divisions are correctly rounded.
struct Nvfp4QuantiseParams {
  Element source_element;  // f16, bf16 or f32
  const void* source;      // [num_rows, num_columns]
  i64 source_row_stride;
  unsigned char* packed;  // [num_rows, num_columns / 2]
  i64 packed_row_stride;  // bytes
  unsigned char* scales;  // e4m3: swizzled [rows up to 128, blocks up to 4], padding untouched;
                          // or linear [num_rows, num_columns / 16]
  int swizzled;
  const float* global_scale;  // [1] g, finite, > 0
  i64 num_rows;
  i64 num_columns;  // a multiple of 16
};

}  // namespace attn
