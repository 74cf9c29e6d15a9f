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
#include "kernels/ptx/nvfp4_block.cuh"

namespace attn {

/// Where columns of the joined query go; those of e4m3 by q_scale.
template <class Config>
struct JoinedQuery {
  static constexpr bool kIsQuantised = Config::kQuery != Config::kElement;

  const LatentQueryParams& p;
  float factor;

  __device__ __forceinline__ explicit JoinedQuery(const LatentQueryParams& of)
      : p(of), factor(kIsQuantised ? __fdiv_rn(1.0f, of.quantise.scale[0]) : 1.0f) {}

  __device__ __forceinline__ void store(i64 token, i64 head, i64 column,
                                        const ElementVector<Config::kElement, 8>& piece) const {
    if constexpr (kIsQuantised) {
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
};

/// The rope part of a head, for the rows of a tile; of a head of padding it is 0.
template <class Config>
__device__ __forceinline__ void join_rope(const LatentQueryParams& p,
                                          const JoinedQuery<Config>& joined,
                                          const FewRowsTile& tile, bool is_padding) {
  const int pieces = p.join.second_size / 8;
  for (int i = static_cast<int>(threadIdx.x); i < Config::kRows * pieces;
       i += FewRows<Config>::kThreads) {
    const i64 token = tile.first_row + i / pieces;
    if (token >= p.project.m) break;
    const int column = i % pieces * 8;
    ElementVector<Config::kElement, 8> piece{};
    if (!is_padding) {
      piece = load_vector<Config::kElement, 8>(static_cast<const u16*>(p.join.second) +
                                               token * p.join.second_token_stride +
                                               tile.batch * p.join.second_head_stride + column);
    }
    joined.store(token, tile.batch, p.join.first_size + column, piece);
  }
}

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
  allow_next_kernel();
  const i64 tiles = few_rows_tiles(p.project, Config::kRows, Config::kColumns) * p.padded_heads;
  if constexpr (Config::kWrites) {
    if (blockIdx.x >= tiles) {
      write_latents<Config>(p.write, blockIdx.x - tiles);
      return;
    }
  }
  FewRows<Config> product{p.project, few_rows_tile<Config>(p.project, blockIdx.x), memory, {}};
  const JoinedQuery<Config> joined(p);
  const FewRowsTile tile = product.tile;
  const bool is_padding = tile.batch >= p.project.num_batches;
  // Before the rope part, whose loads are waited for.
  if (!is_padding) product.load();
  if (tile.first_column == 0) join_rope<Config>(p, joined, tile, is_padding);
  if (!is_padding) product.run();
  product.each_piece([&](i64 token, i64 column, const ElementVector<Config::kElement, 8>& piece) {
    joined.store(token, tile.batch, column,
                 is_padding ? ElementVector<Config::kElement, 8>{} : piece);
  });
}

/// Grid: tiles of padded_heads products, then cdiv(num_slots, warps of a CTA) CTAs if kWrites.
/// Shared memory: few_rows_shared_bytes().
template <class Config>
__global__ void __launch_bounds__(few_rows_threads(Config::kRows, Config::kColumns))
    latent_query(const __grid_constant__ LatentQueryParams p) {
  extern __shared__ uint4 latent_query_memory[];
  make_latent_query<Config>(p, reinterpret_cast<unsigned char*>(latent_query_memory));
}

}  // namespace attn
