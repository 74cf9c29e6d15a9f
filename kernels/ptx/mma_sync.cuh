// Matrix products of one warp on 16-bit elements (mma.sync, ldmatrix; sm_80 and newer), and the
// layout of their operands ("fragments"): which elements of a matrix which lane holds. All lanes of
// a warp must call a function together. All inline PTX of the 16-bit products is here, so that
// tests can replace it by emulations and run the kernels' own code on the host.
//
// Fragments in terms of g = lane / 4 (0 to 7, the "quad") and t = lane % 4: a quad of four lanes
// shares a row, and every lane has pairs of neighbouring elements, packed in one register.
#pragma once

#include "kernels/params.h"
#include "kernels/ptx/shared.cuh"

namespace attn {

/// 32 bits of shared memory; `address` is a multiple of 4.
__device__ __forceinline__ u32 load_word(u32 address) {
  u32 word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

/// Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8,
/// a multiple of 16. Lane i receives elements (i / 4, 2 * (i % 4)) and the next one of each matrix.
/// The hardware reads one matrix, eight rows of 16 bytes, at a time: without bank conflicts only if
/// those rows lie in different banks, which is what the pitches of all tiles are chosen for.
__device__ __forceinline__ void load_matrices(u32 address, u32 (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

/// The same with every matrix transposed: lane i receives elements (2 * (i % 4), i / 4) and the one
/// below. A row-major V, [keys, columns], becomes the right operand of P @ V that way.
__device__ __forceinline__ void load_matrices_transposed(u32 address, u32 (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

/// An 8 x 8 matrix of 16-bit elements, of which lane i has (i / 4, 2 * (i % 4)) and the next one,
/// transposed.
__device__ __forceinline__ u32 transpose_matrix(u32 pair) {
  u32 transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

/// c [16, 8] += a [16, 16] @ b [16, 8] in f32. With g = lane / 4 and t = lane % 4:
/// a holds rows g, g + 8 (registers 0, 1) of columns 2t, 2t + 1, and the same of columns + 8
/// (registers 2, 3); b holds rows 2t, 2t + 1 and + 8 of column g; c holds columns 2t, 2t + 1 of
/// rows g and g + 8. So c, rounded to 16 bits and packed, has the layout of half an a: scores
/// become the left operand of the second product without leaving their registers.
template <Element kElement>
__device__ __forceinline__ void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  static_assert(kElement == Element::kBF16 || kElement == Element::kF16);
  if constexpr (kElement == Element::kBF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// c [16, 8] += a [16, 32] @ b [32, 8], exact integers. Lanes hold four neighbouring bytes where
/// multiply_add()'s hold two 16-bit numbers.
__device__ __forceinline__ void multiply_add_int8(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace attn
