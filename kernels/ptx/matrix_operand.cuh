// How matrices lie in shared memory for the tensor cores of SM 9.0 (wgmma), and how the copy engine
// puts them there; pure functions, so that host and tests have them too.
//
// An operand consists of lines of kSpan (128, 64 or
// 32) bytes in groups of eight, whose 16-byte pieces trade places (swizzled()) so that neither rows
// nor columns of pieces meet in a bank; the copy engine stores boxes like that (TensorSwizzle).
// "K-major" is an operand whose contraction runs along the line: rows of Q, keys of K. "MN-major"
// is one whose contraction runs across the lines: V, whose lines are keys.
#pragma once

#include "kernels/common/numeric.cuh"

namespace attn {

using u64 = unsigned long long;

/// Where byte `offset` of lines of kSpan bytes, one behind another, is stored: TMA's swizzle, an
/// exchange of 16-byte pieces that repeats after eight lines. It goes by addresses, so a tile
/// starts on a multiple of 8 * kSpan.
template <int kSpan>
ATTN_FN constexpr u32 swizzled(u32 offset) {
  static_assert(kSpan == 128 || kSpan == 64 || kSpan == 32);
  return offset ^ ((offset >> 7 & (kSpan / 16 - 1)) << 4);
}

/// How a matrix of lines lies in shared memory, in bytes.
struct OperandLayout {
  int span;          // of a line: 128, 64, 32
  int chunk_stride;  // from a line to the next span of the same row
  int group_stride;  // from eight rows to the next eight
};

/// A descriptor without the address: bits 16 to 29 and 32 to 45 are strides in units of 16 bytes,
/// 62 and 63 the span.
ATTN_FN constexpr u64 operand_form(int span, int leading_stride, int group_stride) {
  const u64 swizzle = span == 128 ? 1 : (span == 64 ? 2 : 3);
  return swizzle << 62 | static_cast<u64>(group_stride >> 4) << 32 |
         static_cast<u64>(leading_stride >> 4) << 16;
}
/// Bits 0 to 13. Why masked: in a cluster the upper bits of an address name a CTA, and would run
/// into the stride.
ATTN_FN constexpr u64 operand_address(u32 address) { return (address & 0x3FFFF) >> 4; }

/// Of an operand whose contraction runs along its lines. The leading stride is not looked at where
/// a line is longer than a step; 16 bytes is what other programs give.
ATTN_FN constexpr u64 k_major_form(const OperandLayout& layout) {
  return operand_form(layout.span, 16, layout.group_stride);
}
/// Step `k` of 16 elements: descriptors are advanced by adding it.
ATTN_FN constexpr u64 k_major_step(const OperandLayout& layout, int k) {
  const int steps = layout.span / 32;  // of a line
  return static_cast<u64>(k / steps * layout.chunk_stride + k % steps * 32) >> 4;
}

/// Of one whose contraction runs across its lines: the leading stride is from chunk to chunk.
ATTN_FN constexpr u64 mn_major_form(const OperandLayout& layout) {
  return operand_form(layout.span, layout.chunk_stride, layout.group_stride);
}
ATTN_FN constexpr u64 mn_major_step(const OperandLayout& layout, int k) {
  return static_cast<u64>(k * 2 * layout.group_stride) >> 4;
}

}  // namespace attn
