// What comes behind the attention of an MLA decode, in one launch: the latent output projected to
// values, head by head, and the rows that the heads make rounded to codes for the next layer
// (semantics §8.7, §9). Separately the codes are another kernel, which takes longer to start than
// to move what it moves.
//
// The weights do not depend on the attention: where the kernel is launched before that has ended,
// they are in shared memory when it does.
//
// Config: as of few_rows.cuh, and OutputCodes kCodes · int kGroup (columns of a group: 16 of
// kBlocks)
#pragma once

#include "kernels/matmul/few_rows.cuh"
#include "kernels/ptx/dependents.cuh"
#include "kernels/ptx/nvfp4_block.cuh"
#include "kernels/ptx/scales.cuh"

namespace attn {

/// Codes of 16 columns of a row of the output, from `column` on: one for each lane, so that the
/// lanes that share a group are neighbours. All lanes must call this; what is not `live` is not
/// stored.
template <class Config>
__device__ __forceinline__ void store_output_codes(
    const ValueOutputParams& p, float scale, i64 row, i64 column, bool is_live,
    const ElementVector<Config::kElement, kGroupPiece>& piece) {
  if constexpr (Config::kCodes == OutputCodes::kBlocks) {
    if (!is_live) return;
    Nvfp4Codes codes;
    const u8 code = quantise_nvfp4_block(nvfp4_columns<Config::kElement>(piece), scale, codes);
    store_vector(p.by_blocks.packed + row * p.by_blocks.packed_row_stride + column / 2, codes);
    const i64 row_blocks = p.by_blocks.num_columns / kNvfp4Block;
    const i64 block = column / kNvfp4Block;
    p.by_blocks
        .scales[p.by_blocks.swizzled != 0 ? nvfp4_swizzled_offset(row, block, (row_blocks + 3) / 4)
                                          : row * row_blocks + block] = code;
  } else if constexpr (Config::kCodes == OutputCodes::kGroups) {
    constexpr int kLanes = Config::kGroup / kGroupPiece;
    const GroupQuantiseParams& q = p.by_groups;
    float values[kGroupPiece];
    decode_vector(piece, values);
    const float of_group = group_scale<kLanes>(values, q.ue8m0 != 0);
    if (!is_live) return;
    divide_for_codes(values, of_group);
    store_vector(q.codes + row * q.code_row_stride + column, encode_vector<Element::kE4M3>(values));
    if (column % Config::kGroup == 0) {
      q.scales[row * q.scale_row_stride + column / Config::kGroup * q.scale_group_stride] =
          of_group;
    }
  } else if constexpr (Config::kCodes == OutputCodes::kScale) {
    if (!is_live) return;
    float values[kGroupPiece];
    decode_vector(piece, values);
    scale_by(values, __fdiv_rn(1.0f, scale));
    store_vector(p.by_scale.codes + row * p.by_scale.code_row_stride + column,
                 encode_vector<Element::kE4M3>(values));
  }
}

/// Zeros of swizzled scales behind the last row, for the columns of the tile.
template <class Config>
__device__ __forceinline__ void clear_scales_behind(const ValueOutputParams& p, i64 first_column) {
  constexpr int kBlocks = Config::kColumns / kNvfp4Block;
  const i64 row_blocks = p.by_blocks.num_columns / kNvfp4Block;
  const int rows = static_cast<int>(p.clear.num_tokens - p.project.m);
  for (int i = static_cast<int>(threadIdx.x); i < rows * kBlocks; i += FewRows<Config>::kThreads) {
    const i64 block = first_column / kNvfp4Block + i % kBlocks;
    if (block >= row_blocks) continue;
    p.by_blocks.scales[nvfp4_swizzled_offset(p.project.m + i / kBlocks, block, row_blocks / 4)] = 0;
  }
}

template <class Config>
__device__ __forceinline__ void project_values(const ValueOutputParams& p, unsigned char* memory) {
  constexpr int kUnits = Config::kColumns / kGroupPiece;  // of a row of the tile
  using Product = FewRows<Config>;
  static_assert(Config::kRows * kUnits % 32 == 0);
  allow_next_kernel();
  Product product(p.project, few_rows_tile<Config>(p.project, blockIdx.x), memory);
  const FewRowsTile& tile = product.tile;
  float scale = 1.0f;
  if constexpr (Config::kCodes == OutputCodes::kScale) scale = p.by_scale.scale[0];
  if constexpr (Config::kCodes == OutputCodes::kBlocks) scale = p.by_blocks.global_scale[0];
  product.load_behind_previous();
  product.run();
  for (int i = static_cast<int>(threadIdx.x); i < Config::kRows * kUnits; i += Product::kThreads) {
    const i64 row = tile.first_row + i / kUnits;
    const i64 of_head = tile.first_column + i % kUnits * kGroupPiece;
    const bool is_live = row < p.project.m && of_head < p.project.n;
    const auto piece = load_vector<Config::kElement, kGroupPiece>(
        memory + i / kUnits * Product::kPitchC + i % kUnits * (kGroupPiece * 2));
    const i64 column = tile.batch * p.project.n + of_head;
    if (is_live) {
      store_vector(static_cast<u16*>(p.project.c) + row * p.project.c_row_stride + column, piece);
    }
    store_output_codes<Config>(p, scale, row, column, is_live, piece);
  }
  if constexpr (Config::kCodes == OutputCodes::kBlocks) {
    if (p.clear.num_tokens > p.project.m && tile.first_row + Config::kRows >= p.project.m) {
      clear_scales_behind<Config>(p, tile.batch * p.project.n + tile.first_column);
    }
  }
}

/// Grid: tiles of all heads. Shared memory: few_rows_shared_bytes().
template <class Config>
__global__ void __launch_bounds__(few_rows_threads(Config::kRows, Config::kColumns))
    value_output(const __grid_constant__ ValueOutputParams p) {
  extern __shared__ uint4 value_output_memory[];
  project_values<Config>(p, reinterpret_cast<unsigned char*>(value_output_memory));
}

}  // namespace attn
