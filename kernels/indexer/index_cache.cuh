// Keys of the sparse indexer into their cache (semantics §8.10). A warp has a key: four elements a
// lane, whose largest magnitude goes round by shuffles.
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/params_indexer.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// Config: Element kSource; int kVector (elements of a load: 4 or 1), kThreads. Grid:
/// cdiv(num_slots, kThreads / 32).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    write_index_cache(const __grid_constant__ IndexCacheWriteParams p) {
  constexpr int kElements = kIndexKey / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const i64 token = static_cast<i64>(blockIdx.x) * (Config::kThreads / 32) + threadIdx.x / 32;
  if (token >= p.num_slots) return;
  const i64 slot = p.slot_mapping[token];
  if (slot < 0) return;
  float values[kElements];
  decode_vector(load_parts<Config::kSource, kElements, Config::kVector>(
                    static_cast<const char*>(p.key) +
                    (token * p.key_token_stride + lane * kElements) * size_of(Config::kSource)),
                values);
  float largest = 1e-4f;
#pragma unroll
  for (int i = 0; i < kElements; ++i) largest = fmaxf(largest, fabsf(values[i]));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
  }
  float scale = __fdiv_rn(largest, 448.0f);
  if (p.ue8m0 != 0) {
    // The next power of two: what is behind the exponent carries into it, unless it is 0.
    scale = float_from_bits((float_bits(scale) + 0x7FFFFFu) & 0xFF800000u);
  }
  divide_for_codes(values, scale);
  const i64 offset = slot % p.block_size;
  unsigned char* const block = p.cache + slot / p.block_size * p.block_stride;
  store_vector(block + index_codes_at(offset) + lane * kElements,
               encode_vector<Element::kE4M3>(values));
  if (lane == 0) {
    *reinterpret_cast<float*>(block + index_scale_at(p.block_size, offset)) = scale;
  }
}

}  // namespace attn
