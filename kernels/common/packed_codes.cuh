// Codes of 4 bits in a KV cache (semantics §5.6, §5.7): the signs of the rotation, the zero point
// in a scale, and where the swizzled scales of values lie.
#pragma once

#include "kernels/common/numeric.cuh"

namespace attn {

/// Signs of the columns [32 index, 32 index + 32) of a head in the rotation, a set bit where the
/// sign changes: what upstream draws from torch's generator with the seed 0x9E3779B9, a bit for
/// each number from 1/2 on. A shorter head has the beginning.
ATTN_FN u32 rotation_signs_of(int index) {
  // Why no array: with an index that a GPU does not know it would be local memory.
  switch (index) {
    case 0:
      return 0x9A8CA6F2u;
    case 1:
      return 0x7F7FCA4Eu;
    case 2:
      return 0x59BBC293u;
    case 3:
      return 0x9480ABC7u;
    case 4:
      return 0xB55B747Eu;
    case 5:
      return 0x54503BBEu;
    case 6:
      return 0xCDF467B7u;
    case 7:
      return 0x05DFBC5Fu;
    case 8:
      return 0xB291E3CCu;
    case 9:
      return 0x57563834u;
    case 10:
      return 0xE46AE225u;
    case 11:
      return 0x67FC4CA6u;
    case 12:
      return 0xCFC78691u;
    case 13:
      return 0x32D9DFF1u;
    case 14:
      return 0x365FDB89u;
    default:
      return 0x75625346u;
  }
}
ATTN_FN bool rotation_is_negative(int d) {
  return (rotation_signs_of(d / 32) >> (d % 32) & 1u) != 0u;
}

// ---- int4: the zero point is the low 4 bits of the scale, which has lost them ----
ATTN_FN float int4_scale(float stored) { return float_from_bits(float_bits(stored) & ~15u); }
ATTN_FN int int4_zero_point(float stored) { return static_cast<int>(float_bits(stored) & 15u); }
ATTN_FN float int4_stored_scale(float scale, int zero_point) {
  return float_from_bits((float_bits(scale) & ~15u) | static_cast<u32>(zero_point));
}
/// The nearest of 0 to 15, halves up; NaN gives 0.
ATTN_FN int int4_code(float x) {
  const float shifted = x + 0.5f;
  return shifted >= 15.0f ? 15 : (shifted > 0.0f ? static_cast<int>(shifted) : 0);
}

// ---- nvfp4: scales of the values of four slots trade places ----
/// Slot and block of the place of the scale of (slot, block) among `blocks` of a head, a multiple
/// of 4.
struct SwizzledScale {
  int slot;
  int block;
};
ATTN_FN SwizzledScale swizzled_value_scale(int slot, int block, int blocks) {
  const int group = blocks / 4;
  return {slot / 4 * 4 + block / group, block % group * 4 + slot % 4};
}

}  // namespace attn
