// Matrix products of a warpgroup (wgmma, SM 9.0a): four neighbouring warps, the first of them a
// multiple of four, multiply a tile of 64 rows from shared memory or registers with one of shared
// memory. The tensor cores run beside the warps: a product is queued, closed in a group, and waited
// for. Until then its accumulators may be neither read nor written, nor the registers of a left
// operand written, which no compiler checks. fence_registers() keeps it from moving accesses.
//
// Accumulators [64, N]: warp w of the four holds rows 16w to 16w + 15 like the 16 x 8 blocks of
// mma_sync.cuh, block n of columns 8n to 8n + 7: d[n][2 * half + i] is row half * 8 + lane / 4,
// column n * 8 + lane % 4 * 2 + i. A left operand in registers, [64, 16] of 16-bit elements, is
// laid out like `a` of mma_sync.cuh: scores become weights where they are.
//
// Operands in shared memory are given by descriptors: matrix_operand.cuh.
#pragma once

#include "kernels/params.h"
#include "kernels/ptx/matrix_operand.cuh"

namespace attn {

/// Orders this warpgroup's accesses to registers before the products that it queues next: before
/// the first product, and wherever accumulators or left operands were written by others than wgmma.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Closes the group of the products that were queued since the last.
__device__ __forceinline__ void close_product_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending groups are under way; they end in order.
template <int kPending>
__device__ __forceinline__ void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// To the compiler, registers that change here: it moves no access to them across. No instruction.
template <int kBlocks>
__device__ __forceinline__ void fence_registers(float (&d)[kBlocks][4]) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[n][i])::"memory");
  }
}

/// A number of which the compiler knows nothing from here on. Why: what is computed from it stays
/// on a rare path, instead of being worked out before a loop and held in registers throughout.
__device__ __forceinline__ int hidden(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

/// What is waited for from here on is not waited for before `number`, which is not negative, has
/// been computed: an instruction that would sleep if it were. Why: to ptxas a wait for products
/// depends on nothing but products, and it has the warp wait before it computes what it could
/// compute meanwhile.
__device__ __forceinline__ void order_after(float number) {
#ifdef __CUDA_ARCH__
  asm volatile(
      "{\n.reg .pred sleeps;\nsetp.lt.f32 sleeps, %0, 0f00000000;\n"
      "@sleeps nanosleep.u32 0;\n}\n" ::"f"(number)
      : "memory");
#else
  static_cast<void>(number);
#endif
}

template <int kBlocks>
__device__ __forceinline__ void fence_registers(int (&d)[kBlocks][4]) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(d[n][i])::"memory");
  }
}

// The operands of an instruction in text: "%0, ..., %7", and the constraints of a block of columns.

#define ATTN_REGISTERS_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define ATTN_REGISTERS_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define ATTN_REGISTERS_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define ATTN_REGISTERS_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define ATTN_REGISTERS_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define ATTN_REGISTERS_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define ATTN_REGISTERS_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define ATTN_REGISTERS_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define ATTN_REGISTERS_8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define ATTN_REGISTERS_9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define ATTN_REGISTERS_10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define ATTN_REGISTERS_11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define ATTN_REGISTERS_12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define ATTN_REGISTERS_13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define ATTN_REGISTERS_14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define ATTN_REGISTERS_15 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define ATTN_TWO_BLOCKS(n)                                                       \
  "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3]), "+f"(d[n + 1][0]), \
      "+f"(d[n + 1][1]), "+f"(d[n + 1][2]), "+f"(d[n + 1][3])

