// What becomes of the rows that a CTA of kernels/attention/general.cuh has finished: the output
// and LSE of a request, or a part of them that is combined later. The counterpart of parts.cuh, for
// rows in natural units and one element at a time, plus the parts of a decode plan.
#pragma once

#include "kernels/attention/rows.cuh"
#include "kernels/common/key_runs.cuh"
#include "kernels/params_mla.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// The state of a finished row in natural units.
struct FinishedRow {
  i64 token;
  int head;
  float maximum;
  float sum;
};

__device__ __forceinline__ float lse_of(const FinishedRow& row) {
  return row.sum == 0.0f ? kNegInf : row.maximum + logf(row.sum);
}

/// A whole request, or a token's list of slots. Each part says which keys it is about, whether its
/// values are the output itself (and not partials), and where state and values of a row go.
struct GeneralWhole {
  static constexpr bool kNormalise = true;
  int num_keys;

  __device__ bool is_output() const { return true; }
  __device__ KeyInterval keys() const { return {0, num_keys}; }
  __device__ bool with_sink() const { return true; }
  __device__ void store_state(const AttendParams& params, const FinishedRow& row) const {
    if (params.lse == nullptr) return;
    params.lse[row.head * params.lse_stride + row.token] = lse_of(row);
  }
  template <class Config>
  __device__ void store(const AttendParams& params, i64 token, int head, int column,
                        float value) const {
    const i64 at = token * params.output_token_stride + head * params.output_head_stride + column;
    const float values[1] = {value};
    store_vector(static_cast<char*>(params.output) + at * size_of(Config::kOutput),
                 encode_vector<Config::kOutput>(values));
  }
};

/// One split: normalised partial output and its LSE.
struct GeneralSplit {
  static constexpr bool kNormalise = true;
  const SplitParams& split;
  int index;
  int num_keys;

  __device__ bool is_output() const { return false; }
  __device__ KeyInterval keys() const { return keys_of_split(num_keys, split.num_splits, index); }
  __device__ bool with_sink() const { return index == 0; }
  __device__ void store_state(const AttendParams& params, const FinishedRow& row) const {
    const i64 head = static_cast<i64>(index) * params.num_heads + row.head;
    split.partial_lse[head * split.num_tokens + row.token] = lse_of(row);
  }
  template <class Config>
  __device__ void store(const AttendParams& params, i64 token, int head, int column,
                        float value) const {
    const i64 row = (index * split.num_tokens + token) * params.num_heads + head;
    split.partial_output[row * Config::kVHeadSize + column] = value;
  }
};

/// One of Triton's segments: the unnormalised state (semantics §4.3).
struct GeneralSegment {
  static constexpr bool kNormalise = false;
  const SegmentParams& segments;
  int index;
  int num_keys;

  __device__ bool is_output() const { return false; }
  __device__ KeyInterval keys() const {
    return keys_of_segment(num_keys, segments.num_segments, segments.tile, index);
  }
  __device__ bool with_sink() const { return index == 0; }
  __device__ i64 place(const AttendParams& params, i64 token, int head) const {
    return (token * params.num_heads + head) * segments.num_segments + index;
  }
  __device__ void store_state(const AttendParams& params, const FinishedRow& row) const {
    const i64 at = place(params, row.token, row.head);
    segments.segment_max[at] = row.maximum;
    segments.segment_expsum[at] = row.sum;
  }
  template <class Config>
  __device__ void store(const AttendParams& params, i64 token, int head, int column,
                        float value) const {
    segments.segment_output[place(params, token, head) * Config::kVHeadSize + column] = value;
  }
};

/// What one part of a decode plan does for one request (semantics §8.8).
struct GeneralPlanItem {
  static constexpr bool kNormalise = true;
  const PlanParams& plan;
  KeyInterval run;
  int split;
  i64 first_row;  // partial row of the request's first token in this split
  i64 first_token;
  bool is_whole;

  __device__ bool is_output() const { return is_whole; }
  __device__ KeyInterval keys() const { return run; }
  __device__ bool with_sink() const { return split == 0; }
  __device__ i64 place(const AttendParams& params, i64 token, int head) const {
    return (first_row + token - first_token) * params.num_heads + head;
  }
  __device__ void store_state(const AttendParams& params, const FinishedRow& row) const {
    if (is_whole) {
      GeneralWhole{0}.store_state(params, row);
    } else {
      plan.partial_lse[place(params, row.token, row.head)] = lse_of(row);
    }
  }
  template <class Config>
  __device__ void store(const AttendParams& params, i64 token, int head, int column,
                        float value) const {
    if (is_whole) {
      GeneralWhole{0}.template store<Config>(params, token, head, column, value);
    } else {
      plan.partial_output[place(params, token, head) * Config::kVHeadSize + column] = value;
    }
  }
};

/// Request `request` (relative) of part `part`; `num_keys` are those that the request has.
__device__ __forceinline__ GeneralPlanItem plan_item(const AttendParams& params,
                                                     const PlanParams& plan, int part, int request,
                                                     int num_keys) {
  const int* const record = plan.parts + static_cast<i64>(part) * kPlanRecord;
  const int* const starts = params.query_start_loc + params.first_request + request;
  // The first request of a part begins, its last one ends in the middle.
  const bool is_first = request == record[0];
  const bool is_last = request == record[1];
  const i64 begin = is_first ? static_cast<i64>(record[2]) * kPlanBlock : 0;
  const i64 end = is_last ? static_cast<i64>(record[3]) * kPlanBlock : num_keys;
  const int split = is_first ? record[4] : 0;
  const i64 query_len = starts[1] - starts[0];
  return {plan,
          {static_cast<int>(begin < num_keys ? begin : num_keys),
           static_cast<int>(end < num_keys ? end : num_keys)},
          split,
          plan.partial_start_loc[request] + split * query_len,
          starts[0],
          plan.num_splits[request + 1] - plan.num_splits[request] == 1};
}

}  // namespace attn
