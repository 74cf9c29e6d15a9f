// Attention over MLA latents on SM 9.0: one KV head, keys of 512 + 64 columns in pages, and the
// value of a key is its first 512 columns. Products by two warpgroups (latent_products.cuh); here,
// the copy engine's loads, queued by the first warp of a third one, with kFew by two of its warps.
//
// Without kFew, halves of a tile are loaded again as soon as nobody reads them: V0 left, V1 right,
// V0 right with the rope part (where P0 was), V1 left with the rope part (where P1 was), in this
// order.
//
// Config: kElement (of queries and keys: bf16 or f16), kOutput (the same or f32), kBlockSize (keys
// of a block of the cache), kQueryBox (latent_query_box(), or 0: threads copy the query), kPolicy
// (of the L2 for keys), kFew (of up to 16 query rows: latent_few.cuh)
#pragma once

#include "kernels/attention/latent/latent_few.cuh"

namespace attn {

/// Pieces [first, last] of a tile.
template <class Config>
__device__ __forceinline__ void load_pieces(const TensorMap& key_map, int tile, int first, int last,
                                            LatentPage page) {
  constexpr int kBox = latent_key_box(Config::kBlockSize);
  const int lane = this_thread() % 32;
  const u32 to = static_cast<u32>(latent_key_tile(tile) + lane * kBox * 128);
#pragma unroll
  for (int piece = first; piece <= last; ++piece) {
    const u32 full = full_barrier(tile, piece);
    if (lane == 0) arrive_expecting(full, kLatentPieceBytes);
    if (lane < kLatentKeys / kBox) {
      const BoxAt<3> from{{piece * 64, page.slot, page.block}};
      load_box(to + static_cast<u32>(piece * kLatentPieceBytes), key_map, from, full,
               Config::kPolicy);
    }
  }
}

/// Queues the loads of all items, as fast as what they overwrite becomes free.
template <class Config, class Work>
__device__ __forceinline__ void load_items(const AttendParams& params, const Work& work,
                                           const TensorMap& query_map, const TensorMap& key_map) {
  constexpr int kRope = kLatentRopePiece;
  constexpr int kHalf = kLatentHalfPieces;
  // Parities to wait for, of the barriers of keys (bit 0) and of the query: new ones are free.
  u32 phases = kKeyPhase | kQueryPhase | kFirstItem;
  LatentCursor<Config> cursor(work.first());
#pragma unroll 1
  for (; cursor.at() < work.end(); cursor.put(cursor.at() + work.step())) {
    const LatentItem item = work.item(cursor.at());
    if (item.keys.are_none()) continue;
    const int* const table =
        params.kv.block_table + item.tile.request * params.kv.block_table_stride;
    const int end = item.keys.end;
    LatentPage even = page_of<Config>(table, item.keys.begin, end);
    LatentPage odd = page_of<Config>(table, item.keys.begin + kLatentKeys, end);
    // The first keys before the first query: they come from further away.
    if ((phases & kFirstItem) == 0) {
      load_query<Config>(params, query_map, item.tile, phases / kQueryPhase);
    }
    bool is_first = true;
#pragma unroll 1
    for (int key = item.keys.begin; key < end;) {
      key += kPairKeys;
      const LatentPage next_even = page_of<Config>(table, key, end);
      const LatentPage next_odd = page_of<Config>(table, key + kLatentKeys, end);
      await(free_barrier(0, 0), phases & kKeyPhase);
      load_pieces<Config>(key_map, 0, 0, kHalf - 1, even);
      if (is_first) {
        // Nothing is multiplied yet: tile 0 is wanted first.
        await(free_barrier(0, 1), phases & kKeyPhase);
        load_pieces<Config>(key_map, 0, kHalf, kRope, even);
        if ((phases & kFirstItem) != 0) {
          load_query<Config>(params, query_map, work.item(cursor.at()).tile, 1);
        }
        await(free_barrier(1, 1), phases & kKeyPhase);
        load_pieces<Config>(key_map, 1, kHalf, kRope - 1, odd);
      } else {
        await(free_barrier(1, 1), phases & kKeyPhase);
        load_pieces<Config>(key_map, 1, kHalf, kRope - 1, odd);
        await(free_barrier(0, 1), phases & kKeyPhase);
        load_pieces<Config>(key_map, 0, kHalf, kRope, even);
      }
      await(free_barrier(1, 0), phases & kKeyPhase);
      load_pieces<Config>(key_map, 1, 0, kHalf - 1, odd);
      load_pieces<Config>(key_map, 1, kRope, kRope, odd);
      is_first = false;
      even = next_even;
      odd = next_odd;
      phases ^= kKeyPhase;
    }
    phases = (phases ^ kQueryPhase) & ~kFirstItem;
  }
}

/// The same for few rows, where each warpgroup goes through its own tiles: by two warps, each of
/// which loads every second tile, starting with the columns that become free first.
template <class Config, class Work>
__device__ __forceinline__ void load_few_items(const AttendParams& params, const Work& work,
                                               const TensorMap& query_map, const TensorMap& key_map,
                                               int tile) {
  constexpr int kHalf = kLatentHalfPieces;
  u32 phases = kKeyPhase | kQueryPhase;
  LatentCursor<Config> cursor(work.first());
#pragma unroll 1
  for (; cursor.at() < work.end(); cursor.put(cursor.at() + work.step())) {
    const LatentItem item = work.item(cursor.at());
    if (item.keys.are_none()) continue;
    const int* const table =
        params.kv.block_table + item.tile.request * params.kv.block_table_stride;
    const int end = item.keys.end;
    LatentPage page = page_of<Config>(table, item.keys.begin + tile * kLatentKeys, end);
    bool is_first = tile == 0;
#pragma unroll 1
    for (int key = item.keys.begin + tile * kLatentKeys; key < end + tile * kLatentKeys;
         key += kPairKeys) {
      const LatentPage next = page_of<Config>(table, key + kPairKeys, end);
      await(free_barrier(tile, tile), phases & kKeyPhase);
      load_pieces<Config>(key_map, tile, tile * kHalf, tile * kHalf + kHalf - 1, page);
      // Not before the keys, which come from further away.
      if (is_first) load_query<Config>(params, query_map, item.tile, phases / kQueryPhase);
      await(free_barrier(tile, 1 - tile), phases & kKeyPhase);
      load_pieces<Config>(key_map, tile, (1 - tile) * kHalf, (2 - tile) * kHalf - 1, page);
      load_pieces<Config>(key_map, tile, kLatentRopePiece, kLatentRopePiece, page);
      is_first = false;
      page = next;
      phases ^= kKeyPhase;
    }
    phases ^= kQueryPhase;
  }
}

/// Has the lengths, and this CTA's share of the block table, brought into the L2, so that the first
/// keys wait for device memory once instead of once for each table. By one warp.
template <class Work>
__device__ __forceinline__ void fetch_tables(const AttendParams& params, const Work& work) {
  constexpr int kLine = 32;  // numbers
  constexpr int kMostLines = 64;
  const int lane = this_thread() % 32;
  const auto fetch = [&](const int* numbers, int count) {
    if (lane * kLine < count) fetch_line(numbers + lane * kLine);
  };
  fetch(params.seq_lens + params.first_request, params.num_requests);
  fetch(params.query_start_loc + params.first_request, params.num_requests + 1);
  if constexpr (requires { work.plan; }) fetch(work.plan.num_splits, params.num_requests + 1);
  const KvParams& kv = params.kv;
  const int* const table = kv.block_table + params.first_request * kv.block_table_stride;
  const i64 entries = params.num_requests * kv.block_table_stride;
  const i64 lines = (entries + kLine - 1) / kLine;
  const i64 own = (lines + num_ctas() - 1) / num_ctas();
  for (int i = lane; i < own && i < kMostLines; i += 32) {
    const i64 at = (this_cta() * own + i) * kLine;
    if (at < entries) fetch_line(table + at);
  }
}

template <class Config, class Work>
__device__ __forceinline__ void attend_latents(const AttendParams& params, const Work& work,
                                               const TensorMap& query_map,
                                               const TensorMap& key_map) {
  prepare_latent<Config>([&] {
    prefetch_map(query_map);
    prefetch_map(key_map);
    for (int i = 0; i < 2 * kLatentPieces; ++i) init_barrier(full_barrier(0, i), 1);
  });
  if constexpr (Config::kFew) {
    if (threadIdx.x >= kLatentThreads - 32) fetch_tables(params, work);
  }
  await_previous_kernel();  // which made the query
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if constexpr (Config::kFew) {
    using Run = LatentRun<Config, Work>;
    if (warpgroup == 0) {
      attend_few_items<Config, 0, Run>(params, work);
    } else if (warpgroup == 1) {
      attend_few_items<Config, 1, Run>(params, work);
    } else if (threadIdx.x < 2 * 128 + 64) {
      load_few_items<Config>(params, work, query_map, key_map,
                             static_cast<int>(threadIdx.x) / 32 % 2);
    }
  } else if (warpgroup == 2) {
    give_registers<24>();
    if (threadIdx.x < 2 * 128 + 32) load_items<Config>(params, work, query_map, key_map);
  } else {
    take_registers<240>();
    if (warpgroup == 0) {
      attend_items<Config, 0, LatentRun<Config, Work>>(params, work);
    } else {
      attend_items<Config, 1, LatentRun<Config, Work>>(params, work);
    }
  }
  allow_next_kernel();
}

/// Grid of these: any number of CTAs, one on a multiprocessor, which share out requests, splits and
/// row tiles. Shared memory: kLatentSharedBytes.
template <class Config>
__global__ void __launch_bounds__(kLatentThreads, 1)
    latent(const __grid_constant__ AttendParams params, const __grid_constant__ TensorMap query_map,
           const __grid_constant__ TensorMap key_map) {
  const LatentWhole work{{params}};
  attend_latents<Config>(params, work, query_map, key_map);
}
template <class Config>
__global__ void __launch_bounds__(kLatentThreads, 1)
    latent_splits(const __grid_constant__ AttendParams params,
                  const __grid_constant__ SplitParams split,
                  const __grid_constant__ TensorMap query_map,
                  const __grid_constant__ TensorMap key_map) {
  const LatentSplits work{{params}, split};
  attend_latents<Config>(params, work, query_map, key_map);
}

/// Grid: row tiles of the longest query * parts of the plan.
template <class Config>
__global__ void __launch_bounds__(kLatentThreads, 1)
    latent_plan(const __grid_constant__ AttendParams params,
                const __grid_constant__ PlanParams plan,
                const __grid_constant__ TensorMap query_map,
                const __grid_constant__ TensorMap key_map) {
  const LatentPlan work{{params}, plan};
  attend_latents<Config>(params, work, query_map, key_map);
}

}  // namespace attn
