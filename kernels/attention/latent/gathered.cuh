// The products of latent_products.cuh over keys that threads bring into shared memory instead of
// the copy engine: entries at listed slots of the cache (semantics §8.9), and entries of one-byte
// codes, which become 16-bit numbers on the way. Scores, softmax and weights are those of
// hopper_latent, by the same two warpgroups; the third one gathers (gathered_loads.cuh).
//
// A list may have holes (-1 and slots past the cache), doubles, and lengths of its own. Holes and
// what lies behind the end of a list are keys of zeros in shared memory, and the warps that gather
// note which keys there are: scores of the others become -inf.
//
// Config: kElement (of the products: bf16 or f16), kQuery (as stored: that, or e4m3, which f16
// holds), kOutput, kFormat (MlaEntry: kCopy, kE4M3 or kDsMla), kListed (by lists, or by a block
// table), kRounded (codes of kE4M3 are multiplied by their scale and rounded, semantics §4.4 mode
// 1; else scores and output are multiplied), kQueryBox (latent_query_box(), or 0: threads copy the
// query), kByPieces (copied pieces have a barrier each), kFences (copies are made visible to the
// products, as PTX asks for), kFew (of up to 16 query rows: latent_few.cuh), kPaired (of
// codes: the CTAs of a cluster of two have rows of the same token, and each converts a tile of a
// pair for both)
#pragma once

#include "kernels/attention/latent/gathered_loads.cuh"
#include "kernels/attention/latent/latent_few.cuh"

namespace attn {

/// Registers of a thread that gathers, and of one that multiplies: 504 in all three warpgroups.
/// Copies take few of them, conversions hold what is under way. What the others give up for that
/// is the part of the query that hopper_latent keeps in registers.
template <class Config>
struct GatheredRegisters {
  static constexpr bool kCopies = is_copied(Config::kFormat);
  static constexpr int kGather = Config::kFew ? 168 : (kCopies ? 56 : 88);
  static constexpr int kMultiply = Config::kFew ? 168 : (kCopies ? 224 : 208);
};

/// What a thread knows of an item, as LatentRun.
template <class Config, class Work>
struct GatheredRun : LatentRun<Config, Work> {
  static constexpr int kHeldPieces = is_copied(Config::kFormat) ? 1 : 0;
  static constexpr bool kHasScale = Config::kFormat == MlaEntry::kE4M3 && !Config::kRounded;

  __device__ float factor() const {
    const float* const scale = kHasScale ? this->params.kv.k_scale : nullptr;
    return LatentRun<Config, Work>::factor() * (scale == nullptr ? 1.0f : scale[0]);
  }
};

template <class Config, class Work>
__device__ __forceinline__ void await_piece(const GatheredRun<Config, Work>&, int tile, int piece,
                                            u32 parity) {
  if (!has_barrier(Config::kByPieces, piece)) return;
  await(of_cta<Config>(full_barrier(tile, piece)), parity);
  // Copies of threads (cp.async) and what the other CTA sends are ordinary writes, which products
  // see behind this only.
  constexpr bool kHasCopies = Config::kFormat != MlaEntry::kE4M3 || Config::kPaired;
  if constexpr (kHasCopies && Config::kFences) publish_shared_writes();
}

template <class Config, class Work>
__device__ __forceinline__ void release_keys(const GatheredRun<Config, Work>& run, int tile,
                                             int half) {
  release(of_cta<Config>(free_barrier(tile, half)), run.thread);
  if constexpr (Config::kPaired) {
    if (tile == paired_rank() || run.thread.lane != 0) return;
    arrive_remote(in_peer(free_barrier(tile, half)));
  }
}

/// Of listed keys, the scores of those that are none; others as LatentRun says.
template <int kTile, class Config, class Work>
__device__ __forceinline__ void mask_tile(float (&scores)[32], const GatheredRun<Config, Work>& run,
                                          int first_key) {
  if constexpr (Config::kListed) {
#pragma unroll
    for (int warp = 0; warp < kGatherWarps; ++warp) {
      const u32 seen = load_word(of_cta<Config>(static_cast<u32>(gathered_seen_at(kTile, warp))));
      if (seen == kAllSeen) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int key = i / 4 * 8 + run.thread.column + i % 2;  // of the warp's
        // Registers 0 and 1 of a block of columns are of the low row, 2 and 3 of the high one.
        if ((seen >> key & 1) == 0) scores[(warp * 2 + i / 4) * 4 + i % 4] = kNegInf;
      }
    }
  } else {
    mask_tile<kTile>(scores, static_cast<const LatentRun<Config, Work>&>(run), first_key);
  }
}

