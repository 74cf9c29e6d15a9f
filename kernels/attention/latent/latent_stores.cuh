// What latent.cuh leaves behind for an item: output and LSE of its rows, or a partial result.
#pragma once

#include "kernels/attention/latent/latent_parts.cuh"
#include "kernels/attention/latent/latent_steps.cuh"

namespace attn {

/// A thread's pairs of columns of two rows in float32, 8 columns apart, times `factor`. `low` and
/// `high` point to the first pair of either row; a row that does not exist is not stored.
__device__ __forceinline__ void store_pairs(float* low, bool has_low, float* high, bool has_high,
                                            const float (&output)[128], RowPair factor) {
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    const float2 first{output[4 * j] * factor.low, output[4 * j + 1] * factor.low};
    const float2 second{output[4 * j + 2] * factor.high, output[4 * j + 3] * factor.high};
    if (has_low) *reinterpret_cast<float2*>(low + 8 * j) = first;
    if (has_high) *reinterpret_cast<float2*>(high + 8 * j) = second;
  }
}

/// Output of a thread's rows, 256 columns from `first_column` on, times `factor`.
template <class Config>
__device__ __forceinline__ void store_output(const AttendParams& params, const RowTile& tile,
                                             const LatentThread& thread, int first_column,
                                             const float (&output)[128], RowPair factor) {
  const bool has_low = thread.row < tile.num_rows;
  const bool has_high = thread.row + 8 < tile.num_rows;
  const auto place = [&](int row) {
    return token_of(tile, row) * params.output_token_stride +
           head_of(tile, row) * params.output_head_stride + first_column;
  };
  if constexpr (Config::kOutput == Element::kF32) {
    float* const low = static_cast<float*>(params.output) + place(thread.row) + thread.column;
    float* const high = static_cast<float*>(params.output) + place(thread.row + 8) + thread.column;
    store_pairs(low, has_low, high, has_high, output, factor);
  } else {
    const int part = thread.column * 4;  // 8 columns of every 32
    u16* const low = static_cast<u16*>(params.output) + place(thread.row) + part;
    u16* const high = static_cast<u16*>(params.output) + place(thread.row + 8) + part;
#pragma unroll
    for (int group = 0; group < 8; ++group) {
      u32 first[4];
      u32 second[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float* const o = output + 16 * group + 4 * k;
        first[k] = pack<Config::kOutput>(o[0] * factor.low, o[1] * factor.low);
        second[k] = pack<Config::kOutput>(o[2] * factor.high, o[3] * factor.high);
      }
      transpose_quad(first);
      transpose_quad(second);
      if (has_low) {
        *reinterpret_cast<uint4*>(low + 32 * group) = {first[0], first[1], first[2], first[3]};
      }
      if (has_high) {
        *reinterpret_cast<uint4*>(high + 32 * group) = {second[0], second[1], second[2], second[3]};
      }
    }
  }
}

/// The same as a partial result.
__device__ __forceinline__ void store_partial(float* partial_output, const LatentItem& item,
                                              const LatentThread& thread, int first_column,
                                              const float (&output)[128], RowPair factor) {
  float* const low = partial_output + (item.partial_row + thread.row) * kLatentValues +
                     first_column + thread.column;
  float* const high = low + 8 * kLatentValues;
  const bool has_low = thread.row < item.tile.num_rows;
  const bool has_high = thread.row + 8 < item.tile.num_rows;
  store_pairs(low, has_low, high, has_high, output, factor);
}

/// Sums of the weights of a row, of both halves.
template <class Config>
__device__ __forceinline__ RowPair total_of(RowPair sum, int half, const LatentThread& thread) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    sum.low += __shfl_xor_sync(0xFFFFFFFFu, sum.low, step);
    sum.high += __shfl_xor_sync(0xFFFFFFFFu, sum.high, step);
  }
  const u32 sums = of_cta<Config>(kLatentSumAt);
  store_rows(sums + static_cast<u32>(half * kLatentRows * 4), thread, sum);
  sync_threads_of(kBothHalves, 256);
  const RowPair left = load_rows(sums, thread);
  const RowPair right = load_rows(sums + kLatentRows * 4, thread);
  sync_threads_of(kBothHalves, 256);
  return {left.low + right.low, left.high + right.high};
}

/// LSE of a row, natural units.
__device__ __forceinline__ float latent_lse(float maximum, float total) {
  return total == 0.0f ? kNegInf : (maximum + log2_fast(total)) * kLn2;
}
__device__ __forceinline__ float inverse_or_zero(float total) {
  return total == 0.0f ? 0.0f : reciprocal_fast(total);
}

/// Output and LSE of an item, or its partial result.
template <class Config, class Work>
__device__ __forceinline__ void store_item(const AttendParams& params, const Work& work,
                                           const LatentItem& item, const LatentThread& thread,
                                           int half, const float (&output)[128], RowPair maximum,
                                           RowPair total) {
  const RowPair factor{inverse_or_zero(total.low), inverse_or_zero(total.high)};
  const int first_column = half * kLatentValues / 2;
  if (item.is_whole) {
    store_output<Config>(params, item.tile, thread, first_column, output, factor);
  } else {
    store_partial(work.partial_output(), item, thread, first_column, output, factor);
  }
  if (half != 0 || thread.lane % 4 != 0) return;
  const auto store = [&](int row, float lse) {
    if (row >= item.tile.num_rows) return;
    if (item.is_whole) {
      store_lse(params, item.tile, row, lse);
    } else {
      work.store_partial_lse(item, row, lse);
    }
  };
  store(thread.row, latent_lse(maximum.low, total.low));
  store(thread.row + 8, latent_lse(maximum.high, total.high));
}

}  // namespace attn
