// Clusters: CTAs that run side by side and reach each other's shared memory (SM 9.0 and newer;
// LaunchShape::cluster_x). The upper byte of an address of shared memory is the rank of the CTA
// that it belongs to. shared_address() gives those of the CTA itself, and in_cta() those of any. A
// number that is not made by these is a place of CTA 0, whichever CTA loads or stores there.
#pragma once

#include "kernels/common/numeric.cuh"

namespace attn {

/// Of this CTA in its cluster, from 0.
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ u32 cluster_size() {
  u32 size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

/// Where the CTA `rank` of the cluster has what lies at `address` in the shared memory of this one.
__device__ __forceinline__ u32 in_cta(u32 address, u32 rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

/// Stores 16 bytes at `address` of another CTA, whose barrier `barrier` counts them as it counts
/// those of the copy engine (arrive_expecting()); both by in_cta(). The thread goes on at once.
__device__ __forceinline__ void send_words(u32 address, const u32 (&words)[4], u32 barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(barrier)
      : "memory");
}

/// The two halves of sync_cluster(): what a thread wrote before it arrives, the others see after
/// they have waited. Whole warps only, and every arrival needs its wait.
__device__ __forceinline__ void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// The first half where there is nothing that the others shall see but barriers, which were
/// published (publish_barriers()). Why: the other one waits for all writes of the thread, to device
/// memory too, which takes most of a microsecond at the start of a kernel.
__device__ __forceinline__ void announce_to_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/// All threads of all CTAs of the cluster. Needed before the first access to another CTA's shared
/// memory, which may not have started yet, and after the last one, since memory goes with its CTA.
__device__ __forceinline__ void sync_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
}

}  // namespace attn
