// What latent_codes.cuh and latent_codes_wide.cuh load: keys by the copy engine, as codes, into a
// ring of stages with a barrier for what has come and one for what may be overwritten; queries by
// threads.
#pragma once

#include "kernels/attention/latent/latent_codes_layout.cuh"
#include "kernels/attention/latent/latent_parts.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"

namespace attn {

/// Place of a tile in the ring of stages, by its number among those of a CTA.
template <int kRows>
struct CodesStage {
  u32 tile;
  u32 full;
  u32 free;
  u32 parity;  // of its use

  __device__ explicit CodesStage(u32 number) {
    using Places = CodesPlaces<kRows>;
    const u32 stage = number % Places::kStages;
    tile = Places::kKeysAt + stage * kCodeTileBytes;
    full = Places::kFullAt + stage * 8;
    free = Places::kFreeAt + stage * 8;
    parity = number / Places::kStages & 1;
  }
};
__device__ __forceinline__ u32 code_tiles(const LatentKeys& keys) {
  return keys.are_none() ? 0
                         : static_cast<u32>(keys.end - keys.begin + kLatentKeys - 1) / kLatentKeys;
}

/// Queues the loads of all items, as fast as stages become free. By one warp.
template <class Config, class Work>
__device__ __forceinline__ void load_codes_of(const AttendParams& params, const Work& work,
                                              const TensorMap& key_map) {
  constexpr int kBox = latent_key_box(Config::kBlockSize);
  const int lane = this_thread() % 32;
  u32 number = 0;
#pragma unroll 1
  for (int at = work.first(); at < work.end(); at += work.step()) {
    const LatentItem item = work.item(at);
    if (item.keys.are_none()) continue;
    const int* const table =
        params.kv.block_table + item.tile.request * params.kv.block_table_stride;
    const int end = item.keys.end;
    LatentPage page = page_of<Config>(table, item.keys.begin, end);
#pragma unroll 1
    for (int key = item.keys.begin; key < end; key += kLatentKeys) {
      const LatentPage next = page_of<Config>(table, key + kLatentKeys, end);
      const CodesStage<Config::kRows> stage(number);
      await(stage.free, stage.parity ^ 1);
      if (lane == 0) arrive_expecting(stage.full, kCodeTileBytes);
      if (lane < kLatentKeys / kBox) {
        const u32 to = stage.tile + static_cast<u32>(lane * kBox * 128);
#pragma unroll
        for (int piece = 0; piece < kCodePieces; ++piece) {
          load_box(to + static_cast<u32>(piece * kCodePieceBytes), key_map,
                   BoxAt<3>{{piece * 128, page.slot, page.block}}, stage.full, kEvictFirst);
        }
      }
      page = next;
      ++number;
    }
  }
}

/// The query of an item; rows that there are not become 0. By both halves.
template <class Config>
__device__ __forceinline__ void fetch_codes_query(const AttendParams& params, const RowTile& tile) {
  using Places = CodesPlaces<Config::kRows>;
  constexpr int kVectors = kCodeEntry / 16;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < Config::kRows * kVectors; i += 256) {
    const int row = i / kVectors;
    const int vector = i % kVectors;
    uint4 codes{0, 0, 0, 0};
    if (row < tile.num_rows) {
      codes = *reinterpret_cast<const uint4*>(
          static_cast<const char*>(params.query) + token_of(tile, row) * params.query_token_stride +
          head_of(tile, row) * params.query_head_stride + vector * 16);
    }
    const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
    store_words(static_cast<u32>(Places::kQueryAt + vector / 8 * Places::kQueryPiece +
                                 latent_part_at(row, vector % 8)),
                words);
  }
  __syncwarp();
}

/// By all threads, before any other use of shared memory; so many warps read each tile.
template <class Config>
__device__ __forceinline__ void prepare_codes(const TensorMap& key_map, u32 readers) {
  using Places = CodesPlaces<Config::kRows>;
  check_shared_base(kLatentBase);
  if (threadIdx.x == 0) {
    prefetch_map(key_map);
    for (int stage = 0; stage < Places::kStages; ++stage) {
      init_barrier(static_cast<u32>(Places::kFullAt + stage * 8), 1);
      init_barrier(static_cast<u32>(Places::kFreeAt + stage * 8), readers);
    }
    publish_barriers();
  }
  __syncthreads();
}

}  // namespace attn
