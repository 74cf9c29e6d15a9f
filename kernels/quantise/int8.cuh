// int8 quantisation of attention inputs: a scale for every token and head, or for every channel
// (semantics §11.2), a channel being a head's column over all tokens. The first is one kernel. The
// dynamic scales of channels take three, since a channel's maximum is over the whole tensor:
// finish_channel_scales (clear), reduce_channels, finish_channel_scales (/ 127); the codes are then
// a kernel of their own, as they are with given scales.
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/params_int8.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// rn_i8 in the instructions of the device: saturates and makes 0 of NaN.
__device__ __forceinline__ u32 nearest_code(float x) {
  return static_cast<u32>(min(max(__float2int_rn(x), -128), 127)) & 0xFFu;
}

/// The first value's code in the low byte of the first word.
template <int kCount>
__device__ __forceinline__ ElementVector<Element::kI8, kCount> nearest_codes(
    const float (&values)[kCount]) {
  ElementVector<Element::kI8, kCount> codes{};
#pragma unroll
  for (int i = 0; i < kCount; ++i) codes.words[i / 4] |= nearest_code(values[i]) << (i % 4 * 8);
  return codes;
}

/// kVector columns of a head as f32.
template <class Config>
__device__ __forceinline__ void load_values(const Int8QuantiseParams& p, i64 token, i64 head,
                                            int column, float (&values)[Config::kVector]) {
  const i64 from = token * p.source_token_stride + head * p.source_head_stride + column;
  decode_vector(load_vector<Config::kSource, Config::kVector>(static_cast<const char*>(p.source) +
                                                              from * size_of(Config::kSource)),
                values);
}

/// kLanes neighbouring threads do a (token, head): they read it once for the maximum and again,
/// from a cache by then, for the codes, code = rn_i8(x * (127 / max|x|)), scale = max|x| / 127.
/// Threads without a row take part in the shuffles before they leave.
///
/// Config: Element kSource; int kVector (elements of a load), kLanes (threads of a row, a power of
/// two up to 32), kThreads. Grid: cdiv(T * h, kThreads / kLanes).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    quantise_int8_token_head(const __grid_constant__ Int8QuantiseParams p) {
  constexpr int kVector = Config::kVector;
  constexpr int kLanes = Config::kLanes;
  const i64 row = static_cast<i64>(blockIdx.x) * (Config::kThreads / kLanes) + threadIdx.x / kLanes;
  const i64 token = quotient(row, p.num_heads);
  const i64 head = row - token * p.num_heads;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int end = token < p.num_tokens ? p.head_size : 0;
  float values[kVector];
  float largest = 0.0f;
  for (int column = lane * kVector; column < end; column += kLanes * kVector) {
    load_values<Config>(p, token, head, column, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) largest = fmaxf(largest, fabsf(values[i]));
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
  }
  if (end == 0) return;
  if (lane == 0) {
    p.scale[token * p.scale_token_stride + head * p.scale_head_stride] = __fdiv_rn(largest, 127.0f);
  }
  const float factor = __fdiv_rn(127.0f, largest);
  for (int column = lane * kVector; column < end; column += kLanes * kVector) {
    load_values<Config>(p, token, head, column, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] = largest == 0.0f ? 0.0f : __fmul_rn(values[i], factor);
    }
    store_vector(p.codes + token * p.code_token_stride + head * p.code_head_stride + column,
                 nearest_codes(values));
  }
}

/// Codes by the scale of their channel: rn_i8(x / scale), 0 for a scale of 0. Config: Element
/// kSource; int kVector, kThreads. Grid: cdiv(T * h * D / kVector, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    quantise_int8_channel(const __grid_constant__ Int8QuantiseParams p) {
  constexpr int kVector = Config::kVector;
  const i64 index = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const int row_vectors = p.head_size / kVector;
  const i64 row = quotient(index, row_vectors);
  const i64 token = quotient(row, p.num_heads);
  if (token >= p.num_tokens) return;
  const i64 head = row - token * p.num_heads;
  const int column = static_cast<int>(index - row * row_vectors) * kVector;
  float values[kVector];
  load_values<Config>(p, token, head, column, values);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float scale = p.scale[head * p.head_size + column + i];
    values[i] = scale == 0.0f ? 0.0f : __fdiv_rn(values[i], scale);
  }
  store_vector(p.codes + token * p.code_token_stride + head * p.code_head_stride + column,
               nearest_codes(values));
}

/// Every channel's scale, before (0) and after (/ 127) the maxima are taken. Config: int kThreads;
/// bool kClear. Grid: cdiv(h * D, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    finish_channel_scales(const __grid_constant__ Int8QuantiseParams p) {
  const i64 channel = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (channel >= static_cast<i64>(p.num_heads) * p.head_size) return;
  p.scale[channel] = Config::kClear ? 0.0f : __fdiv_rn(p.scale[channel], 127.0f);
}

/// The largest magnitude of a channel over a run of tokens into its scale. A thread has a channel,
/// so a warp reads contiguous columns. Config: Element kSource; int kTokens (of a run), kThreads.
/// Grid: (cdiv(h * D, kThreads), cdiv(T, kTokens)).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    reduce_channels(const __grid_constant__ Int8QuantiseParams p) {
  const i64 channel = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (channel >= static_cast<i64>(p.num_heads) * p.head_size) return;
  const i64 head = quotient(channel, p.head_size);
  const i64 column = channel - head * p.head_size;
  const char* const source = static_cast<const char*>(p.source);
  const i64 first = static_cast<i64>(blockIdx.y) * Config::kTokens;
  float largest = 0.0f;
#pragma unroll 8
  for (int i = 0; i < Config::kTokens; ++i) {
    const i64 token = first + i;
    if (token >= p.num_tokens) break;
    const i64 at = token * p.source_token_stride + head * p.source_head_stride + column;
    float value[1];
    decode_vector(load_vector<Config::kSource, 1>(source + at * size_of(Config::kSource)), value);
    largest = fmaxf(largest, fabsf(value[0]));
  }
  // Bits of floats >= 0 are in the order of their values.
  atomicMax(reinterpret_cast<int*>(p.scale + channel), __float_as_int(largest));
}

}  // namespace attn
