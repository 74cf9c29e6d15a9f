// Reads memory as fast as the device can: the ceiling of kernels that stream their input once, such
// as decode attention and cache writes, whose rates are reported as a share of it. What it leaves
// in the caches need not be written back, so that it also cleans them before a sample.
#pragma once

#include "kernels/params_measure.h"

namespace attn {

struct Vector16 {
  unsigned int x, y, z, w;
};

/// A 16-byte load; with `kStreaming` the L1 keeps nothing and the L2 fetches 256 bytes on a miss.
/// Both are measured and reported.
template <bool kStreaming>
__device__ __forceinline__ Vector16 load16(const Vector16* address) {
  Vector16 v;
  if constexpr (kStreaming) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
  } else {
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
  }
  return v;
}

/// Config: int kThreads, int kUnroll (loads of a thread under way at once), bool kStreaming. Grid:
/// any; every CTA reads kThreads * kUnroll vectors at a time, grid-stride, neighbouring threads
/// neighbouring vectors.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) read_memory(const ReadParams params) {
  const Vector16* data = static_cast<const Vector16*>(params.data);
  constexpr i64 kTile = i64{Config::kThreads} * Config::kUnroll;
  unsigned int mix = 0;
  for (i64 first = blockIdx.x * kTile + threadIdx.x; first < params.num_vectors;
       first += gridDim.x * kTile) {
    Vector16 loaded[Config::kUnroll];
#pragma unroll
    for (int i = 0; i < Config::kUnroll; ++i) {
      const i64 at = first + i64{i} * Config::kThreads;
      loaded[i] = at < params.num_vectors ? load16<Config::kStreaming>(data + at) : Vector16{};
    }
#pragma unroll
    for (int i = 0; i < Config::kUnroll; ++i) {
      mix |= loaded[i].x | loaded[i].y | loaded[i].z | loaded[i].w;
    }
  }
  // Why: without a use the compiler would drop the loads; the data that is read
  // never has this bit.
  if (mix & 0x80000000u) *params.sink = mix;
}

}  // namespace attn