/// The same for few rows.
template <int kTile, class Config, class Work>
__device__ __forceinline__ void mask_few(float (&scores)[8], const GatheredRun<Config, Work>& run,
                                         int first_key) {
  if constexpr (Config::kListed) {
    const LatentThread& thread = run.thread;
    const u32 seen = load_word(static_cast<u32>(gathered_seen_at(kTile, thread.warp)));
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const bool is_key = (seen >> (few_key(thread) % 16 + high * 8) & 1) != 0;
#pragma unroll
      for (int own = 0; own < kFewOwn; ++own) {
        float& score = scores[few_register(own, high)];
        score = is_key ? score : kNegInf;
      }
    }
  } else {
    mask_few<kTile>(scores, static_cast<const LatentRun<Config, Work>&>(run), first_key);
  }
}

/// The query of a tile; codes as numbers of 16 bits, 16 at a time.
template <class Config, class Work>
__device__ __forceinline__ void fetch_query(const GatheredRun<Config, Work>& run,
                                            const RowTile& tile) {
  if constexpr (Config::kQuery == Config::kElement) {
    copy_query<Config>(run.params, tile);
  } else {
    constexpr int kVectors = (kLatentValues + kLatentRope) / 16;  // of a row
    const AttendParams& params = run.params;
    const char* const query = static_cast<const char*>(params.query);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < tile.num_rows * kVectors; i += 256) {
      const int row = i / kVectors;
      const int vector = i % kVectors;
      const uint4 codes = *reinterpret_cast<const uint4*>(
          query + token_of(tile, row) * params.query_token_stride +
          head_of(tile, row) * params.query_head_stride + vector * 16);
      const u32 of[4] = {codes.x, codes.y, codes.z, codes.w};
      u32 words[2][4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const Four16 four = decode_codes<Config::kQuery, Config::kElement, false>(of[w], 1.0f);
        words[w / 2][w % 2 * 2] = four.low;
        words[w / 2][w % 2 * 2 + 1] = four.high;
      }
      const u32 piece =
          of_cta<Config>(kLatentQueryAt) + static_cast<u32>(vector / 4 * kLatentPieceBytes);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int part = vector % 4 * 2 + half;
        store_words(piece + static_cast<u32>(latent_part_at(row, part)), words[half]);
      }
    }
  }
}

template <class Config, class Work>
__device__ __forceinline__ float value_scale(const GatheredRun<Config, Work>& run) {
  if constexpr (!GatheredRun<Config, Work>::kHasScale) return 1.0f;
  const KvParams& kv = run.params.kv;
  const float* const scale = Config::kListed ? kv.k_scale : kv.v_scale;
  return scale == nullptr ? 1.0f : scale[0];
}

/// The barriers of pieces, by one thread: of every piece, or of every half.
template <class Config>
__device__ __forceinline__ void init_gathered_barriers() {
  for (int tile = 0; tile < 2; ++tile) {
    for (int piece = 0; piece < kLatentPieces; ++piece) {
      if (!has_barrier(Config::kByPieces, piece)) continue;
      int arrivals = gathered_arrivals(Config::kFormat, tile, piece);
      if (Config::kPaired && tile != paired_rank()) {
        arrivals = received_arrivals(Config::kFormat, tile, piece);
      }
      init_barrier(of_cta<Config>(full_barrier(tile, piece)), static_cast<u32>(arrivals));
    }
  }
}

