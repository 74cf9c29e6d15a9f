// Slots that hold a key and its value in codes of different widths, as vLLM's TurboQuant has them
// (semantics §5.8): where the parts of a slot lie, and how a column becomes a code and is found
// again. Codes of 3 and 4 bits are packed from the low bits of a byte on, column after column, so
// that 8 columns of 3 bits fill 3 bytes.
//
//   key of 8 bits   e4m3 [D]
//   key of b bits   D b / 8 bytes of indices of centroids, the norm of the key as f16
//   value of b bits D b / 8 bytes of codes, their step as f16, the least value as f16
#pragma once

#include "kernels/common/numeric.cuh"

namespace attn {

/// Head sizes of rotated keys start here: a warp has a key, a column or more each thread.
constexpr int kMinTurboHead = 32;

/// Bytes of `width` codes; width is a multiple of 8.
ATTN_FN constexpr int code_bytes(int bits, int width) { return width * bits / 8; }
ATTN_FN constexpr int slot_key_bytes(int bits, int width) {
  return bits == 8 ? width : code_bytes(bits, width) + 2;
}
ATTN_FN constexpr int slot_value_bytes(int bits, int width) { return code_bytes(bits, width) + 4; }
/// Of the whole slot. Upstream rounds it up to an even number, which it is for every head size
/// taken.
ATTN_FN constexpr int slot_bytes(int key_bits, int value_bits, int width) {
  return (slot_key_bytes(key_bits, width) + slot_value_bytes(value_bits, width) + 1) / 2 * 2;
}

/// Code of column `column` of packed codes; bytes behind its own are not read.
ATTN_FN int packed_code(const u8* codes, int bits, int column) {
  const int first = column * bits;
  const int shift = first % 8;
  int word = codes[first / 8];
  if (shift + bits > 8) word |= codes[first / 8 + 1] << 8;
  return word >> shift & ((1 << bits) - 1);
}

/// The codes of eight columns, `bits` of `word` each, into `bits` bytes.
ATTN_FN void store_eight_codes(u32 word, int bits, u8* to) {
  for (int i = 0; i < bits; ++i) to[i] = static_cast<u8>(word >> (i * 8));
}

ATTN_FN void store_f16_bytes(float x, u8* to) {
  const u16 code = f16_from_float(x);
  to[0] = static_cast<u8>(code);
  to[1] = static_cast<u8>(code >> 8);
}
/// From any address: slots lie on even bytes only.
ATTN_FN float load_f16_bytes(const u8* from) {
  return f16_to_float(static_cast<u16>(from[0] | from[1] << 8));
}

/// Index of the centroid of y: how many of the points midway between neighbouring centroids are at
/// most y. NaN has index 0. `centroids` [2^bits] ascend.
ATTN_FN int centroid_index(float y, const float* centroids, int bits) {
  int index = 0;
  for (int i = 0; i + 1 < 1 << bits; ++i) {
    if (y >= (centroids[i] + centroids[i + 1]) / 2.0f) index = i + 1;
  }
  return index;
}

/// The lesser of two values, of which -0 is less than 0; a value that is NaN is passed over.
ATTN_FN float least_of(float least, float x) {
  return x < least || (x == least && float_bits(x) >> 31 != 0) ? x : least;
}

/// Step of the values of a vector between `least` and `most`, before it is rounded to f16. Why a
/// product: upstream's compiler makes one of a division by a constant (§5.5).
ATTN_FN float value_step(float least, float most, int bits) {
  const float step = (most - least) * (1.0f / static_cast<float>((1 << bits) - 1));
  return step > 1e-8f ? step : 1e-8f;
}
/// Code of a value that has been divided: the nearest of 0 to 2^bits - 1, halves up; NaN gives 0.
ATTN_FN int value_code(float steps, int bits) {
  const int last = (1 << bits) - 1;
  const float shifted = steps + 0.5f;
  if (shifted >= static_cast<float>(last)) return last;
  return shifted > 0.0f ? static_cast<int>(shifted) : 0;
}

}  // namespace attn
