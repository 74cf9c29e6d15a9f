// What the kernels of latents in e4m3 share (latent_codes.cuh): numbers of query rows and columns
// of a thread, fragments of V, codes that no product may meet, rows of the output.
//
// The row of V^T that a thread has in a fragment is a column that it may choose, as long as it
// stores the output accordingly: of every key it takes codes in a row, of which columns 2 b and
// 2 b + 1 are rows lane / 4 and lane / 4 + 8 of its warp in the b-th product. So a load brings many
// codes, two keys side by side are interleaved by bytes, and eight lanes meet in no bank.
#pragma once

#include "kernels/attention/latent/latent_codes_loads.cuh"
#include "kernels/attention/latent/latent_stores.cuh"
#include "kernels/ptx/codes.cuh"
#include "kernels/ptx/element_vector.cuh"
#include "kernels/ptx/wgmma_codes.cuh"

namespace attn {

/// log2 of what weights are larger by, so that small ones, too, have a place in f16, or in e4m3
/// where they are rounded to that; what is divided by their sum has it out again.
template <class Config>
constexpr float kCodeWeightsUp = Config::kE4M3Probability ? 8.0f : 15.0f;
static_assert(kE4M3ProbabilityShift == 256.0f);  // 2^8

/// Two weights as the products read them: in f16, which holds every number of e4m3.
template <class Config>
__device__ __forceinline__ u32 pack_code_weights(float low, float high) {
  if constexpr (Config::kE4M3Probability) {
    return e4m3_pair_to_f16(static_cast<u16>(encode_pair<Element::kE4M3>(low, high)));
  } else {
    return pack<Element::kF16>(low, high);
  }
}
/// The registers of number `own` are these two, of keys (or columns) eight apart.
ATTN_FN constexpr int code_register(int own, int high) { return own / 2 * 4 + high * 2 + own % 2; }
__device__ __forceinline__ int code_row(const LatentThread& thread, int own) {
  return own / 2 * 8 + thread.column + own % 2;
}

/// Codes that a product may not meet become 0, as in clear_values() of latent_steps.cuh: rows
/// [core, live) of the tile with NaN in their values, and all rows [live, 64). By a half, all of
/// whose warps are through with the scores of the tile; ends with a barrier.
__device__ __forceinline__ void clear_codes(u32 tile, int core, int live, int half,
                                            const LatentThread& thread) {
  const auto place = [&](int row) {
    return tile + static_cast<u32>(thread.lane / 8 * kCodePieceBytes +
                                   latent_part_at(row, thread.lane % 8));
  };
#pragma unroll 1
  for (int row = core + thread.warp; row < kLatentKeys; row += 4) {
    u32 words[4];
    load_words(place(row), words);
    u32 found = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) found |= nonfinite_codes_mask<Element::kE4M3>(words[i]);
    if (row < live && !__any_sync(0xFFFFFFFFu, found != 0)) continue;
    store_words(place(row), {0, 0, 0, 0});
  }
  // The copy engine overwrites them later.
  publish_shared_writes();
  sync_threads_of(half == 0 ? kLeftHalf : kRightHalf, 128);
}

/// The part of a product's left operand that two keys side by side give, by `kWords` words of their
/// codes each: registers `first` and `first` + 1 of the fragments of 2 * kWords products.
template <int kWords>
__device__ __forceinline__ void interleave_codes(u32 (&fragments)[2 * kWords][4], int first,
                                                 const u32 (&key)[kWords],
                                                 const u32 (&next)[kWords]) {
#pragma unroll
  for (int word = 0; word < kWords; ++word) {
    const Four16 low = codes_to_f16<Element::kE4M3>(__byte_perm(key[word], next[word], 0x5140));
    const Four16 high = codes_to_f16<Element::kE4M3>(__byte_perm(key[word], next[word], 0x7362));
    fragments[2 * word][first] = low.low;
    fragments[2 * word][first + 1] = low.high;
    fragments[2 * word + 1][first] = high.low;
    fragments[2 * word + 1][first + 1] = high.high;
  }
}

/// Eight columns of a row of the output, or of a partial result.
template <class Config, class Work>
__device__ __forceinline__ void store_code_columns(const AttendParams& params, const Work& work,
                                                   const LatentItem& item, int row, int column,
                                                   const float (&of)[8]) {
  const auto store_f32 = [&](float* to) {
    *reinterpret_cast<float4*>(to) = {of[0], of[1], of[2], of[3]};
    *reinterpret_cast<float4*>(to + 4) = {of[4], of[5], of[6], of[7]};
  };
  const i64 to = token_of(item.tile, row) * params.output_token_stride +
                 head_of(item.tile, row) * params.output_head_stride + column;
  if (!item.is_whole) {
    store_f32(work.partial_output() + (item.partial_row + row) * kLatentValues + column);
  } else if constexpr (Config::kOutput == Element::kF32) {
    store_f32(static_cast<float*>(params.output) + to);
  } else {
    *reinterpret_cast<uint4*>(static_cast<u16*>(params.output) + to) = {
        pack<Config::kOutput>(of[0], of[1]), pack<Config::kOutput>(of[2], of[3]),
        pack<Config::kOutput>(of[4], of[5]), pack<Config::kOutput>(of[6], of[7])};
  }
}

}  // namespace attn