template <class Config, class Keys, class Work>
__device__ __forceinline__ void attend_gathered(const AttendParams& params,
                                                const SparseParams& sparse, const Work& work,
                                                const TensorMap& query_map) {
  static_assert(!(Config::kPaired && Config::kFew), "latent_few.cuh names no CTA");
  using Registers = GatheredRegisters<Config>;
  prepare_latent<Config>(
      [&] {
        if constexpr (Config::kQueryBox != 0) prefetch_map(query_map);
        init_gathered_barriers<Config>();
      },
      [](int tile) {
        return Config::kPaired && tile == paired_rank() ? 2 * kWarpsOfHalf : kWarpsOfHalf;
      });
  await_previous_kernel();  // which made the query
  if constexpr (Config::kPaired) sync_cluster();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 2) {
    give_registers<Registers::kGather>();
    gather_items<Config, Keys>(params, sparse, work, query_map);
  } else {
    take_registers<Registers::kMultiply>();
    using Run = GatheredRun<Config, Work>;
    if constexpr (Config::kFew) {
      if (warpgroup == 0) {
        attend_few_items<Config, 0, Run>(params, work);
      } else {
        attend_few_items<Config, 1, Run>(params, work);
      }
    } else if (warpgroup == 0) {
      attend_items<Config, 0, Run>(params, work);
    } else {
      attend_items<Config, 1, Run>(params, work);
    }
  }
  // Nobody leaves while the other one still sends, or frees what it was sent.
  if constexpr (Config::kPaired) sync_cluster();
  allow_next_kernel();
}

/// Grids as those of latent.cuh; in pairs, clusters of two CTAs, and an even number of row tiles.
/// Shared memory: kGatheredSharedBytes.
template <class Config>
__global__ void __launch_bounds__(kLatentThreads, 1)
    gathered(const __grid_constant__ AttendParams params,
             const __grid_constant__ TensorMap query_map) {
  const LatentWhole work{{params}};
  attend_gathered<Config, PagedKeys>(params, SparseParams{}, work, query_map);
}
template <class Config>
__global__ void __launch_bounds__(kLatentThreads, 1)
    gathered_splits(const __grid_constant__ AttendParams params,
                    const __grid_constant__ SplitParams split,
                    const __grid_constant__ TensorMap query_map) {
  const LatentSplits work{{params}, split};
  attend_gathered<Config, PagedKeys>(params, SparseParams{}, work, query_map);
}
template <class Config>
__global__ void __launch_bounds__(kLatentThreads, 1)
    gathered_plan(const __grid_constant__ AttendParams params,
                  const __grid_constant__ PlanParams plan,
                  const __grid_constant__ TensorMap query_map) {
  const LatentPlan work{{params}, plan};
  attend_gathered<Config, PagedKeys>(params, SparseParams{}, work, query_map);
}
template <class Config>
__global__ void __launch_bounds__(kLatentThreads, 1)
    gathered_sparse(const __grid_constant__ AttendParams params,
                    const __grid_constant__ SparseParams sparse,
                    const __grid_constant__ TensorMap query_map) {
  const ListedWhole work{{params, sparse}};
  attend_gathered<Config, ListedKeys>(params, sparse, work, query_map);
}
template <class Config>
__global__ void __launch_bounds__(kLatentThreads, 1)
    gathered_sparse_plan(const __grid_constant__ AttendParams params,
                         const __grid_constant__ SparseParams sparse,
                         const __grid_constant__ PlanParams plan,
                         const __grid_constant__ TensorMap query_map) {
  const ListedPlan work{{params, sparse}, plan};
  attend_gathered<Config, ListedKeys>(params, sparse, work, query_map);
}

}  // namespace attn
