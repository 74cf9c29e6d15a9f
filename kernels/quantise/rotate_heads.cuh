// Rotation of heads (semantics §5.6): queries before attention over a cache of rotated keys, and
// outputs back. kLanes neighbouring threads have a head between them, kVector columns each.
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/ptx/rotation.cuh"

namespace attn {

/// Config: Element kElement; int kWidth (D), kVector (columns of a thread), kLanes (threads of a
/// head, kWidth / kVector), kLoad (elements of a load), kThreads; bool kInverse. Grid:
/// cdiv(tokens * heads * kLanes, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    rotate_heads(const __grid_constant__ RotateHeadsParams p) {
  constexpr int kVector = Config::kVector;
  constexpr int kLanes = Config::kLanes;
  constexpr int kBytes = size_of(Config::kElement);
  static_assert(kLanes * kVector == Config::kWidth && kLanes <= 32);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const i64 row = (static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x) / kLanes;
  const i64 token = quotient(row, p.num_heads);
  const i64 head = row - token * p.num_heads;
  // Why not an early return: the shuffles need whole warps.
  const bool live = token < p.num_tokens;
  ElementVector<Config::kElement, kVector> loaded{};
  if (live) {
    loaded = load_parts<Config::kElement, kVector, Config::kLoad>(
        static_cast<const char*>(p.source) +
        (token * p.source_token_stride + head * p.source_head_stride + lane * kVector) * kBytes);
  }
  float values[kVector];
  decode_vector(loaded, values);
  if constexpr (!Config::kInverse) apply_rotation_signs(values, lane);
  hadamard<kLanes>(values, lane);
  if constexpr (Config::kInverse) {
    apply_rotation_signs(values, lane);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] = __fdiv_rn(values[i], static_cast<float>(Config::kWidth));
    }
  }
  if (!live) return;
  store_parts<Config::kLoad * kBytes>(
      static_cast<char*>(p.output) +
          (token * p.output_token_stride + head * p.output_head_stride + lane * kVector) * kBytes,
      encode_vector<Config::kElement>(values));
}

}  // namespace attn
