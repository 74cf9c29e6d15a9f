// Attention over MLA latents in e4m3 on SM 9.0, of query rows in e4m3 (the heads and tokens of a
// request): one KV head, keys of 512 + 64 codes in pages, and the value of a key is its first 512.
//
// The copy engine brings keys as they are, four tiles ahead (latent_codes_loads.cuh), and no
// converted key is ever stored: S multiplies the codes, and for O^T = V^T P^T the threads make f16
// numbers, which hold every code, of what they read of V, and hand them to the tensor cores in
// registers. Two warpgroups share the work on a tile of rows, by its number of rows: up to 32 as
// latent_codes_few.cuh has it, 64 as latent_codes_wide.cuh does.
//
// Config: kOutput (16 bits or f32), kBlockSize (keys of a block of the cache), kRows (of a tile:
// 16, 32 or 64), kE4M3Probability (P is rounded to e4m3, semantics §10.5)
#pragma once

#include "kernels/attention/latent/latent_codes_few.cuh"
#include "kernels/attention/latent/latent_codes_wide.cuh"
#include "kernels/ptx/dependents.cuh"

namespace attn {

template <int kRows>
struct CodesOf {
  using Rows = FewCodes<kRows>;
  static constexpr u32 kReaders = 4;  // warps that read a tile of keys: those of one half
};
template <>
struct CodesOf<kWideRows> {
  using Rows = WideCodes;
  static constexpr u32 kReaders = 8;
};

/// All items, by one half.
template <class Config, int kHalf, class Work>
__device__ __forceinline__ void attend_codes_items(const AttendParams& params, const Work& work) {
  const LatentThread thread = latent_thread();
  u32 number = 0;  // of the tiles of keys before
#pragma unroll 1
  for (int at = work.first(); at < work.end(); at += work.step()) {
    const LatentItem item = work.item(at);
    if (item.tile.num_rows <= 0) continue;
    typename CodesOf<Config::kRows>::Rows rows;
    rows.clear();
    if (!item.keys.are_none()) {
      fetch_codes_query<Config>(params, item.tile);
      publish_shared_writes();
      sync_threads_of(kBothHalves, 256);
      attend_codes_keys<Config, kHalf>(rows, params, work, at, item.keys, number, thread);
      number += code_tiles(item.keys);
    }
    finish_codes<Config, kHalf>(rows, params, work, at, thread);
  }
}

template <class Config, class Work>
__device__ __forceinline__ void attend_codes(const AttendParams& params, const Work& work,
                                             const TensorMap& key_map) {
  prepare_codes<Config>(key_map, CodesOf<Config::kRows>::kReaders);
  await_previous_kernel();  // which made the query
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 2) {
    give_registers<24>();
    if (threadIdx.x < 2 * 128 + 32) load_codes_of<Config>(params, work, key_map);
  } else {
    take_registers<240>();
    if (warpgroup == 0) {
      attend_codes_items<Config, 0>(params, work);
    } else {
      attend_codes_items<Config, 1>(params, work);
    }
  }
  allow_next_kernel();
}

/// Grids as those of latent.cuh. Shared memory: CodesPlaces<kRows>::kSharedBytes.
template <class Config>
__global__ void __launch_bounds__(kLatentThreads, 1)
    latent_codes(const __grid_constant__ AttendParams params,
                 const __grid_constant__ TensorMap key_map) {
  const LatentWhole work{{params}};
  attend_codes<Config>(params, work, key_map);
}
template <class Config>
__global__ void __launch_bounds__(kLatentThreads, 1)
    latent_codes_splits(const __grid_constant__ AttendParams params,
                        const __grid_constant__ SplitParams split,
                        const __grid_constant__ TensorMap key_map) {
  const LatentSplits work{{params}, split};
  attend_codes<Config>(params, work, key_map);
}
template <class Config>
__global__ void __launch_bounds__(kLatentThreads, 1)
    latent_codes_plan(const __grid_constant__ AttendParams params,
                      const __grid_constant__ PlanParams plan,
                      const __grid_constant__ TensorMap key_map) {
  const LatentPlan work{{params}, plan};
  attend_codes<Config>(params, work, key_map);
}

}  // namespace attn
