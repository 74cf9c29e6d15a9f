// More ways of sharing out the keys of a decode than decode.cuh's own entries have, all by its
// loop:
//   decode_joined   splits in device memory, put together by the last of their CTAs to finish;
//   decode_cluster  splits as the CTAs of a cluster, put together through their shared memory;
//   decode_plan     the parts of a plan (semantics §8.8), one after another, each a run of blocks.
// Why the first two: the launch that combines splits costs a few microseconds, a third of what a
// short request takes. Which rows come out does not depend on who comes last: sums go by the number
// of the split, so that the bytes are the same in every run.
//
// Config: decode.cuh's; decode_cluster's has kParts, the CTAs of a cluster, too.
#pragma once

#include "kernels/attention/decode/decode.cuh"
#include "kernels/attention/join.cuh"
#include "kernels/params_mla.h"
#include "kernels/ptx/cluster.cuh"

namespace attn {

/// Grid: as decode_splits'. The counter of a tile is at ((request * KV heads) + KV head) * row
/// tiles + row tile; split.arrivals has room for tiles of kArrivalRows.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    decode_joined(const __grid_constant__ AttendParams params,
                  const __grid_constant__ SplitParams split) {
  extern __shared__ DecodeMemory decode_memory[];
  using Work = Decode<Config, OneSplit>;
  __shared__ RowTile tile;
  __shared__ float2 states[Work::kStreams * Work::kTileM];
  __shared__ int is_last;
  const GridPlace place = grid_place(params, split.num_splits);
  const RowTile mine =
      row_tile(params, place.request, place.kv_head, place.row_tile * Work::kTileM, Work::kTileM);
  if (mine.num_rows <= 0) return;
  if (threadIdx.x == 0) tile = mine;
  __syncthreads();
  const OneSplit part{split, place.part};
  auto* const memory = reinterpret_cast<unsigned char*>(decode_memory);
  decode_work<Config>(params, part, memory, tile, tile).run(states);
  __syncthreads();  // all of this split's rows are stored
  if (threadIdx.x == 0) {
    const int tiles = static_cast<int>(gridDim.x) /
                      (params.num_kv_heads * params.num_requests * split.num_splits);
    const int index = (place.request - params.first_request) * params.num_kv_heads + place.kv_head;
    is_last = is_last_arrival(split.arrivals + index * tiles + place.row_tile, split.num_splits);
  }
  __syncthreads();
  if (is_last == 0) return;
  join_splits<Config>(params, split, tile, reinterpret_cast<float*>(memory + Work::kLayout.rings));
}

/// One CTA of a cluster: its rows stay in its shared memory, in the place of the first stream's.
/// Outputs are not normalised, but belong to `states`.
struct ClusterSplit {
  static constexpr bool kNormalise = false;
  int num_splits;
  int index;
  float2* states;          // base and sum of each row
  unsigned char* outputs;  // of the rows
  int output_pitch;        // bytes

  __device__ KeyInterval run(int seq_len) const {
    return keys_of_split(seq_len, num_splits, index);
  }
  __device__ bool with_sink() const { return index == 0; }
  template <class Config>
  __device__ void store_state(const AttendParams&, const RowTile&, int row, float base, float sum,
                              const Row&) const {
    states[row] = make_float2(base, sum);
  }
  template <class Config>
  __device__ void store_values(const AttendParams&, const RowTile&, int row, int column,
                               float4 o) const {
    *reinterpret_cast<float4*>(outputs + row * output_pitch + column * 4) = o;
  }
};

/// Grid: x = (request, row tile, KV head, split), the split fastest: the splits of a row tile are a
/// cluster. A row tile past a request's rows is so for its whole cluster.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    decode_cluster(const __grid_constant__ AttendParams params) {
  extern __shared__ DecodeMemory decode_memory[];
  using Work = Decode<Config, ClusterSplit>;
  __shared__ RowTile tile;
  __shared__ float2 states[Work::kStreams * Work::kTileM];
  const auto heads = static_cast<unsigned>(params.num_kv_heads);
  const unsigned index = blockIdx.x / Config::kParts;
  const unsigned tiles = gridDim.x / Config::kParts / heads / params.num_requests;
  const RowTile mine =
      row_tile(params, params.first_request + static_cast<int>(index / heads / tiles),
               static_cast<int>(index % heads),
               static_cast<int>(index / heads % tiles) * Work::kTileM, Work::kTileM);
  if (mine.num_rows <= 0) return;
  if (threadIdx.x == 0) tile = mine;
  __syncthreads();
  auto* const memory = reinterpret_cast<unsigned char*>(decode_memory);
  const int rank = static_cast<int>(blockIdx.x % Config::kParts);
  const ClusterSplit part{Config::kParts, rank, states, memory + Work::kLayout.rings,
                          Work::kLayout.output_pitch};
  auto work = decode_work<Config>(params, part, memory, tile, tile);
  work.run(states);
  sync_cluster();
  join_cluster<Config, Config::kParts>(params, tile, rank, work.rows(), shared_address(states),
                                       shared_address(part.outputs), part.output_pitch);
  sync_cluster();  // nobody leaves while others read its rows
}