#define ATTN_NAMES_32 ATTN_REGISTERS_0 ATTN_REGISTERS_1
#define ATTN_NAMES_48 ATTN_NAMES_32 ATTN_REGISTERS_2
#define ATTN_NAMES_64 ATTN_NAMES_48 ATTN_REGISTERS_3
#define ATTN_NAMES_80 ATTN_NAMES_64 ATTN_REGISTERS_4
#define ATTN_NAMES_96 ATTN_NAMES_80 ATTN_REGISTERS_5
#define ATTN_NAMES_112 ATTN_NAMES_96 ATTN_REGISTERS_6
#define ATTN_NAMES_128 ATTN_NAMES_112 ATTN_REGISTERS_7
#define ATTN_NAMES_144 ATTN_NAMES_128 ATTN_REGISTERS_8
#define ATTN_NAMES_160 ATTN_NAMES_144 ATTN_REGISTERS_9
#define ATTN_NAMES_176 ATTN_NAMES_160 ATTN_REGISTERS_10
#define ATTN_NAMES_192 ATTN_NAMES_176 ATTN_REGISTERS_11
#define ATTN_NAMES_208 ATTN_NAMES_192 ATTN_REGISTERS_12
#define ATTN_NAMES_224 ATTN_NAMES_208 ATTN_REGISTERS_13
#define ATTN_NAMES_240 ATTN_NAMES_224 ATTN_REGISTERS_14
#define ATTN_NAMES_256 ATTN_NAMES_240 ATTN_REGISTERS_15
#define ATTN_BLOCKS_32 ATTN_TWO_BLOCKS(0), ATTN_TWO_BLOCKS(2)
#define ATTN_BLOCKS_48 ATTN_BLOCKS_32, ATTN_TWO_BLOCKS(4)
#define ATTN_BLOCKS_64 ATTN_BLOCKS_48, ATTN_TWO_BLOCKS(6)
#define ATTN_BLOCKS_80 ATTN_BLOCKS_64, ATTN_TWO_BLOCKS(8)
#define ATTN_BLOCKS_96 ATTN_BLOCKS_80, ATTN_TWO_BLOCKS(10)
#define ATTN_BLOCKS_112 ATTN_BLOCKS_96, ATTN_TWO_BLOCKS(12)
#define ATTN_BLOCKS_128 ATTN_BLOCKS_112, ATTN_TWO_BLOCKS(14)
#define ATTN_BLOCKS_144 ATTN_BLOCKS_128, ATTN_TWO_BLOCKS(16)
#define ATTN_BLOCKS_160 ATTN_BLOCKS_144, ATTN_TWO_BLOCKS(18)
#define ATTN_BLOCKS_176 ATTN_BLOCKS_160, ATTN_TWO_BLOCKS(20)
#define ATTN_BLOCKS_192 ATTN_BLOCKS_176, ATTN_TWO_BLOCKS(22)
#define ATTN_BLOCKS_208 ATTN_BLOCKS_192, ATTN_TWO_BLOCKS(24)
#define ATTN_BLOCKS_224 ATTN_BLOCKS_208, ATTN_TWO_BLOCKS(26)
#define ATTN_BLOCKS_240 ATTN_BLOCKS_224, ATTN_TWO_BLOCKS(28)
#define ATTN_BLOCKS_256 ATTN_BLOCKS_240, ATTN_TWO_BLOCKS(30)

// One product. `first` to `fifth` are the numbers of the operands behind the accumulators; `majors`
// says for 16-bit elements which operands in shared memory are MN-major.
#define ATTN_PRODUCT_SHARED(columns, depth, element, majors, first, second, third)              \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " third                                  \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns depth ".f32." element         \
               " {" ATTN_NAMES_##columns "}, " first ", " second ", adds, 1, 1" majors ";\n}\n" \
               : ATTN_BLOCKS_##columns                                                          \
               : "l"(a), "l"(b), "r"(adds))
#define ATTN_PRODUCT_REGISTERS(columns, depth, element, adds, majors, first, second, third, \
                               fourth, fifth)                                               \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns depth ".f32." element           \
               " {" ATTN_NAMES_##columns "}, {" first ", " second ", " third ", " fourth    \
                                         "}, " fifth ", " adds ", 1, 1" majors ";\n"        \
               : ATTN_BLOCKS_##columns                                                      \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// The same of e4m3, where what was in the accumulators counts if `adds` is not 0.
#define ATTN_PRODUCT_CODES_IF(columns, first, second, third, fourth, fifth, sixth)       \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " sixth                           \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns                        \
               "k32.f32.e4m3.e4m3"                                                       \
               " {" ATTN_NAMES_##columns "}, {" first ", " second ", " third ", " fourth \
                                         "}, " fifth ", adds, 1, 1;\n}\n"                \
               : ATTN_BLOCKS_##columns                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds))

