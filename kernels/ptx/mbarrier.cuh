// Barriers in shared memory (mbarrier) that count arrivals of threads and bytes of the copy engine
// (SM 9.0 and newer). A barrier goes through phases: one ends when as many threads have arrived as
// it was initialised for and all announced bytes have come. The first has parity 0, the next 1, and
// so on in turn; whoever waits names the parity of the phase that has to end. So a wait for parity
// 1 of a new barrier returns at once: that is how a producer finds the empty stages of a ring.
#pragma once

#include "kernels/common/numeric.cuh"

namespace attn {

/// In shared memory; the functions take its address there.
using Barrier = unsigned long long;

/// By one thread; `arrivals` end a phase, below 2^20. publish_barriers() and a barrier of all
/// threads that use it come before its first use.
__device__ __forceinline__ void init_barrier(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// By the thread that initialised them: lets the copy engine and the other CTAs of the cluster see
/// the barriers.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// One arrival, and so many bytes that copies will bring: the phase ends no earlier than these. May
/// come before or after the copies are queued.
__device__ __forceinline__ void arrive_expecting(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// One arrival.
__device__ __forceinline__ void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// One arrival of those that the barrier was initialised for, when all that this thread has queued
/// by copy_async() has come; the thread goes on at once.
__device__ __forceinline__ void arrive_when_copied(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// One arrival at a barrier of another CTA, at in_cta()'s address. Why without release.cluster: it
/// says that this CTA is through with what the copy engine brought, and hands over no ordinary
/// writes; ordering those as well took a prefill kernel from 725 to 533 TFLOP/s (one NVIDIA H200,
/// 2026-11-22).
__device__ __forceinline__ void arrive_remote(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// How long a wait may sleep before it looks again, in nanoseconds; the end of the phase wakes it.
/// Why so long: without it try_wait comes back after some 20 cycles, and the producers of a prefill
/// of short prompts executed a fifth of its instructions by asking again.
constexpr u32 kBarrierSleep = 10'000'000;

/// Whether the phase of `parity` has ended; may sleep for a while before it says no.
__device__ __forceinline__ bool has_ended(u32 barrier, u32 parity) {
  u32 ended;
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2, %3;\n"
      "selp.u32 %0, 1, 0, ended;\n"
      "}\n"
      : "=r"(ended)
      : "r"(barrier), "r"(parity), "n"(kBarrierSleep)
      : "memory");
  return ended != 0;
}

/// Waits for the end of the phase. What was written by those who arrived, and what was copied, is
/// there afterwards.
__device__ __forceinline__ void await(u32 barrier, u32 parity) {
  while (!has_ended(barrier, parity)) {
  }
}

}  // namespace attn
