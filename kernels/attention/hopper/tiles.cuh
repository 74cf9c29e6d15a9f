// Attention by a list of tiles (kernels/params_tiles.h) on SM 9.0a: the roles, rings and products
// of hopper/prefill.cuh, whose tiles come from the list instead of a grid. So one launch does the
// decodes and the prefills of a batch, or the pass over a shared prefix, split over keys, and each
// request's own keys.
//
// What makes it fast is the order. A tile of few rows is bound by how fast one multiprocessor can
// read (about 60 to 75 GB/s, twice its share of the memory), a tile of many rows by the tensor
// cores. Where the list mixes the two, some multiprocessors draw most of the memory's rate while
// the others multiply; in turns, as a grid has them, one of the two idles. Tiles of up to 8 rows
// have products of their own (few_rows.cuh); those of up to 64 are done by one consumer.
#pragma once

#include "kernels/attention/hopper/prefill.cuh"
#include "kernels/ptx/dependents.cuh"

namespace attn {

/// Grid: with kPersistent at most list.num_ctas CTAs and list.num_bundles, each of which draws
/// bundles of tiles and has the keys of the next tile under way while it ends one; else
/// list.num_tiles, in their order. `keys`,
/// `values`, `queries` and `outputs` as of hopper_prefill, of pages.
///
/// Config: as of HopperShape, with kBlockSize > 0 and kAhead where kPersistent · kTileList (true) ·
/// kParts (results are parts) · kFew (consumers do tiles of few rows as of few_rows.cuh) · kBeside
/// (HopperTile::beside; with kPersistent and kAhead) · kSharing (with kBeside: warps that share a
/// tile beside, 1 or 4)
template <class Config>
__global__ void __launch_bounds__(HopperShape<Config>::kThreads, 1)
    hopper_tiles(const __grid_constant__ AttendParams params,
                 const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values,
                 const __grid_constant__ TensorMap queries,
                 const __grid_constant__ TensorMap outputs,
                 const __grid_constant__ TileListParams list) {
  static_assert(has_tile_list<Config>() && Config::kBlockSize > 0);
  extern __shared__ HopperMemory hopper_memory[];
  auto* const memory = reinterpret_cast<unsigned char*>(hopper_memory);
  const u32 start = shared_address(memory);
  const u32 base = (start + kHopperAlignment - 1) / kHopperAlignment * kHopperAlignment;
  const HopperGrid no_grid{};
  const HopperShape<Config> shape{params, no_grid, memory + (base - start), base, nullptr,
                                  &list,  &outputs};
  // Maps by a warp of their own, while another initialises barriers.
  if (threadIdx.x == 32) {
    prefetch_map(keys);
    prefetch_map(values);
    if constexpr (Config::kAhead) prefetch_map(queries);
    if constexpr (HopperShape<Config>::kStoresBoxes) prefetch_map(outputs);
  }
  if (threadIdx.x == 0) shape.init_barriers();
  shape.fill_constants();
  allow_next_kernel();
  __syncthreads();
  run_hopper_roles<Config>(shape, keys, values, queries);
}

}  // namespace attn
