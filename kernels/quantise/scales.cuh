// Largest elements of tensors and the scales made of them, without a way over the host (semantics
// §5.4, §10.6). amax is two launches: start_amax writes what the maximum starts from, then all CTAs
// of amax() raise it by atomics. A maximum of the same elements is the same in any order, so the
// result has the same bits in every run.
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/params_mm.h"
#include "kernels/params_scale.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// The NaN that all NaNs become: as an integer it is above every other float, see atomic_nan_max().
constexpr float kAmaxNan = __builtin_bit_cast(float, 0x7FFFFFFFu);

/// The larger one, or NaN if either is: a maximum in any order gives the same.
__device__ __forceinline__ float nan_max(float a, float b) {
#ifdef __CUDA_ARCH__
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
#else
  return b != b || b > a ? b : a;
#endif
}

/// nan_max() of each half of two packed words.
template <Element kElement>
__device__ __forceinline__ u32 nan_max_of_halves(u32 a, u32 b) {
  static_assert(kElement == Element::kBF16 || kElement == Element::kF16);
#ifdef __CUDA_ARCH__
  u32 larger;
  if constexpr (kElement == Element::kBF16) {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  }
  return larger;
#else
  const auto larger_half = [](u32 x, u32 y) {
    const float of_x = decode_element<kElement>(x);
    const float of_y = decode_element<kElement>(y);
    return of_y != of_y || of_y > of_x ? y : x;
  };
  return larger_half(a & 0xFFFFu, b & 0xFFFFu) | larger_half(a >> 16, b >> 16) << 16;
#endif
}

/// The largest element (kSigned) or magnitude so far. 16-bit elements are compared two at a time,
/// as they lie in a word: the maximum is exact in their own format. It starts with -inf or 0.
template <Element kElement, bool kSigned>
class RunningMax {
 public:
  __device__ __forceinline__ void add(u32 word) {
    if constexpr (kElement == Element::kF32) {
      largest_ = float_bits(nan_max(float_from_bits(largest_), float_from_bits(word & kMask)));
    } else {
      largest_ = nan_max_of_halves<kElement>(largest_, word & kMask);
    }
  }
  __device__ __forceinline__ float value() const {
    if constexpr (kElement == Element::kF32) return float_from_bits(largest_);
    return nan_max(decode_element<kElement>(largest_), decode_element<kElement>(largest_ >> 16));
  }

 private:
  static constexpr u32 kSigns = kElement == Element::kF32 ? 0x80000000u : 0x80008000u;
  static constexpr u32 kMask = kSigned ? 0xFFFFFFFFu : ~kSigns;
  static constexpr u32 kNegInf = kElement == Element::kF32    ? 0xFF800000u
                                 : kElement == Element::kBF16 ? 0xFF80FF80u
                                                              : 0xFC00FC00u;
  u32 largest_ = kSigned ? kNegInf : 0u;
};

/// The same for every lane.
__device__ __forceinline__ float nan_max_of_warp(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value = nan_max(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
  }
  return value;
}

/// *running = nan_max(*running, value) by threads of all CTAs at once. There is no atomic maximum
/// of floats, but the bits of floats are in the order of their values, up to the sign.
__device__ __forceinline__ void atomic_nan_max(float* running, float value) {
  // As integers, floats >= 0 ascend and negative ones descend; this NaN is above all of them.
  const float ordered = value != value ? kAmaxNan : value + 0.0f;  // -0 becomes 0
  if (float_bits(ordered) >> 31 == 0u) {
    atomicMax(reinterpret_cast<int*>(running), static_cast<int>(float_bits(ordered)));
  } else {
    atomicMin(reinterpret_cast<unsigned*>(running), float_bits(ordered));
  }
}

/// What the maximum starts from: -inf, or 0 for magnitudes and for an empty tensor. Config: int
/// kThreads. Grid: 1.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    start_amax(const __grid_constant__ AmaxParams p) {
  if (threadIdx.x != 0) return;
  const bool is_empty = p.num_tokens * p.num_heads * p.head_size == 0;
  *p.amax = p.is_signed != 0 && !is_empty ? float_from_bits(0xFF800000u) : 0.0f;
}

/// A tensor whose largest element is looked for, by strides in elements.
struct AmaxRows {
  const char* source;
  i64 token_stride;
  i64 head_stride;
  i64 num_tokens;
};

