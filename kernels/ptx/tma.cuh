// The copy engine of SM 9.0 and newer (TMA, cp.async.bulk): one thread queues a copy of a box of a
// tensor between global and shared memory, and the engine works out addresses, edges and swizzle
// from a tensor map. Boxes that reach past the tensor read zeros there and write nothing;
// coordinates may be negative.
#pragma once

#include "kernels/common/numeric.cuh"

namespace attn {

/// What the driver made of a TensorMap (src/gpu/tensor_map.h). Always a kernel parameter
/// `const __grid_constant__ TensorMap`: the engine reads it from where parameters lie, and a copy
/// in registers or local memory has no address that it could use.
struct alignas(128) TensorMap {
  unsigned long long words[16];
};

/// First element of a box in every dimension, the one of neighbouring elements first.
template <int kRank>
struct BoxAt {
  int at[kRank];
};

/// Cache policies of the L2, in the encoding that createpolicy gives.
constexpr unsigned long long kEvictNormal = 0x1000000000000000ull;
constexpr unsigned long long kEvictFirst = 0x12F0000000000000ull;
constexpr unsigned long long kEvictLast = 0x14F0000000000000ull;

/// Has the map fetched before its first use.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Queues the copy of a box to shared memory, on a multiple of 128 bytes there, of 1024 with a
/// swizzle of 128 (512 and 256 with the others). `barrier` counts its bytes: all those of a box,
/// past the edges too.
template <int kRank>
__device__ __forceinline__ void load_box(u32 to_shared, const TensorMap& map,
                                         const BoxAt<kRank>& from, u32 barrier,
                                         unsigned long long policy = kEvictNormal) {
  static_assert(kRank >= 2 && kRank <= 5);
  const int* const at = from.at;
  if constexpr (kRank == 2) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to_shared),
        "l"(&map), "r"(at[0]), "r"(at[1]), "r"(barrier), "l"(policy)
        : "memory");
  } else if constexpr (kRank == 3) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to_shared),
        "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(barrier), "l"(policy)
        : "memory");
  } else if constexpr (kRank == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to_shared),
        "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(barrier), "l"(policy)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to_shared),
        "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(barrier),
        "l"(policy)
        : "memory");
  }
}

/// Queues the copy of a box from shared memory, in this thread's open group of stores.
template <int kRank>
__device__ __forceinline__ void store_box(const TensorMap& map, const BoxAt<kRank>& to,
                                          u32 from_shared) {
  static_assert(kRank >= 2 && kRank <= 5);
  const int* const at = to.at;
  if constexpr (kRank == 2) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
        "r"(at[0]), "r"(at[1]), "r"(from_shared)
        : "memory");
  } else if constexpr (kRank == 3) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
            &map),
        "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(from_shared)
        : "memory");
  } else if constexpr (kRank == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(
            &map),
        "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(from_shared)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4, %5}], "
        "[%6];" ::"l"(&map),
        "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(from_shared)
        : "memory");
  }
}

/// Lets the copy engine (and wgmma) see what this thread wrote to shared memory by ordinary stores:
/// by every writing thread, before the barrier behind which a copy is queued.
__device__ __forceinline__ void publish_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Lets copies that are queued afterwards read what this thread wrote to global memory by ordinary
/// stores: by every writing thread, before the warp or CTA meets and one of it queues the copy.
__device__ __forceinline__ void publish_global_writes() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// Closes this thread's open group of stores; groups complete in order.
__device__ __forceinline__ void close_store_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until all but kPending of this thread's groups have read their shared memory, which may be
/// written again.
template <int kPending>
__device__ __forceinline__ void await_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Waits until all but kPending of this thread's groups have been written.
template <int kPending>
__device__ __forceinline__ void await_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace attn