// A row for every width: columns, numbers of the operands behind the accumulators.
// clang-format off
#define ATTN_PRODUCT_WIDTHS(row) \
  row(32, "%16", "%17", "%18", "%19", "%20", "%21")       \
  row(48, "%24", "%25", "%26", "%27", "%28", "%29")       \
  row(64, "%32", "%33", "%34", "%35", "%36", "%37")       \
  row(80, "%40", "%41", "%42", "%43", "%44", "%45")       \
  row(96, "%48", "%49", "%50", "%51", "%52", "%53")       \
  row(112, "%56", "%57", "%58", "%59", "%60", "%61")      \
  row(128, "%64", "%65", "%66", "%67", "%68", "%69")      \
  row(144, "%72", "%73", "%74", "%75", "%76", "%77")      \
  row(160, "%80", "%81", "%82", "%83", "%84", "%85")      \
  row(176, "%88", "%89", "%90", "%91", "%92", "%93")      \
  row(192, "%96", "%97", "%98", "%99", "%100", "%101")     \
  row(208, "%104", "%105", "%106", "%107", "%108", "%109") \
  row(224, "%112", "%113", "%114", "%115", "%116", "%117") \
  row(240, "%120", "%121", "%122", "%123", "%124", "%125") \
  row(256, "%128", "%129", "%130", "%131", "%132", "%133")
// clang-format on

/// Whether a product of so many columns is here.
ATTN_FN constexpr bool is_product_width(int columns) {
  return columns % 16 == 0 && columns >= 32 && columns <= 256;
}

/// d = A @ B, or d += A @ B with adds != 0: A [64, k] and B [k, N] in shared memory, both K-major;
/// k is 16 elements of 16 bits, 32 of e4m3. N = 8 * kBlocks.
template <Element kElement, int kBlocks>
__device__ __forceinline__ void multiply_shared(float (&d)[kBlocks][4], u64 a, u64 b, u32 adds) {
  static_assert(is_product_width(kBlocks * 8));
#define ATTN_ROW(columns, first, second, third, fourth, fifth, sixth)                   \
  if constexpr (kBlocks * 8 == columns) {                                               \
    if constexpr (kElement == Element::kBF16) {                                         \
      ATTN_PRODUCT_SHARED(columns, "k16", "bf16.bf16", ", 0, 0", first, second, third); \
    } else if constexpr (kElement == Element::kF16) {                                   \
      ATTN_PRODUCT_SHARED(columns, "k16", "f16.f16", ", 0, 0", first, second, third);   \
    } else {                                                                            \
      static_assert(kElement == Element::kE4M3);                                        \
      ATTN_PRODUCT_SHARED(columns, "k32", "e4m3.e4m3", "", first, second, third);       \
    }                                                                                   \
  }
  ATTN_PRODUCT_WIDTHS(ATTN_ROW)
#undef ATTN_ROW
}

/// d += A @ B, of e4m3 without kAdds d = A @ B: A [64, k] in registers, B [k, N] in shared memory,
/// MN-major of 16 bits, K-major of e4m3, which has no other form. A stays as it is until the
/// product has been waited for.
template <Element kElement, bool kAdds = true, int kBlocks>
__device__ __forceinline__ void multiply_registers(float (&d)[kBlocks][4], const u32 (&a)[4],
                                                   u64 b) {
  static_assert(is_product_width(kBlocks * 8));
  static_assert(kAdds || kElement == Element::kE4M3);
#define ATTN_ROW(columns, first, second, third, fourth, fifth, sixth)                             \
  if constexpr (kBlocks * 8 == columns) {                                                         \
    if constexpr (kElement == Element::kBF16) {                                                   \
      ATTN_PRODUCT_REGISTERS(columns, "k16", "bf16.bf16", "1", ", 1", first, second, third,       \
                             fourth, fifth);                                                      \
    } else if constexpr (kElement == Element::kF16) {                                             \
      ATTN_PRODUCT_REGISTERS(columns, "k16", "f16.f16", "1", ", 1", first, second, third, fourth, \
                             fifth);                                                              \
    } else if constexpr (kAdds) {                                                                 \
      static_assert(kElement == Element::kE4M3);                                                  \
      ATTN_PRODUCT_REGISTERS(columns, "k32", "e4m3.e4m3", "1", "", first, second, third, fourth,  \
                             fifth);                                                              \
    } else {                                                                                      \
      ATTN_PRODUCT_REGISTERS(columns, "k32", "e4m3.e4m3", "0", "", first, second, third, fourth,  \
                             fifth);                                                              \
    }                                                                                             \
  }
  ATTN_PRODUCT_WIDTHS(ATTN_ROW)
#undef ATTN_ROW
}

