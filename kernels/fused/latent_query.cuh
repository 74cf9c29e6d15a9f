// What comes before the attention of an MLA decode, in one launch: the query projected into the
// latent space, its rope part beside it, heads of zeros behind them, rounded to e4m3 where the
// attention wants codes; and the new entries of the cache (semantics §8.4, §8.7). Separately these
// are up to five kernels that each take longer to start than to move what they move.
//
// The first CTAs do a tile of the product each, as in few_rows.cuh, and those of a head's first
// columns its rope part; a tile of a head of padding has zeros. The last CTAs write entries, a warp
// for each.
//
// Config: as of few_rows.cuh, and Element kQuery (kElement or e4m3: of the joined query) · bool
// kWrites · MlaEntry kEntry (of the cache, if kWrites: kCopy, kE4M3 or kDsMla)
#pragma once

#include "kernels/cache/ds_mla.cuh"
#include "kernels/matmul/few_rows.cuh"
#include "kernels/ptx/dependents.cuh"
#include "kernels/ptx/nvfp4_block.cuh"

namespace attn {

/// Eight columns of the joined query from `column` of a head on; codes are rounded from products
/// with `factor`, 1 / q_scale.
template <class Config>
__device__ __forceinline__ void store_joined(const LatentQueryParams& p, float factor, i64 token,
                                             i64 head, i64 column,
                                             const ElementVector<Config::kElement, 8>& piece) {
  if constexpr (Config::kQuery != Config::kElement) {
    float values[8];
    decode_vector(piece, values);
    scale_by(values, factor);
    store_vector(p.quantise.codes + token * p.quantise.code_row_stride +
                     head * (p.join.first_size + p.join.second_size) + column,
                 encode_vector<Element::kE4M3>(values));
  } else {
    store_vector(static_cast<u16*>(p.join.output) + token * p.join.output_token_stride +
                     head * p.join.output_head_stride + column,
                 piece);
  }
}

/// A thread's pieces of the rope part of a head, for the rows of a tile: zeros of a head of
/// padding. Rope parts that are longer go through several of these, from piece `first` on.
template <class Config>
struct RopePieces {
  static constexpr int kThreads = FewRows<Config>::kThreads;
  static constexpr int kOwn = Config::kRows * 8 / kThreads;  // of 64 columns
  using Piece = ElementVector<Config::kElement, 8>;
  Piece pieces[kOwn];

  template <class Each>
  __device__ __forceinline__ void each(const LatentQueryParams& p, const FewRowsTile& tile,
                                       int first, const Each& each) {
    const int of_row = p.join.second_size / 8;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int index = first + i * kThreads + static_cast<int>(threadIdx.x);
      const i64 token = tile.first_row + index / of_row;
      if (index < Config::kRows * of_row && token < p.project.m) {
        each(pieces[i], token, index % of_row * 8);
      }
    }
  }
  __device__ __forceinline__ void load(const LatentQueryParams& p, const FewRowsTile& tile,
                                       int first) {
    const bool is_padding = tile.batch >= p.project.num_batches;
    each(p, tile, first, [&](Piece& piece, i64 token, int column) {
      piece = {};
      if (is_padding) return;
      piece = load_vector<Config::kElement, 8>(static_cast<const u16*>(p.join.second) +
                                               token * p.join.second_token_stride +
                                               tile.batch * p.join.second_head_stride + column);
    });
  }
  __device__ __forceinline__ void store(const LatentQueryParams& p, const FewRowsTile& tile,
                                        int first, float factor) {
    each(p, tile, first, [&](Piece& piece, i64 token, int column) {
      store_joined<Config>(p, factor, token, tile.batch, p.join.first_size + column, piece);
    });
  }
};

/// Entries of the cache, one for each warp of the CTA.
template <class Config>
__device__ __forceinline__ void write_latents(const MlaCacheWriteParams& p, i64 cta) {
  constexpr int kWarps = FewRows<Config>::kThreads / 32;
  const i64 token = cta * kWarps + threadIdx.x / 32;
  if constexpr (Config::kEntry == MlaEntry::kDsMla) {
    write_ds_mla_tokens<1, 8, 16>(p, token);
  } else {
    constexpr Element kCache =
        Config::kEntry == MlaEntry::kE4M3 ? Element::kE4M3 : Config::kElement;
    write_latent<Config::kElement, kCache, 8>(p, token);
  }
}

template <class Config>
__device__ __forceinline__ void make_latent_query(const LatentQueryParams& p,
                                                  unsigned char* memory) {
  if (p.next_waits != 0) allow_next_kernel();
  const i64 tiles = few_rows_tiles(p.project, Config::kRows, Config::kColumns) *
                    (p.join.num_heads + p.pad.num_heads);
  if constexpr (Config::kWrites) {
    if (blockIdx.x >= tiles) {
      write_latents<Config>(p.write, blockIdx.x - tiles);
      return;
    }
  }
  FewRows<Config> product(p.project, few_rows_tile<Config>(p.project, blockIdx.x), memory);
  const FewRowsTile tile = product.tile;
  const bool is_padding = tile.batch >= p.project.num_batches;
  const float scale = Config::kQuery != Config::kElement ? p.quantise.scale[0] : 1.0f;
  // What is waited for late is asked for early.
  RopePieces<Config> rope;
  const bool has_rope = tile.first_column == 0;
  if (!is_padding) product.load();
  if (has_rope) rope.load(p, tile, 0);
  if (!is_padding) product.run();
  const float factor = __fdiv_rn(1.0f, scale);
  product.each_piece([&](i64 token, i64 column, const ElementVector<Config::kElement, 8>& piece) {
    store_joined<Config>(p, factor, token, tile.batch, column,
                         is_padding ? ElementVector<Config::kElement, 8>{} : piece);
  });
  if (!has_rope) return;
  rope.store(p, tile, 0, factor);
  constexpr int kAtOnce = RopePieces<Config>::kOwn * RopePieces<Config>::kThreads;
  for (int i = kAtOnce; i < Config::kRows * p.join.second_size / 8; i += kAtOnce) {
    rope.load(p, tile, i);
    rope.store(p, tile, i, factor);
  }
}

/// Grid: tiles of all heads, those of padding too, then cdiv(num_slots, warps of a CTA) CTAs if
/// kWrites. Shared memory: few_rows_shared_bytes().
template <class Config>
__global__ void __launch_bounds__(few_rows_threads(Config::kRows, Config::kColumns))
    latent_query(const __grid_constant__ LatentQueryParams p) {
  extern __shared__ uint4 latent_query_memory[];
  make_latent_query<Config>(p, reinterpret_cast<unsigned char*>(latent_query_memory));
}

}  // namespace attn