/// A run of blocks of one request, one of its splits by a plan: output and LSE where it is the only
/// one, else a partial result for combine_plan().
struct PlannedSplit {
  static constexpr bool kNormalise = true;
  const PlanParams& plan;
  int index;  // of the request, from first_request on
  int split;
  int num_splits;
  KeyInterval keys;
  int query_len;

  __device__ KeyInterval run(int seq_len) const { return {keys.begin, smaller(keys.end, seq_len)}; }
  __device__ bool with_sink() const { return split == 0; }
  __device__ i64 place(const AttendParams& params, const RowTile& tile, int row) const {
    const int token = token_of(tile, row) - tile.first_token;
    return (plan.partial_start_loc[index] + static_cast<i64>(split) * query_len + token) *
               params.num_heads +
           head_of(tile, row);
  }
  template <class Config>
  __device__ void store_state(const AttendParams& params, const RowTile& tile, int row, float base,
                              float sum, const Row& info) const {
    const float lse = row_lse<Config>(base, sum, info, tile.context_len);
    if (num_splits == 1) {
      store_lse(params, tile, row, lse);
    } else {
      plan.partial_lse[place(params, tile, row)] = lse;
    }
  }
  template <class Config>
  __device__ void store_values(const AttendParams& params, const RowTile& tile, int row, int column,
                               float4 o) const {
    if (num_splits == 1) {
      WholeRequest{}.store_values<Config>(params, tile, row, column, o);
    } else {
      *reinterpret_cast<float4*>(plan.partial_output +
                                 place(params, tile, row) * Config::kVHeadSize + column) = o;
    }
  }
};

/// Request `index` of a part's record, counted from first_request.
__device__ __forceinline__ PlannedSplit planned_split(const AttendParams& params,
                                                      const PlanParams& plan, const int* record,
                                                      int index) {
  constexpr int kAllBlocks = 0x7FFFFFFF / kPlanBlock;
  const bool is_first = index == record[0];
  const int begin = is_first ? record[2] : 0;
  const int end = index == record[1] ? record[3] : kAllBlocks;
  const int* const starts = params.query_start_loc + params.first_request + index;
  return {plan,
          index,
          is_first ? record[4] : 0,
          plan.num_splits[index + 1] - plan.num_splits[index],
          {begin * kPlanBlock, end * kPlanBlock},
          starts[1] - starts[0]};
}

/// Grid: x = (part, row tile, KV head), the head fastest. Row tiles past a request's rows are idle.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    decode_plan(const __grid_constant__ AttendParams params,
                const __grid_constant__ PlanParams plan) {
  extern __shared__ DecodeMemory decode_memory[];
  using Work = Decode<Config, PlannedSplit>;
  __shared__ RowTile tile;
  allow_next_kernel();
  __shared__ float2 states[Work::kStreams * Work::kTileM];
  const auto heads = static_cast<unsigned>(params.num_kv_heads);
  const unsigned tiles = gridDim.x / heads / static_cast<unsigned>(plan.num_parts);
  const int kv_head = static_cast<int>(blockIdx.x % heads);
  const int first_row = static_cast<int>(blockIdx.x / heads % tiles) * Work::kTileM;
  const int* const record = plan.parts + static_cast<i64>(blockIdx.x / heads / tiles) * kPlanRecord;
  const int last = record[1];
  for (int index = record[0]; index <= last; ++index) {
    const RowTile mine =
        row_tile(params, params.first_request + index, kv_head, first_row, Work::kTileM);
    if (mine.num_rows <= 0) continue;
    __syncthreads();  // nobody is at the request before any more
    if (threadIdx.x == 0) tile = mine;
    __syncthreads();
    const PlannedSplit part = planned_split(params, plan, record, index);
    decode_work<Config>(params, part, reinterpret_cast<unsigned char*>(decode_memory), tile, tile)
        .run(states);
  }
}

}  // namespace attn
