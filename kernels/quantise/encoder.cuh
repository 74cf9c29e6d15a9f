// Queries, keys and values of the multimodal encoder in one launch each: their dynamic scales, and
// their codes (semantics §10.5, §10.6). What is computed is that of the operations for one tensor;
// which tensor a CTA has is its y.
#pragma once

#include "kernels/ptx/arrivals.cuh"
#include "kernels/quantise/fp8.cuh"
#include "kernels/quantise/scales.cuh"

namespace attn {

/// The largest element of tensor `tensor`, by one warp from what its CTAs found: as amax() leaves
/// it, in all lanes.
template <class Config>
__device__ __forceinline__ float collect_amax(const EncoderScalesParams& p, int tensor) {
  const EncoderTensor& of = p.tensors[tensor];
  if (of.num_tokens * of.num_heads * p.head_size == 0) return 0.0f;
  float largest = Config::kSigned ? float_from_bits(0xFF800000u) : 0.0f;
  const int ctas = static_cast<int>(gridDim.x);
  for (int i = static_cast<int>(threadIdx.x % 32); i < ctas; i += 32) {
    largest = nan_max(largest, load_of_grid(p.partial + tensor * kMostAmaxCtas + i));
  }
  largest = nan_max_of_warp(largest);
  return largest != largest ? kAmaxNan : largest + 0.0f;  // -0 becomes 0
}

/// The CTAs of a tensor take turns with its elements, and whichever is the last of all makes the
/// scales. Config: that of amax(), with kRowPieces of queries and kOtherRowPieces of keys and
/// values; at least three warps. Grid: at most kMostAmaxCtas; 3.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    encoder_scales(const __grid_constant__ EncoderScalesParams p) {
  const int tensor = static_cast<int>(blockIdx.y);
  const EncoderTensor& of = p.tensors[tensor];
  const AmaxRows rows{static_cast<const char*>(of.source), of.token_stride, of.head_stride,
                      of.num_tokens};
  const float of_cta = tensor == 0 ? largest_of_cta<Config, Config::kRowPieces>(rows)
                                   : largest_of_cta<Config, Config::kOtherRowPieces>(rows);
  __shared__ bool is_last;
  __shared__ float scales[3];
  if (threadIdx.x == 0) {
    p.partial[tensor * kMostAmaxCtas + static_cast<int>(blockIdx.x)] = of_cta;
    is_last = is_last_arrival(p.arrivals, 3 * static_cast<int>(gridDim.x));
  }
  __syncthreads();
  if (!is_last) return;
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp < 3) {
    const float amax = collect_amax<Config>(p, warp);
    if (threadIdx.x % 32 == 0) {
      p.amax[warp] = amax;
      scales[warp] = record_amax(p.history + warp * kAmaxHistoryLength, p.position, amax);
      p.scale[warp] = scales[warp];
    }
  }
  __syncthreads();
  if (p.kv_scales == nullptr) return;
  for (int head = static_cast<int>(threadIdx.x); head < p.num_kv_heads; head += Config::kThreads) {
    p.kv_scales[head] = scales[0] * scales[1];
    p.kv_scales[p.num_kv_heads + head] = scales[2];
  }
}

/// Config of quantise_rows() for keys and values.
template <class Config>
struct OtherRows : Config {
  static constexpr int kRowPieces = Config::kOtherRowPieces;
};

/// Config: that of quantise_rows() for queries, and kOtherRowPieces. Grid: as there, of the tensor
/// with the most rows; 3.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    quantise_encoder(const __grid_constant__ EncoderQuantiseParams p) {
  const int tensor = static_cast<int>(blockIdx.y);
  const EncoderTensor& of = p.tensors[tensor];
  PadQuantiseParams part{};
  part.source_element = p.source_element;
  part.source = of.source;
  part.source_token_stride = of.token_stride;
  part.source_head_stride = of.head_stride;
  part.codes = p.codes[tensor];
  part.scale = p.scale[tensor];
  part.num_saturated = p.num_saturated == nullptr ? nullptr : p.num_saturated + tensor;
  part.num_tokens = of.num_tokens;
  part.num_heads = of.num_heads;
  part.head_size = p.head_size;
  part.padded_head_size = p.padded_head_size;
  if (tensor == 0) {
    pad_and_quantise<Config>(part);
  } else {
    pad_and_quantise<OtherRows<Config>>(part);
  }
}

}  // namespace attn
