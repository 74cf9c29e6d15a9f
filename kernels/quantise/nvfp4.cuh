// NVFP4: e2m1 codes with an e4m3 scale for 16 columns and one f32 factor g for the tensor
// (semantics §9.4); the arithmetic of a block is in kernels/ptx/nvfp4_block.cuh.
#pragma once

#include "kernels/quantise/fp8.cuh"

namespace attn {

/// One thread a block of 16 columns, so that no maximum has to cross threads. Scales of padding
/// rows and blocks in the swizzled layout are not written. Config: Element kSource; int kVector
/// (elements of a load), kStoreBytes (of the codes' stores: 1, 2, 4 or 8), kThreads. Grid:
/// cdiv(rows * columns / 16, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    quantise_nvfp4(const __grid_constant__ Nvfp4QuantiseParams p) {
  constexpr int kVector = Config::kVector;
  const i64 index = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const i64 num_blocks = p.num_columns / kNvfp4Block;
  const i64 row = quotient(index, num_blocks);
  if (row >= p.num_rows) return;
  const i64 block = index - row * num_blocks;
  float values[kNvfp4Block];
  float largest = 0.0f;
#pragma unroll
  for (int l = 0; l < kNvfp4Block; l += kVector) {
    const i64 from = row * p.source_row_stride + block * kNvfp4Block + l;
    float part[kVector];
    decode_vector(load_vector<Config::kSource, kVector>(static_cast<const char*>(p.source) +
                                                        from * size_of(Config::kSource)),
                  part);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[l + i] = part[i];
      largest = fmaxf(largest, fabsf(part[i]));
    }
  }
  Nvfp4Codes codes;
  const u8 scale_code = quantise_nvfp4_block(values, largest, p.global_scale[0], codes);
  store_parts<Config::kStoreBytes>(p.packed + row * p.packed_row_stride + block * (kNvfp4Block / 2),
                                   codes);
  p.scales[p.swizzled != 0 ? nvfp4_swizzled_offset(row, block, (num_blocks + 3) / 4)
                           : row * num_blocks + block] = scale_code;
}

}  // namespace attn
