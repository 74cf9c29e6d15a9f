// Copies from global to shared memory that run beside the computation (cp.async). They pass through
// no register, so that a thread can have many under way. What a thread has copied is visible to
// itself after wait_copy_groups(), to other threads only after a barrier that follows it.
//
// 16 bytes go by cp.async.cg, past the L1, which streamed keys would only displace; the narrower
// copies exist as cp.async.ca only. L2::128B lets the L2 fetch the whole line on a miss: the rest
// of it is the next piece that neighbouring threads copy.
#pragma once

#include "kernels/common/numeric.cuh"

namespace attn {

/// Copies kBytes (4, 8 or 16, and aligned so).
template <int kBytes>
__device__ __forceinline__ void copy_async(u32 to_shared, const void* from) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to_shared), "l"(from)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to_shared), "l"(from),
                 "n"(kBytes)
                 : "memory");
  }
}

/// Copies kBytes (4, 8 or 16, and aligned so); writes zeros instead when not `valid`, and then
/// reads nothing, but `from` must be a valid address all the same.
template <int kBytes>
__device__ __forceinline__ void copy_async(u32 to_shared, const void* from, bool valid) {
  const int size = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to_shared),
                 "l"(from), "r"(size)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to_shared), "l"(from),
                 "n"(kBytes), "r"(size)
                 : "memory");
  }
}

/// What lies at `from`, asked for here and now: the compiler moves an ordinary load to the first
/// use. Nothing writes there while the kernel runs.
__device__ __forceinline__ int load_now(const int* from) {
  int x;
  asm volatile("ld.relaxed.cta.global.s32 %0, [%1];" : "=r"(x) : "l"(from));
  return x;
}

/// Has the line of the L2 with `from` fetched, without waiting for it. It must be a valid address.
__device__ __forceinline__ void fetch_line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}

/// Closes a group of copies, which may be empty; groups complete in order. A pipeline closes one
/// for every step, even past its last copy, so that the number of pending groups always says which
/// step has arrived.
__device__ __forceinline__ void close_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Arrives at a barrier (mbarrier.cuh) when all copies of this thread so far have come; nobody
/// waits for them here. One of the arrivals that the barrier was initialised for. Who waits for the
/// barrier and hands the copies to wgmma calls publish_shared_writes() in between.
__device__ __forceinline__ void arrive_after_copies(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace attn
