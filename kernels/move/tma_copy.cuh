// Copies a tensor box by box through shared memory with the copy engine: no operation of a
// pipeline, but the smallest kernel that does all that the Hopper kernels are built on (tensor
// maps, barriers, a ring of stages, clusters), so that this can be tested without their arithmetic.
#pragma once

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"

namespace attn {

/// A CTA copies every gridDim.y-th of the boxes below one another, in column blockIdx.x of boxes
/// and plane blockIdx.z. Box columns past the edge, which fill up the last cluster, move nothing.
///
/// Config: int kRank (2 to 5; indices of dimensions from 3 on are 0), kBoxColumns and kBoxRows
/// (elements), kBoxBytes (on a multiple of 1024), kStages (of the ring); unsigned long long
/// kPolicy. Grid: columns of boxes, clusters of 2 along them; any; planes. One warp. Shared memory:
/// kStages * kBoxBytes + 1024.
template <class Config>
__global__ void __launch_bounds__(32)
    tma_copy(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to,
             const int row_boxes) {
  constexpr int kStages = Config::kStages;
  constexpr u32 kAlignment = 1024;  // what the widest swizzle repeats after
  extern __shared__ char memory[];
  __shared__ Barrier barriers[kStages + 1];
  const u32 ring = (shared_address(memory) + kAlignment - 1) / kAlignment * kAlignment;
  const auto stage = [&](int box) { return ring + box % kStages * Config::kBoxBytes; };
  const auto full = [&](int box) { return shared_address(barriers + box % kStages); };
  const u32 neighbour_done = shared_address(barriers + kStages);
  const auto box_at = [&](int box) {
    BoxAt<Config::kRank> at{};
    at.at[0] = static_cast<int>(blockIdx.x) * Config::kBoxColumns;
    at.at[1] = static_cast<int>(blockIdx.y + box * gridDim.y) * Config::kBoxRows;
    if constexpr (Config::kRank > 2) at.at[2] = static_cast<int>(blockIdx.z);
    return at;
  };
  const auto load = [&](int box) {
    arrive_expecting(full(box), Config::kBoxBytes);
    load_box(stage(box), from, box_at(box), full(box), Config::kPolicy);
  };

  const bool leads = threadIdx.x == 0;
  if (leads) {
    prefetch_map(from);
    prefetch_map(to);
    for (int s = 0; s <= kStages; ++s) init_barrier(shared_address(barriers + s), 1);
    publish_barriers();
  }
  __syncwarp();
  sync_cluster();
  if (leads) {
    const int first = static_cast<int>(blockIdx.y);
    const int stride = static_cast<int>(gridDim.y);
    const int boxes = first < row_boxes ? (row_boxes - first + stride - 1) / stride : 0;
    for (int box = 0; box < kStages && box < boxes; ++box) load(box);
    for (int box = 0; box < boxes; ++box) {
      await(full(box), box / kStages % 2);
      store_box(to, box_at(box), stage(box));
      close_store_group();
      if (box + kStages >= boxes) continue;
      await_stores_read<0>();
      load(box + kStages);
    }
    await_stores<0>();
    arrive_remote(in_cta(neighbour_done, cluster_rank() ^ 1));
    await(neighbour_done, 0);
  }
  // Why: the neighbour's arrival is a write to this CTA's memory, which goes when the CTA ends.
  __syncwarp();
  sync_cluster();
}

}  // namespace attn
