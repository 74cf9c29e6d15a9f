// NVFP4: e2m1 codes with an e4m3 scale for 16 columns and one f32 factor g for the tensor
// (semantics §9.4); the arithmetic of a block is in kernels/ptx/nvfp4_block.cuh.
//
// 16 columns of bf16 are 32 bytes that come and 9 that go: 8 of codes and a scale. A multiprocessor
// has time for some 370 instructions of a warp in which memory moves those of its blocks at 3.2
// TB/s (H200), so what is counted here is instructions.
#pragma once

#include "kernels/ptx/nvfp4_block.cuh"

namespace attn {

/// One thread a block of 16 columns, so that no maximum has to cross threads. Scales of padding
/// rows and blocks in the swizzled layout are not written. A row's blocks are a constant, by which
/// a quotient costs little. Config: Element kSource; int kVector (elements of a load), kStoreBytes
/// (of the codes' stores: 1, 2, 4 or 8), kRowBlocks (of a row), kThreads. Grid: cdiv(rows *
/// kRowBlocks, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 5)
    quantise_nvfp4(const __grid_constant__ Nvfp4QuantiseParams p) {
  constexpr unsigned kRowBlocks = Config::kRowBlocks;
  const float global_scale = p.global_scale[0];
  // Why by the CTA's first block: offsets pass 2^32, and of 64-bit numbers a quotient is dear.
  const i64 first = static_cast<i64>(blockIdx.x) * Config::kThreads;
  const i64 first_row = first / kRowBlocks;
  const unsigned index = static_cast<unsigned>(first - first_row * kRowBlocks) + threadIdx.x;
  const i64 row = first_row + index / kRowBlocks;
  if (row >= p.num_rows) return;
  const i64 block = index % kRowBlocks;
  const i64 from = row * p.source_row_stride + block * kNvfp4Block;
  const auto source = load_parts<Config::kSource, kNvfp4Block, Config::kVector>(
      static_cast<const char*>(p.source) + from * size_of(Config::kSource));
  Nvfp4Codes codes;
  const u8 scale_code =
      quantise_nvfp4_block(nvfp4_columns<Config::kSource>(source), global_scale, codes);
  store_parts<Config::kStoreBytes>(p.packed + row * p.packed_row_stride + block * (kNvfp4Block / 2),
                                   codes);
  p.scales[p.swizzled != 0 ? nvfp4_swizzled_offset(row, block, (kRowBlocks + 3) / 4)
                           : row * kRowBlocks + block] = scale_code;
}

}  // namespace attn
