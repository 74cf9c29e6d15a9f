// Products of a warpgroup for latent_codes.cuh, of few columns: codes of e4m3 by codes, both in
// shared memory, and f16 numbers in registers by rows of shared memory. Accumulators are one array:
// d[4 j + 2 half + i] is d[j][2 half + i] of wgmma.cuh.
#pragma once

#include "kernels/ptx/wgmma_latent.cuh"

namespace attn {

#define ATTN_CODES_NAMES_16 "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define ATTN_CODES_NAMES_32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define ATTN_CODES_NAMES_64                                                                     \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define ATTN_CODES_SUMS_8(d, i)                                                                 \
  "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]), "+f"((d)[(i) + 4]), \
      "+f"((d)[(i) + 5]), "+f"((d)[(i) + 6]), "+f"((d)[(i) + 7])
#define ATTN_CODES_SUMS_16(d) ATTN_CODES_SUMS_8(d, 0)
#define ATTN_CODES_SUMS_32(d) ATTN_CODES_SUMS_8(d, 0), ATTN_CODES_SUMS_8(d, 8)
#define ATTN_CODES_SUMS_64(d) \
  ATTN_CODES_SUMS_32(d), ATTN_CODES_SUMS_8(d, 16), ATTN_CODES_SUMS_8(d, 24)
#define ATTN_CODE_SCORES(columns, first, second, third)                               \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " third                        \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns                     \
               "k32.f32.e4m3.e4m3 " ATTN_CODES_NAMES_##columns ", " first ", " second \
                                                               ", adds, 1, 1;\n}\n"   \
               : ATTN_CODES_SUMS_##columns(sums)                                      \
               : "l"(left), "l"(right), "r"(static_cast<u32>(adds)))
#define ATTN_CODE_VALUES(columns, first, second, third, fourth, fifth)                           \
  asm volatile(                                                                                  \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, 1, 0;\n"                                           \
      "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 " ATTN_CODES_NAMES_##columns \
      ", {" first ", " second ", " third ", " fourth "}, " fifth ", adds, 1, 1, 0;\n}\n"         \
      : ATTN_CODES_SUMS_##columns(sums)                                                          \
      : "r"((left)[0]), "r"((left)[1]), "r"((left)[2]), "r"((left)[3]), "l"(right))

/// sums [64, kRows] = (adds ? sums : 0) + left [64, 32] right^T, right [kRows, 32], both e4m3 along
/// rows.
template <int kRows>
__device__ __forceinline__ void multiply_code_scores(float (&sums)[kRows / 2], u64 left, u64 right,
                                                     bool adds) {
  static_assert(kRows == 16 || kRows == 32 || kRows == 64);
  if constexpr (kRows == 16) {
    ATTN_CODE_SCORES(16, "%8", "%9", "%10");
  } else if constexpr (kRows == 32) {
    ATTN_CODE_SCORES(32, "%16", "%17", "%18");
  } else {
    ATTN_CODE_SCORES(64, "%32", "%33", "%34");
  }
}
/// sums [64, kRows] += left [64, 16] right^T, f16: left in registers, right [kRows, 16] along rows.
template <int kRows>
__device__ __forceinline__ void multiply_code_values(float (&sums)[kRows / 2], const u32 (&left)[4],
                                                     u64 right) {
  static_assert(kRows == 16 || kRows == 32 || kRows == 64);
  if constexpr (kRows == 16) {
    ATTN_CODE_VALUES(16, "%8", "%9", "%10", "%11", "%12");
  } else if constexpr (kRows == 32) {
    ATTN_CODE_VALUES(32, "%16", "%17", "%18", "%19", "%20");
  } else {
    ATTN_CODE_VALUES(64, "%32", "%33", "%34", "%35", "%36");
  }
}

#undef ATTN_CODE_VALUES
#undef ATTN_CODE_SCORES
#undef ATTN_CODES_SUMS_64
#undef ATTN_CODES_SUMS_32
#undef ATTN_CODES_SUMS_16
#undef ATTN_CODES_SUMS_8
#undef ATTN_CODES_NAMES_64
#undef ATTN_CODES_NAMES_32
#undef ATTN_CODES_NAMES_16

}  // namespace attn
