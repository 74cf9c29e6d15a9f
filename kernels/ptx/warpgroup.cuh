// What lets the warpgroups of a CTA do different work: barriers by number, of which the hardware
// has 16 (0 is __syncthreads), registers handed from one warpgroup to another, and the store of
// accumulators to shared memory that undoes their layout.
#pragma once

#include "kernels/common/numeric.cuh"

namespace attn {

constexpr int kWarpgroupThreads = 128;

/// Waits at barrier `number` until `threads` have come, those that only arrived included; whole
/// warps. What was written to shared memory before is there afterwards.
__device__ __forceinline__ void sync_threads_of(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
/// Counts this warp in at barrier `number` and goes on.
__device__ __forceinline__ void arrive_threads_of(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
/// sync_threads_of(), and whether any of the threads says true.
__device__ __forceinline__ bool any_of_threads(bool mine, int number, int threads) {
  u32 any;
  asm volatile(
      "{\n"
      ".reg .pred mine, any;\n"
      "setp.ne.u32 mine, %1, 0;\n"
      "barrier.cta.red.or.pred any, %2, %3, mine;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}\n"
      : "=r"(any)
      : "r"(mine ? 1u : 0u), "r"(number), "r"(threads)
      : "memory");
  return any != 0;
}

/// This warpgroup keeps kRegisters (24 to 256, a multiple of 8) a thread, fewer than the kernel
/// started with, or takes more, which others must have given up. Every warp of it, once, where the
/// roles part; the kernel needs a register cap (__launch_bounds__ with two numbers).
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Four 8 x 8 matrices of 16-bit elements to shared memory, the opposite of load_matrices() in
/// mma_sync.cuh: lane i gives the address of row i % 8 of matrix i / 8, a multiple of 16, and has
/// elements (i / 4, 2 * (i % 4)) and the next one of each matrix.
__device__ __forceinline__ void store_matrices(u32 address, const u32 (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

/// The same, each matrix transposed: lane i gives the address of column i % 8 of matrix i / 8.
__device__ __forceinline__ void store_matrices_transposed(u32 address, const u32 (&from)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
      : "memory");
}

}  // namespace attn
