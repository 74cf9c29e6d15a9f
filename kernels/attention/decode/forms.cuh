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
  const RowTile mine = row_tile_now(params, place.request, place.kv_head,
                                    place.row_tile * Work::kTileM, Work::kTileM);
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

/// One CTA of a cluster: its rows go to those CTAs that put them together. Values are not
/// normalised, but belong to the state of their row.
template <class ForConfig, int kRows>
struct ClusterSplit {
  static constexpr bool kNormalise = false;
  static constexpr bool kSendsStates = true;
  static constexpr int kSharers = ForConfig::kParts;
  using Inbox = ClusterInbox<ForConfig, kRows>;
  using Shares = ClusterShares<ForConfig::kParts, Inbox::kQuads>;
  int rank;
  Inbox& inbox;

  __device__ KeyInterval run(int seq_len) const { return {0, seq_len}; }
  __device__ int place() const { return rank; }
  __device__ bool with_sink() const { return rank == 0; }
  /// The others have started, and their inboxes are there.
  __device__ void begin_store() const { wait_for_cluster(); }
  __device__ void send(float4 x, const float4* to, int owner) const {
    const u32 words[4] = {float_bits(x.x), float_bits(x.y), float_bits(x.z), float_bits(x.w)};
    send_words(in_cta(shared_address(to), owner), words,
               in_cta(shared_address(&inbox.filled), owner));
  }
  /// To the owner of one of the first quads of the row: there is one for each that has any of it.
  __device__ void send_state(int row, int quad, float base, float sum) const {
    if (quad >= ForConfig::kParts) return;
    send(make_float4(base, sum, 0.0f, 0.0f), &inbox.states[rank * kRows + row],
         Shares::owner(row * Inbox::kQuads + quad));
  }
  template <class Config>
  __device__ void store_values(const AttendParams&, const RowTile&, int row, int column,
                               float4 o) const {
    const int quad = row * Inbox::kQuads + column / 4;
    send(o, &inbox.values[rank * Inbox::kMost + Shares::place(quad)], Shares::owner(quad));
  }
};

/// One CTA of a cluster. Its shared memory is that of Decode and, behind it, the inbox.
template <class Config>
struct ClusterDecode {
  static constexpr int kTileM = DecodeShape<Config, WholeRequest>::kTileM;
  static constexpr int kRows = DecodeShape<Config, WholeRequest>::kRows;
  using Part = ClusterSplit<Config, kRows>;
  using Work = Decode<Config, Part>;
  using Inbox = typename Part::Inbox;
  static_assert(sizeof(Inbox) == inbox_bytes(kRows, Config::kVHeadSize, Config::kParts));

  static __device__ __forceinline__ void run(const AttendParams& params, unsigned char* memory,
                                             RowTile& tile, float2* states) {
    auto& inbox = *reinterpret_cast<Inbox*>(memory + Work::kLayout.total);
    const int request = params.first_request + static_cast<int>(blockIdx.z);
    const int rank = static_cast<int>(blockIdx.x % Config::kParts);
    const int first_stream =
        rank * Work::kStreams + static_cast<int>(threadIdx.x) / 32 / Config::kRowWarps;
    const int early = Work::early_entries(params, request, first_stream * Work::kKeys);
    const RowTile mine =
        row_tile_now(params, request, static_cast<int>(blockIdx.y),
                     static_cast<int>(blockIdx.x / Config::kParts) * kTileM, kTileM);
    if (mine.num_rows <= 0) return;
    if (threadIdx.x == 0) {
      tile = mine;
      const u32 filled = shared_address(&inbox.filled);
      init_barrier(filled, 1);
      publish_barriers();
      arrive_expecting(filled, Part::Shares::bytes(mine.num_rows, rank));
    }
    const Part part{rank, inbox};
    auto work = decode_work<Config>(params, part, memory, tile, mine, nullptr, early);
    __syncthreads();
    announce_to_cluster();
    work.run(states);
    join_cluster<Config>(params, tile, rank, work.rows(), inbox);
  }
};

/// Grid: x = (row tile, split), the split fastest, y = KV head, z = request: the splits of a row
/// tile are a cluster. Why three extents: a division takes longer than the way to the L2. A row
/// tile past a request's rows is so for its whole cluster.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    decode_cluster(const __grid_constant__ AttendParams params) {
  extern __shared__ DecodeMemory decode_memory[];
  using Form = ClusterDecode<Config>;
  __shared__ RowTile tile;
  __shared__ float2 states[Form::Work::kStreams * Form::Work::kTileM];
  Form::run(params, reinterpret_cast<unsigned char*>(decode_memory), tile, states);
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
