// What part of a request's keys a CTA works on, and what becomes of its rows: the whole request,
// one split of split-KV decoding, or one of Triton's segments. The decode and f32 kernels are
// templates over a Part, one of the three structs below, which has
//   run(seq_len)   the keys [begin, end) to work on;
//   with_sink()    whether a row's sink belongs to this part: to exactly one of a request;
//   kNormalise     whether the kernel divides outputs by the sum of the weights before it stores;
//   store_state()  takes base (log2 units) and sum of a row, the sink included;
//   store_values() and store_value() take four columns, or one, of a row.
// A part of the decode kernel may have more (ClusterSplit, decode/forms.cuh):
//   kSharers       CTAs that take turns at its keys, place() this one's number among them;
//   begin_store()  by all threads, before the first row is stored;
//   kSendsStates   send_state() takes base and sum of a row in the place of store_state(), from
//                  every thread that has columns of it.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/common/key_runs.cuh"

namespace attn {

/// Place of a CTA in a grid of x = requests * parts * row tiles * KV heads, the head fastest, or of
/// groups of `group` KV heads; kv_head is the first one of the CTA.
struct GridPlace {
  int request;
  int part;
  int row_tile;
  int kv_head;
};
__device__ __forceinline__ GridPlace grid_place(const AttendParams& params, int parts,
                                                int group = 1) {
  const auto heads = static_cast<unsigned>(params.num_kv_heads / group);
  const unsigned rest = blockIdx.x / heads;
  const unsigned tiles =
      gridDim.x / heads / static_cast<unsigned>(params.num_requests) / static_cast<unsigned>(parts);
  GridPlace place;
  place.kv_head = static_cast<int>(blockIdx.x % heads) * group;
  place.row_tile = static_cast<int>(rest % tiles);
  place.part = static_cast<int>(rest / tiles % static_cast<unsigned>(parts));
  place.request =
      params.first_request + static_cast<int>(rest / tiles / static_cast<unsigned>(parts));
  return place;
}

/// Where four columns of a row of a whole request belong, and how.
struct OutputPlace {
  i64 at;
  float factor;  // output_factor()
  bool pairs;    // pairs_aligned()
};
__device__ __forceinline__ OutputPlace output_place(const AttendParams& params, const RowTile& tile,
                                                    int row, int column) {
  const PackedRow of = unpack_row(tile, row);
  return {(tile.first_token + of.token) * params.output_token_stride +
              (tile.kv_head * tile.group + of.head) * params.output_head_stride + column,
          output_factor(params), pairs_aligned(params)};
}
/// `o` is times to.factor already.
template <class Config>
__device__ __forceinline__ void store_quad(const AttendParams& params, const OutputPlace& to,
                                           float4 o) {
  store_pair<Config::kOutput>(params.output, to.at, o.x, o.y, to.pairs);
  store_pair<Config::kOutput>(params.output, to.at + 2, o.z, o.w, to.pairs);
}

/// What becomes of the rows of a whole request: output and LSE.
struct WholeRequest {
  static constexpr bool kNormalise = true;

  __device__ KeyInterval run(int seq_len) const { return {0, seq_len}; }
  __device__ bool with_sink() const { return true; }
  template <class Config>
  __device__ void store_state(const AttendParams& params, const RowTile& tile, int row, float base,
                              float sum, const Row& info) const {
    store_lse(params, tile, row, row_lse<Config>(base, sum, info, tile.context_len));
  }
  template <class Config>
  __device__ void store_values(const AttendParams& params, const RowTile& tile, int row, int column,
                               float4 o) const {
    const OutputPlace to = output_place(params, tile, row, column);
    const float4 scaled =
        make_float4(o.x * to.factor, o.y * to.factor, o.z * to.factor, o.w * to.factor);
    store_quad<Config>(params, to, scaled);
  }
  template <class Config>
  __device__ void store_value(const AttendParams& params, const RowTile& tile, int row, int column,
                              float o) const {
    const i64 at = token_of(tile, row) * params.output_token_stride +
                   head_of(tile, row) * params.output_head_stride + column;
    store_one<Config::kOutput>(params.output, at, o * output_factor(params));
  }
};

/// One split: normalised partial output and its LSE, which combine_splits() puts together. Rows of
/// a split without visible keys are stored too, as 0 with LSE -inf: nobody clears the partials
/// before.
struct OneSplit {
  static constexpr bool kNormalise = true;
  const SplitParams& split;
  int index;

  __device__ KeyInterval run(int seq_len) const {
    return keys_of_split(seq_len, split.num_splits, index);
  }
  __device__ bool with_sink() const { return index == 0; }
  template <class Config>
  __device__ void store_state(const AttendParams& params, const RowTile& tile, int row, float base,
                              float sum, const Row& info) const {
    const i64 head = static_cast<i64>(index) * params.num_heads + head_of(tile, row);
    split.partial_lse[head * split.num_tokens + token_of(tile, row)] =
        row_lse<Config>(base, sum, info, tile.context_len);
  }
  template <class Config>
  __device__ void store_values(const AttendParams& params, const RowTile& tile, int row, int column,
                               float4 o) const {
    *reinterpret_cast<float4*>(at<Config>(params, tile, row) + column) = o;
  }
  template <class Config>
  __device__ void store_value(const AttendParams& params, const RowTile& tile, int row, int column,
                              float o) const {
    at<Config>(params, tile, row)[column] = o;
  }
  template <class Config>
  __device__ float* at(const AttendParams& params, const RowTile& tile, int row) const {
    const i64 token = index * split.num_tokens + token_of(tile, row);
    return split.partial_output +
           (token * params.num_heads + head_of(tile, row)) * Config::kVHeadSize;
  }
};

/// One of Triton's segments: the unnormalised state (semantics §4.3), for reduce_segments(). The
/// maximum is the kernel's base, which may lie below the largest score by its slack; sum and output
/// belong to it, so the reduced result is the same.
struct OneSegment {
  static constexpr bool kNormalise = false;
  const SegmentParams& segments;
  int index;

  __device__ KeyInterval run(int seq_len) const {
    return keys_of_segment(seq_len, segments.num_segments, segments.tile, index);
  }
  __device__ bool with_sink() const { return index == 0; }
  __device__ i64 place(const AttendParams& params, const RowTile& tile, int row) const {
    const i64 head = static_cast<i64>(token_of(tile, row)) * params.num_heads + head_of(tile, row);
    return head * segments.num_segments + index;
  }
  template <class Config>
  __device__ void store_state(const AttendParams& params, const RowTile& tile, int row, float base,
                              float sum, const Row& info) const {
    const i64 at = place(params, tile, row);
    segments.segment_max[at] =
        base * kLn2 + alibi_row_constant(Config::kAlibi, info, tile.context_len);
    segments.segment_expsum[at] = sum;
  }
  template <class Config>
  __device__ void store_values(const AttendParams& params, const RowTile& tile, int row, int column,
                               float4 o) const {
    const i64 at = place(params, tile, row) * Config::kVHeadSize + column;
    *reinterpret_cast<float4*>(segments.segment_output + at) = o;
  }
  template <class Config>
  __device__ void store_value(const AttendParams& params, const RowTile& tile, int row, int column,
                              float o) const {
    const i64 at = place(params, tile, row) * Config::kVHeadSize + column;
    segments.segment_output[at] = o;
  }
};

}  // namespace attn
