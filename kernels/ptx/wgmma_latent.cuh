// What latent attention needs of the hardware beside wgmma.cuh and warpgroup.cuh: products of two
// more forms, 64 x 64 scores with a left operand in registers and 64 x 256 of the output with one
// in shared memory, with accumulators as one array each: d[4 j + 2 half + i] is d[j][2 half + i] of
// wgmma.cuh. And what keeps registers free, of which latent attention has none left.
//
// All matrices lie in shared memory as the copy engine leaves boxes of 64 columns of 16 bits with a
// swizzle of 128 bytes: rows of 128 bytes, 8 of them every 1024 bytes.
#pragma once

#include "kernels/ptx/mma_sync.cuh"
#include "kernels/ptx/warpgroup.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace attn {

/// Of rows that the contraction runs along. A step of 16 elements is 32 bytes further.
ATTN_FN constexpr u64 along_rows(u32 address) {
  return k_major_form({128, 0, 1024}) | operand_address(address);
}
/// Of rows that it runs across, 16 of them a step, 2048 bytes; the next 64 columns are 8192 bytes
/// further.
ATTN_FN constexpr u64 across_rows(u32 address) {
  return mn_major_form({128, 8192, 1024}) | operand_address(address);
}

/// fence_registers() for one array.
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
/// The same of left operands.
template <int kCount>
__device__ __forceinline__ void pin(u32 (&registers)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kCount; ++i) asm volatile("" : "+r"(registers[i / 4][i % 4])::"memory");
}