/// d = A @ B of e4m3, or d += A @ B with adds != 0: multiply_registers() where that is found out as
/// the kernel runs.
template <int kBlocks>
__device__ __forceinline__ void multiply_codes_if(float (&d)[kBlocks][4], const u32 (&a)[4], u64 b,
                                                  u32 adds) {
  static_assert(is_product_width(kBlocks * 8));
#define ATTN_ROW(columns, first, second, third, fourth, fifth, sixth)           \
  if constexpr (kBlocks * 8 == columns) {                                       \
    ATTN_PRODUCT_CODES_IF(columns, first, second, third, fourth, fifth, sixth); \
  }
  ATTN_PRODUCT_WIDTHS(ATTN_ROW)
#undef ATTN_ROW
}

// Of int8 codes, with exact sums of 32 bits.
#define ATTN_PRODUCT_INT8(columns, first, second, third)                                     \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " third                               \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns                            \
               "k32.s32.s8.s8 {" ATTN_NAMES_##columns "}, " first ", " second ", adds;\n}\n" \
               : ATTN_BLOCKS_##columns                                                       \
               : "l"(a), "l"(b), "r"(kAdds))
#define ATTN_ROW(columns, first, second, third, fourth, fifth, sixth) \
  if constexpr (kBlocks * 8 == columns) ATTN_PRODUCT_INT8(columns, first, second, third);
#undef ATTN_TWO_BLOCKS
#define ATTN_TWO_BLOCKS(n)                                                       \
  "=r"(d[n][0]), "=r"(d[n][1]), "=r"(d[n][2]), "=r"(d[n][3]), "=r"(d[n + 1][0]), \
      "=r"(d[n + 1][1]), "=r"(d[n + 1][2]), "=r"(d[n + 1][3])

/// d = A @ B of int8: A [64, 32] and B [32, N] in shared memory, both K-major. Why apart from the
/// product that adds: what d holds before is nobody's, so that no register is kept for it.
template <int kBlocks>
__device__ __forceinline__ void start_multiply_int8(int (&d)[kBlocks][4], u64 a, u64 b) {
  static_assert(is_product_width(kBlocks * 8));
  constexpr u32 kAdds = 0;
  ATTN_PRODUCT_WIDTHS(ATTN_ROW)
}

#undef ATTN_TWO_BLOCKS
#define ATTN_TWO_BLOCKS(n)                                                       \
  "+r"(d[n][0]), "+r"(d[n][1]), "+r"(d[n][2]), "+r"(d[n][3]), "+r"(d[n + 1][0]), \
      "+r"(d[n + 1][1]), "+r"(d[n + 1][2]), "+r"(d[n + 1][3])

/// d += A @ B, likewise.
template <int kBlocks>
__device__ __forceinline__ void multiply_int8(int (&d)[kBlocks][4], u64 a, u64 b) {
  static_assert(is_product_width(kBlocks * 8));
  constexpr u32 kAdds = 1;
  ATTN_PRODUCT_WIDTHS(ATTN_ROW)
}
#undef ATTN_ROW
#undef ATTN_PRODUCT_INT8

#undef ATTN_PRODUCT_WIDTHS
#undef ATTN_PRODUCT_CODES_IF
#undef ATTN_PRODUCT_SHARED
#undef ATTN_PRODUCT_REGISTERS

}  // namespace attn