/// The largest element of this CTA's share of the tensor, in thread 0; what RunningMax starts with
/// where it has none. Config: that of amax() but kRowPieces.
template <class Config, int kTensorRowPieces>
__device__ __forceinline__ float largest_of_cta(const AmaxRows& rows) {
  constexpr int kItems = Config::kItems;
  constexpr int kVector = Config::kVector;
  constexpr int kTile = Config::kThreads * kItems;
  constexpr unsigned kRowPieces = kTensorRowPieces;
  constexpr unsigned kHeadPieces = Config::kHeadPieces;
  using Vector = ElementVector<Config::kElement, kVector>;
  RunningMax<Config::kElement, Config::kSigned> largest;
  for (i64 first = static_cast<i64>(blockIdx.x) * kTile; first < rows.num_tokens * kRowPieces;
       first += static_cast<i64>(gridDim.x) * kTile) {
    const i64 first_token = quotient(first, kRowPieces);
    const unsigned first_piece =
        static_cast<unsigned>(first - first_token * kRowPieces) + threadIdx.x;
    Vector loaded[kItems];
    bool is_live[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const unsigned index = first_piece + i * Config::kThreads;
      const i64 token = first_token + index / kRowPieces;
      const unsigned piece = index % kRowPieces;
      is_live[i] = token < rows.num_tokens;
      if (!is_live[i]) continue;
      const i64 at = token * rows.token_stride + piece / kHeadPieces * rows.head_stride +
                     piece % kHeadPieces * kVector;
      loaded[i] =
          load_vector<Config::kElement, kVector>(rows.source + at * size_of(Config::kElement));
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (!is_live[i]) continue;
      if constexpr (Vector::kBytes < 4) {
        // One element of two bytes, twice.
        loaded[i].words[0] |= loaded[i].words[0] << 16;
      }
#pragma unroll
      for (int w = 0; w < Vector::kNumWords; ++w) largest.add(loaded[i].words[w]);
    }
  }
  __shared__ float of_warps[Config::kThreads / 32];
  const float of_warp = nan_max_of_warp(largest.value());
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
  __syncthreads();
  float of_cta = of_warp;
  if (threadIdx.x == 0) {
    for (int w = 1; w < Config::kThreads / 32; ++w) of_cta = nan_max(of_cta, of_warps[w]);
  }
  return of_cta;
}

/// *p.amax = nan_max(*p.amax, largest element), which start_amax() has set before.
/// Config: Element kElement; int kVector (elements of a load), kItems (loads of a thread that are
/// under way at once), kHeadPieces, kRowPieces (loads of a head, of a token), kThreads; bool
/// kSigned. Grid: any; its CTAs take turns.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) amax(const __grid_constant__ AmaxParams p) {
  const float of_cta = largest_of_cta<Config, Config::kRowPieces>(
      {static_cast<const char*>(p.source), p.token_stride, p.head_stride, p.num_tokens});
  // Why one atomic a CTA, and few CTAs: they queue up at their one address, 3.6 ns each on an H200.
  if (threadIdx.x == 0) atomic_nan_max(p.amax, of_cta);
}

/// The scale of a ring in which `amax` replaces the oldest value.
__device__ __forceinline__ float record_amax(float* ring, int position, float amax) {
  ring[position] = amax;
  float largest = 1.17549435e-38f;  // 2^-126, the least normal float
#pragma unroll
  for (int k = 0; k < kAmaxHistoryLength; ++k) largest = nan_max(largest, ring[k]);
  return __fdiv_rn(largest, 448.0f);
}

/// One thread a tensor: its amax replaces the oldest of the ring, and the scale is that of the
/// largest one of the ring. Config: int kThreads. Grid: cdiv(num_tensors, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    update_amax_history(const __grid_constant__ AmaxHistoryParams p) {
  const i64 tensor = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (tensor >= p.num_tensors) return;
  p.scale[tensor] =
      record_amax(p.history + tensor * kAmaxHistoryLength, p.position, p.amax[tensor]);
}

/// The scales of query, key and value from their amax: one thread each. Config: int kThreads.
/// Grid: 1.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    calc_kv_scales(const __grid_constant__ KvScaleParams p) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= 3) return;
  const float scale = __fdiv_rn(p.amax[i], p.range[i]);
  p.scale[i] = scale == 0.0f ? 1.0f : scale;
}

}  // namespace attn
