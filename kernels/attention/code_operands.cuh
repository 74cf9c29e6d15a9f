// Operands of the two products from tiles of one-byte codes, dequantised in registers, for Keys and
// Values of products.cuh. Why other orders of columns than 16-bit tiles have: ldmatrix moves 16-bit
// elements and would hand codes to the wrong lanes, while plain loads of 32 bits have four
// neighbouring codes each; with these orders a lane uses all four. The order within a contraction
// is free as long as Q and K agree, and that of output columns is undone when they are stored.
//
// g = lane / 4 and t = lane % 4 as in mma_sync.cuh.
#pragma once

#include "kernels/attention/products.cuh"

namespace attn {

/// Bytes between rows of a tile of codes: an odd number of 16-byte pieces keeps the reads below
/// free of bank conflicts.
ATTN_FN constexpr int code_pitch(int columns) { return ((columns + 15) / 16 | 1) * 16; }

/// Q for CodeKeys: of columns [16 k, 16 k + 16) thread t of a quad holds 4 t to 4 t + 3, where a
/// fragment would have 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. `address` is that of row g, column 4 t of
/// a 16-bit tile.
template <int kPitch>
struct CodeQuery {
  u32 address;
  __device__ __forceinline__ void load(int k, int m, u32 (&a)[4]) const {
    const u32 at = address + m * 16 * kPitch + k * 32;
    a[0] = load_word(at);
    a[1] = load_word(at + 8 * kPitch);
    a[2] = load_word(at + 4);
    a[3] = load_word(at + 8 * kPitch + 4);
  }
};

/// K in the same order of columns: a word of four codes becomes both registers of a right operand.
/// `address` is that of row g, byte 4 t; `scale` counts when kScaled.
template <Element kCode, Element kTo, bool kScaled, int kPitch>
struct CodeKeys {
  u32 address;
  float scale;
  __device__ __forceinline__ void load(int k, int n, u32 (&b)[2][2]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const u32 codes = load_word(address + (n + j) * 8 * kPitch + k * 16);
      const Four16 numbers = decode_codes<kCode, kTo, kScaled>(codes, scale);
      b[j][0] = numbers.low;
      b[j][1] = numbers.high;
    }
  }
};

/// Output column of block n, accumulator i & 1 of thread t under the order of CodeValues.
__device__ __forceinline__ int code_column(int n, int i) {
  const int t = static_cast<int>(threadIdx.x % 4);
  return n / 4 * 32 + (2 * t + i) * 4 + n % 4;
}

/// V of 16 keys: a right operand needs two neighbouring keys of one column in a register. A lane
/// loads words of four columns from its four keys (2 t, 2 t + 1 and those 8 behind) and transposes
/// their bytes, which gives it four columns of four keys: the operands of four blocks of 8 columns.
///
/// `address` is that of row 2 t, byte 4 g, and `odd` how far behind it row 2 t + 1 lies. Block n +
/// j holds, as its column g, column 4 g + j of the 32 columns from 8 n on.
template <Element kCode, Element kTo, bool kScaled, int kPitch>
struct CodeValues {
  static constexpr int kBlocks = 4;
  u32 address;
  u32 odd;
  float scale;
  __device__ __forceinline__ void load_words(int n, u32 (&words)[4]) const {
    const u32 at = address + n * 8;
    words[0] = load_word(at);
    words[1] = load_word(at + odd);
    words[2] = load_word(at + 8 * kPitch);
    words[3] = load_word(at + 8 * kPitch + odd);
  }
  __device__ __forceinline__ void decode(u32 (&words)[4], u32 (&b)[4][2]) const {
    transpose_bytes(words);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Four16 numbers = decode_codes<kCode, kTo, kScaled>(words[j], scale);
      b[j][0] = numbers.low;
      b[j][1] = numbers.high;
    }
  }
  __device__ __forceinline__ void load(int, int n, u32 (&b)[4][2]) const {
    u32 words[4];
    load_words(n, words);
    decode(words, b);
  }
};

/// The same with the codes loaded early, before the first product and the softmax, whose work then
/// hides the latency of shared memory. They are decoded when they are used.
template <class Values, int kValueBlocks>
struct HeldValues {
  static constexpr int kBlocks = Values::kBlocks;
  const Values& values;
  u32 words[kValueBlocks / kBlocks][4];
  __device__ __forceinline__ explicit HeldValues(const Values& from) : values(from) {
#pragma unroll
    for (int n = 0; n < kValueBlocks; n += kBlocks) values.load_words(n, words[n / kBlocks]);
  }
  __device__ __forceinline__ void load(int, int n, u32 (&b)[kBlocks][2]) const {
    u32 mine[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) mine[i] = words[n / kBlocks][i];
    values.decode(mine, b);
  }
};

}  // namespace attn
