// One product by a warpgroup, and what the Hopper kernels are built on beside products and copies:
// barriers by number, registers that change hands, matrices stored from accumulators. No operation
// of a pipeline, but the smallest kernel that uses each of them, so that they can be tested alone.
#pragma once

#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/warpgroup.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace attn {

/// What the probe leaves beside the product.
struct ProbeReport {
  int any_of_one;   // any_of_threads() where one of 128 says true: 1
  int any_of_none;  // 0
};

/// Bytes of a matrix of lines: where `byte` of row `row` lies.
template <int kSpan>
__device__ __forceinline__ u32 probe_offset(const OperandLayout& layout, int row, int byte) {
  return swizzled<kSpan>(static_cast<u32>(row / 8 * layout.group_stride + row % 8 * kSpan +
                                          byte / kSpan * layout.chunk_stride + byte % kSpan));
}

/// Copies `rows` rows of `bytes` bytes to where products read them, by ordinary stores.
template <int kSpan>
__device__ __forceinline__ void probe_fill(unsigned char* to, const OperandLayout& layout,
                                           const unsigned char* from, int rows, int bytes) {
  const int words = bytes / 4;
  for (int i = static_cast<int>(threadIdx.x) % kWarpgroupThreads; i < rows * words;
       i += kWarpgroupThreads) {
    const u32 at = probe_offset<kSpan>(layout, i / words, i % words * 4);
    *reinterpret_cast<u32*>(to + at) = reinterpret_cast<const u32*>(from)[i];
  }
}

/// d [64, N] f32 = A [64, K] @ B, and the same rounded to bf16 by way of store_matrices(). A is
/// row-major; B is [N, K], or with kAcross [K, N], both row-major. Config: kElement (16 bits or
/// e4m3) · kColumns (N) · kDepth (K, whole lines) · kFromRegisters (A) · kAcross (with
/// kFromRegisters and 16 bits only, and always there). One CTA of 384 threads; shared memory: A, B
/// and d in bf16, each on a multiple of 1024.
template <class Config>
struct WarpgroupProbe {
  static constexpr int kSize = Config::kElement == Element::kE4M3 ? 1 : 2;
  static constexpr int kRowBytes = Config::kDepth * kSize;
  static constexpr int kStep = 32 / kSize;  // elements of the contraction a product
  static constexpr bool kAcross = Config::kFromRegisters && kSize == 2;
  static constexpr int kSpan = kRowBytes % 128 == 0 ? 128 : (kRowBytes % 64 == 0 ? 64 : 32);
  static constexpr int kColumnBytes = Config::kColumns * 2;
  static constexpr int kAcrossSpan =
      kColumnBytes % 128 == 0 ? 128 : (kColumnBytes % 64 == 0 ? 64 : 32);
  static constexpr int kSpanB = kAcross ? kAcrossSpan : kSpan;
  static constexpr int kRowsB = kAcross ? Config::kDepth : Config::kColumns;
  static constexpr OperandLayout kA{kSpan, 64 * kSpan, 8 * kSpan};
  static constexpr OperandLayout kB{kSpanB, kRowsB* kSpanB, 8 * kSpanB};
  static constexpr int kBytesA = (64 * kRowBytes + 1023) / 1024 * 1024;
  static constexpr int kBytesB = (Config::kDepth * Config::kColumns * kSize + 1023) / 1024 * 1024;
  static constexpr int kBlocks = Config::kColumns / 8;

  unsigned char* memory;

  /// A's registers of a step, straight from its rows: `words` of four bytes each.
  __device__ void load_fragment(const unsigned char* a, int step, u32 (&fragment)[4]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row = static_cast<int>(threadIdx.x % kWarpgroupThreads) / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int byte = step * 32 + i / 2 * 16 + lane % 4 * 4;
      fragment[i] = *reinterpret_cast<const u32*>(a + (row + i % 2 * 8) * kRowBytes + byte);
    }
  }

  __device__ __forceinline__ void multiply(const unsigned char* a, float (&d)[kBlocks][4]) const {
    constexpr int kSteps = Config::kDepth / kStep;
    const u64 left = k_major_form(kA) | operand_address(shared_address(memory));
    const u64 right = (kAcross ? mn_major_form(kB) : k_major_form(kB)) |
                      operand_address(shared_address(memory + kBytesA));
    u32 fragments[kSteps][4];
    if constexpr (Config::kFromRegisters) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) load_fragment(a, k, fragments[k]);
    }
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) d[n][i] = 0.0f;
    }
    fence_registers(d);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const u64 step = kAcross ? mn_major_step(kB, k) : k_major_step(kB, k);
      if constexpr (Config::kFromRegisters) {
        multiply_registers<Config::kElement>(d, fragments[k], right + step);
      } else {
        multiply_shared<Config::kElement>(d, left + k_major_step(kA, k), right + step, k > 0);
      }
    }
    close_product_group();
    await_products<0>();
    fence_registers(d);
  }

  __device__ void store(const float (&d)[kBlocks][4], float* product, u16* rounded) const {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
    const int lane = thread % 32;
    const int first = thread / 32 * 16;
    unsigned char* const rows = memory + kBytesA + kBytesB;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first + i / 2 * 8 + lane / 4;
        product[row * Config::kColumns + n * 8 + lane % 4 * 2 + i % 2] = d[n][i];
      }
    }
#pragma unroll
    for (int n = 0; n < kBlocks; n += 2) {
      u32 block[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&from)[4] = d[n + i / 2];
        block[i] = bf16_from_float(from[i % 2 * 2]) |
                   static_cast<u32>(bf16_from_float(from[i % 2 * 2 + 1])) << 16;
      }
      const int row = first + lane % 16;
      store_matrices(shared_address(rows) + row * kColumnBytes + (n + lane / 16) * 16, block);
    }
    sync_threads_of(3, kWarpgroupThreads);
    for (int i = thread; i < 64 * Config::kColumns; i += kWarpgroupThreads) {
      rounded[i] = reinterpret_cast<const u16*>(rows)[i];
    }
  }
};

struct alignas(1024) ProbeMemory {
  unsigned char bytes[1024];
};

template <class Config>
__global__ void __launch_bounds__(384, 1)
    warpgroup_probe(const unsigned char* const a, const unsigned char* const b,
                    float* const product, u16* const rounded, ProbeReport* const report) {
  using Probe = WarpgroupProbe<Config>;
  extern __shared__ ProbeMemory probe_memory[];
  const Probe probe{reinterpret_cast<unsigned char*>(probe_memory)};
  const unsigned warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / kWarpgroupThreads, 0);
  if (warpgroup != 1) {
    // What the third warpgroup gives makes room for the second one, and that is all it is for.
    give_registers<40>();
    if (warpgroup == 2) return;
    probe_fill<Probe::kSpan>(probe.memory, Probe::kA, a, 64, Probe::kRowBytes);
    probe_fill<Probe::kSpanB>(probe.memory + Probe::kBytesA, Probe::kB, b, Probe::kRowsB,
                              Probe::kAcross ? Probe::kColumnBytes : Probe::kRowBytes);
    publish_shared_writes();
    arrive_threads_of(1, 256);
  } else {
    take_registers<232>();
    sync_threads_of(1, 256);
    float d[Probe::kBlocks][4];
    probe.multiply(a, d);
    probe.store(d, product, rounded);
    const bool one = any_of_threads(threadIdx.x == 200, 2, kWarpgroupThreads);
    const bool none = any_of_threads(false, 2, kWarpgroupThreads);
    if (threadIdx.x == 128) *report = {one ? 1 : 0, none ? 1 : 0};
  }
}

}  // namespace attn