// gridDim.x, blockIdx.x and threadIdx.x, read where they are used instead of once.
__device__ __forceinline__ int num_ctas() {
  int ctas;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(ctas));
  return ctas;
}
__device__ __forceinline__ int this_cta() {
  int cta;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(cta));
  return cta;
}
__device__ __forceinline__ int this_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// 32 bits to shared memory; `address` is a multiple of 4.
__device__ __forceinline__ void store_word(u32 address, u32 word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
/// 128 bits, to a multiple of 16.
__device__ __forceinline__ void store_words(u32 address, const u32 (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
__device__ __forceinline__ void load_words(u32 address, u32 (&words)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_two_words(u32 address, u32 (&words)[2]) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(words[0]), "=r"(words[1])
               : "r"(address)
               : "memory");
}
/// Ends the kernel with an error where the dynamic shared memory does not begin at `address`, but
/// for the CTA's rank in the upper byte.
__device__ __forceinline__ void check_shared_base(u32 address) {
  extern __shared__ unsigned char latent_memory[];
  if ((shared_address(latent_memory) & 0xFFFFFF) != address) asm volatile("trap;");
}

// Operands %0 to %31 and %0 to %127, and what they are.
#define ATTN_LATENT_NAMES_32                                                                    \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define ATTN_LATENT_NAMES_128                                                                   \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "  \
  "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "  \
  "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, "  \
  "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "  \
  "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "    \
  "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, "  \
  "%123, %124, %125, %126, %127}"
#define ATTN_SUMS_8(d, i)                                                                       \
  "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]), "+f"((d)[(i) + 4]), \
      "+f"((d)[(i) + 5]), "+f"((d)[(i) + 6]), "+f"((d)[(i) + 7])
#define ATTN_SUMS_32(d, i) \
  ATTN_SUMS_8(d, i), ATTN_SUMS_8(d, (i) + 8), ATTN_SUMS_8(d, (i) + 16), ATTN_SUMS_8(d, (i) + 24)
#define ATTN_SUMS_128(d) \
  ATTN_SUMS_32(d, 0), ATTN_SUMS_32(d, 32), ATTN_SUMS_32(d, 64), ATTN_SUMS_32(d, 96)

#define ATTN_SCORES(type, left, right)                                                     \
  asm volatile(                                                                            \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %34, 0;\n"                                   \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " ATTN_LATENT_NAMES_32 \
      ", %32, %33, adds, 1, 1, 0, 0;\n}\n"                                                 \
      : ATTN_SUMS_32(sums, 0)                                                              \
      : "l"(left), "l"(right), "r"(static_cast<u32>(adds)))
#define ATTN_SCORES_REGISTERS(type, left, right)                                           \
  asm volatile(                                                                            \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %37, 0;\n"                                   \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " ATTN_LATENT_NAMES_32 \
      ", {%32, %33, %34, %35}, %36, adds, 1, 1, 0;\n}\n"                                   \
      : ATTN_SUMS_32(sums, 0)                                                              \
      : "r"((left)[0]), "r"((left)[1]), "r"((left)[2]), "r"((left)[3]), "l"(right),        \
        "r"(static_cast<u32>(adds)))
#define ATTN_VALUES(type, left, right)                                                       \
  asm volatile(                                                                              \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, 1, 0;\n"                                       \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " " ATTN_LATENT_NAMES_128 \
      ", %128, %129, adds, 1, 1, 0, 1;\n}\n"                                                 \
      : ATTN_SUMS_128(sums)                                                                  \
      : "l"(left), "l"(right))
#define ATTN_VALUES_REGISTERS(type, left, right)                                             \
  asm volatile(                                                                              \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, 1, 0;\n"                                       \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " " ATTN_LATENT_NAMES_128 \
      ", {%128, %129, %130, %131}, %132, adds, 1, 1, 1;\n}\n"                                \
      : ATTN_SUMS_128(sums)                                                                  \
      : "r"((left)[0]), "r"((left)[1]), "r"((left)[2]), "r"((left)[3]), "l"(right))

/// sums [64, 64] = (adds ? sums : 0) + left [64, 16] right^T, right [64, 16], both along rows.
template <Element kElement>
__device__ __forceinline__ void multiply_scores(float (&sums)[32], u64 left, u64 right, bool adds) {
  if constexpr (kElement == Element::kBF16) {
    ATTN_SCORES("bf16", left, right);
  } else {
    ATTN_SCORES("f16", left, right);
  }
}
/// The same with a left operand in registers.
template <Element kElement>
__device__ __forceinline__ void multiply_scores(float (&sums)[32], const u32 (&left)[4], u64 right,
                                                bool adds) {
  if constexpr (kElement == Element::kBF16) {
    ATTN_SCORES_REGISTERS("bf16", left, right);
  } else {
    ATTN_SCORES_REGISTERS("f16", left, right);
  }
}

/// sums [64, 256] += left [64, 16] right, right [16, 256] across rows; left along rows.
template <Element kElement>
__device__ __forceinline__ void multiply_values(float (&sums)[128], u64 left, u64 right) {
  if constexpr (kElement == Element::kBF16) {
    ATTN_VALUES("bf16", left, right);
  } else {
    ATTN_VALUES("f16", left, right);
  }
}
/// The same with a left operand in registers.
template <Element kElement>
__device__ __forceinline__ void multiply_values(float (&sums)[128], const u32 (&left)[4],
                                                u64 right) {
  if constexpr (kElement == Element::kBF16) {
    ATTN_VALUES_REGISTERS("bf16", left, right);
  } else {
    ATTN_VALUES_REGISTERS("f16", left, right);
  }
}

#define ATTN_FEW(type, left, right, adds, transposes)                                  \
  asm volatile(                                                                        \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %10, 0;\n"                               \
      "wgmma.mma_async.sync.aligned.m64n16k16.f32." type "." type                      \
      " {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, adds, 1, 1, " transposes ", 0;\n}\n" \
      : ATTN_SUMS_8(sums, 0)                                                           \
      : "l"(left), "l"(right), "r"(static_cast<u32>(adds)))

/// The same with the sides changed, for few query rows: sums [64, 16] = (adds ? sums : 0) + left
/// [64, 16] right^T, right [16, 16], both along rows.
template <Element kElement>
__device__ __forceinline__ void multiply_few_scores(float (&sums)[8], u64 left, u64 right,
                                                    bool adds) {
  if constexpr (kElement == Element::kBF16) {
    ATTN_FEW("bf16", left, right, adds, "0");
  } else {
    ATTN_FEW("f16", left, right, adds, "0");
  }
}
/// sums [64, 16] += left^T right^T: left [16, 64] across rows, right [16, 16] along rows.
template <Element kElement>
__device__ __forceinline__ void multiply_few_values(float (&sums)[8], u64 left, u64 right) {
  if constexpr (kElement == Element::kBF16) {
    ATTN_FEW("bf16", left, right, 1, "1");
  } else {
    ATTN_FEW("f16", left, right, 1, "1");
  }
}

#undef ATTN_FEW
#undef ATTN_VALUES_REGISTERS
#undef ATTN_VALUES
#undef ATTN_SCORES_REGISTERS
#undef ATTN_SCORES
#undef ATTN_SUMS_128
#undef ATTN_SUMS_32
#undef ATTN_SUMS_8
#undef ATTN_LATENT_NAMES_128
#undef ATTN_LATENT_NAMES_32

}  // namespace attn
