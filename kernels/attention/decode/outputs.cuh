// The end of the decode kernel (decode.cuh): the outputs and states of the streams into shared
// memory, in the place of their rings, and from there, weighed and added up, to where the part's
// rows belong.
#pragma once

#include "kernels/attention/decode/products.cuh"
#include "kernels/attention/parts.cuh"

namespace attn {

template <class Config, class Part>
struct DecodeOutputs : DecodeProducts<Config, Part> {
  using Products = DecodeProducts<Config, Part>;
  using Products::first_row;
  using Products::kAllRows;
  using Products::kColumnBlocks;
  using Products::kStreams;
  using Products::kThreads;
  using Products::kTileM;
  using Products::kValueBlocks;
  using Products::kValueCodes;
  using Products::lane;
  using Products::output_of;
  using Products::params;
  using Products::part;
  using Products::rows;
  using Products::sinks;
  using Products::stream;
  using Products::thread;
  using Products::tile;
  using Products::tile_of;
  using Products::value_factor;
  using typename Products::Format;
  using typename Products::Output;
  using typename Products::Place;
  using typename Products::State;

  /// This warp's part of the output and state into shared memory.
  __device__ void publish(State& state, const Output& o, float2* states) {
#pragma unroll
    for (int m = 0; m < Config::kRowBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row() + m * 16 + Place::row(half);
        const float sum = sum_of_row<Place>(state.sum[m][half]);
        if (Place::key(0, 0) == 0) {
          states[stream() * kAllRows + row] = make_float2(state.base[m][half], sum);
        }
        store_columns(o[m], half, output_of(stream(), row));
      }
    }
  }

  /// One of the rows of a thread, its columns in natural order: undoes the orders of transposed
  /// products and of CodeValues.
  __device__ void store_columns(const float (&o)[kValueBlocks][4], int half, float* to) {
    if constexpr (Config::kTransposed && kValueCodes) {
#pragma unroll
      for (int n = 0; n < kValueBlocks; n += 2) {
        *reinterpret_cast<float4*>(to + n * 16 + lane / 4 * 4) = make_float4(
            o[n][half * 2], o[n][half * 2 + 1], o[n + 1][half * 2], o[n + 1][half * 2 + 1]);
      }
    } else if constexpr (Config::kTransposed) {
#pragma unroll
      for (int n = 0; n < kColumnBlocks; ++n) {
        to[n * 8 + lane / 4] = o[n / 2][half * 2 + n % 2];
      }
    } else if constexpr (kValueCodes) {
#pragma unroll
      for (int n = 0; n < kValueBlocks; n += 4) {
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          *reinterpret_cast<float4*>(to + code_column(n, i % 2)) =
              make_float4(o[n][i], o[n + 1][i], o[n + 2][i], o[n + 3][i]);
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < kValueBlocks; ++n) {
        *reinterpret_cast<float2*>(to + lane % 4 * 2 + n * 8) =
            make_float2(o[n][half * 2], o[n][half * 2 + 1]);
      }
    }
  }

  /// The state of a row over all streams, with its sink, and the factor of each stream's output.
  /// `row` counts those of all heads.
  struct StreamWeights {
    float base;
    float sum;
    float of[kStreams];
  };
  __device__ StreamWeights weigh_streams(int row, float scale, const float2* states) {
    StreamWeights weights;
    float base = kNegInf;
#pragma unroll
    for (int w = 0; w < kStreams; ++w) base = fmaxf(base, states[w * kAllRows + row].x);
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kStreams; ++w) {
      const float2 state = states[w * kAllRows + row];
      weights.of[w] = weight_of_base(state.x, base);
      sum += state.y * weights.of[w];
    }
    float factor = add_sink(sinks()[row], base, sum, weight_of_base);
    // Why the scale of the values here: once for a sum instead of once for every value.
    if constexpr (!Format::kScaled) factor *= scale;
    if constexpr (Part::kNormalise) factor = sum == 0.0f ? 0.0f : factor / sum;
#pragma unroll
    for (int w = 0; w < kStreams; ++w) weights.of[w] *= factor;
    weights.base = base;
    weights.sum = sum;
    return weights;
  }

  /// Columns of int8 values have scales of their own.
  __device__ __forceinline__ float4 scaled_columns(float4 o, int column) const {
    const float* const channels = params.int8.value_channel_scale;
    if (channels == nullptr) return o;
    const float* const at = channels + tile.kv_head * Config::kVHeadSize + column;
    return make_float4(o.x * at[0], o.y * at[1], o.z * at[2], o.w * at[3]);
  }

  /// output = sum over streams of their output * their factor, four columns a thread at a time. Why
  /// every thread weighs the streams: a barrier behind a thread for each row would cost more.
  __device__ void store(const float2* states) {
    store_head(tile, 0, value_factor, states);
#pragma unroll 1
    for (int head = 1; head < Config::kHeads; ++head) {
      const RowTile& of = tile_of(head);
      store_head(of, head * kTileM, value_scale<Config>(params, of.kv_head), states);
    }
  }
  /// The same for the rows of one head, which lie from `first` on.
  __device__ __forceinline__ void store_head(const RowTile& of, int first, float scale,
                                             const float2* states) {
    constexpr int kQuads = Config::kVHeadSize / 4;
    for (int i = thread; i < of.num_rows * kQuads; i += kThreads) {
      const int row = i / kQuads;
      const int column = i % kQuads * 4;
      const StreamWeights weights = weigh_streams(first + row, scale, states);
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
      for (int w = 0; w < kStreams; ++w) {
        const float weight = weights.of[w];
        const float4 o = *reinterpret_cast<const float4*>(output_of(w, first + row) + column);
        sum.x += o.x * weight;
        sum.y += o.y * weight;
        sum.z += o.z * weight;
        sum.w += o.w * weight;
      }
      if constexpr (Format::kInt8 && kValueCodes) sum = scaled_columns(sum, column);
      if constexpr (requires { Part::kSendsStates; }) {
        part.send_state(row, i % kQuads, weights.base, weights.sum);
      } else if (column == 0) {
        part.template store_state<Config>(params, of, row, weights.base, weights.sum,
                                          rows()[first + row]);
      }
      part.template store_values<Config>(params, of, row, column, sum);
    }
  }
};

}  // namespace attn
