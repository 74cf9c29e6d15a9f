// Who waits for whom without a barrier of the whole CTA: warps that share a ring of shared memory,
// and the CTAs of a grid, the last of which finishes what all have begun.
#pragma once

#include "kernels/common/numeric.cuh"

namespace attn {

/// Waits at barrier `number`, 1 to 15, until `threads` threads of the CTA have come; whole warps.
/// What each has written to shared memory before, all see afterwards.
__device__ __forceinline__ void meet_threads(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/// Whether this is the last of `expected` arrivals at `counter`, which is 0 before the first and
/// after the last: so the next launch, or the next replay of a graph, finds it as this one did. By
/// one thread, after a barrier of those whose writes to device memory it stands for: the last one
/// sees what all wrote before they arrived, and so do the threads that it then meets at a barrier.
/// Why `inc`: it wraps to 0 by itself, and nobody has to reset the counter.
__device__ __forceinline__ bool is_last_arrival(int* counter, int expected) {
  u32 before;
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(expected - 1)
               : "memory");
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  return before == static_cast<u32>(expected - 1);
}

/// Numbers from 0 on, each given once in the grid; by one thread. It orders nothing else.
__device__ __forceinline__ int draw_number(int* counter) {
  u32 number;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(number)
               : "l"(counter)
               : "memory");
  return static_cast<int>(number);
}

/// f32 that another CTA of the grid has written in this launch: past the L1, which may not have
/// them.
__device__ __forceinline__ float load_of_grid(const float* from) {
  float x;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
  return x;
}
__device__ __forceinline__ float4 load_of_grid(const float4* from) {
  float4 x;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(from)
               : "memory");
  return x;
}

}  // namespace attn
