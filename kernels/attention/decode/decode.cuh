// Attention of few query rows against many keys, bound by the bandwidth of device memory: every
// warp streams its own keys, 16 at a time, through its own ring of shared memory, and the warps
// meet once at the end. Rows of one KV head are packed, so a step costs the same for 1 and for 16
// heads; up to 8 rows the products are transposed.
//
// Why a ring for each warp: a warp waits for its own copies only (wait_copy_groups, __syncwarp), so
// warps drift apart, and while some compute others have loads under way; a barrier of the CTA every
// 16 keys would make all of them wait for the slowest. Step s of warp w has the keys [first_key,
// first_key + 16), first_key = begin + (s * kStreams + w) * 16: warps interleave, so that the CTA
// reads pages in order and every warp has an equal share. The price is a state and an output for
// each warp, which are added up at the end: every warp publishes O and (base, sum) of its rows, and
// every thread weighs the warps by their bases and sums up and stores its columns. Where a part has
// several CTAs (kSharers, parts.cuh), their warps interleave as those of one do.
//
// More than 16 rows (several tokens of a request, or many heads of a KV head): kRowWarps warps
// share a ring, with 16 rows each, and take turns in copying its steps. Every key is then copied
// once for up to 128 rows, and a step costs a barrier of those warps. They are a stream; streams
// interleave as single warps do.
//
// Where every token and head has a scale, cells of neighbouring KV heads share sectors of the
// cache, and CTAs of single heads drift apart until all of them are read twice. So kHeads heads may
// share a ring, whose rows have the cells of all of them, with a warp for each: they are a stream
// too, copy its steps together and meet at every one of them.
//
// At the end of the loop the rings become the place of the warps' outputs: hence the barrier there.
//
// The loop is in this file; shape.cuh has the sizes and the places in shared memory, loads.cuh the
// way of keys and values into the rings, products.cuh a step of 16 keys, outputs.cuh the end.
//
// Config: as prefill's, with kStages (steps a stream has under way or in work) instead of kTileN,
// kCells (keys and values with a scale each lie in cells, cells.cuh), kRowWarps (of a head in a
// stream), kHeads (KV heads of a CTA; more than 1 for decode, decode_splits and decode_segments
// over cells that follow each other, without kRowWarps) and kTransposed (no tile has more than 8
// rows, transposed.cuh); kMinCtas counts CTAs per multiprocessor. Of int8 scores (semantics §11.4)
// it has kInt8Value too, kv_rows.cuh. Part: see parts.cuh.
#pragma once

#include "kernels/attention/decode/outputs.cuh"
#include "kernels/attention/decode/save.cuh"
#include "kernels/attention/parts.cuh"
#include "kernels/attention/query_rows.cuh"
#include "kernels/ptx/dependents.cuh"

namespace attn {

template <class Config, class Part>
struct Decode : DecodeOutputs<Config, Part> {
  using Outputs = DecodeOutputs<Config, Part>;
  using Outputs::attend;
  using Outputs::copy_query;
  using Outputs::copy_step;
  using Outputs::factors;
  using Outputs::first_row;
  using Outputs::kAllRows;
  using Outputs::kCodes;
  using Outputs::kDistance;
  using Outputs::key;
  using Outputs::key_factor;
  using Outputs::kHoldQuery;
  using Outputs::kKeys;
  using Outputs::kLayout;
  using Outputs::kQueryPitch;
  using Outputs::kQuerySteps;
  using Outputs::kRows;
  using Outputs::kStreams;
  using Outputs::kThreads;
  using Outputs::kTileM;
  using Outputs::lane;
  using Outputs::memory;
  using Outputs::params;
  using Outputs::part;
  using Outputs::publish;
  using Outputs::rows;
  using Outputs::seen_keys;
  using Outputs::shared_stream;
  using Outputs::sinks;
  using Outputs::store;
  using Outputs::stream;
  using Outputs::sync_stream;
  using Outputs::thread;
  using Outputs::tile;
  using Outputs::tile_of;
  using Outputs::value;
  using typename Outputs::Copies;
  using typename Outputs::Format;
  using typename Outputs::Output;
  using typename Outputs::Pages;
  using typename Outputs::Place;
  using typename Outputs::RowScale;
  using typename Outputs::State;
  static constexpr bool kQueryInOrder = !kCodes || Format::kInt8;
  using StoredQuery = Choose<kQueryInOrder, TileQuery<kQueryPitch>, CodeQuery<kQueryPitch>>;

  /// What is new and not yet in the cache; null: there is nothing to save.
  const Int8CacheWriteParams* save;
  int early;  // kIsShared: early_entries() of this lane, of a part that begins at key 0

  __device__ void describe_rows(KeyInterval run) {
    for (int i = thread; i < Config::kHeads * kRows; i += kThreads) {
      const int head = Config::kHeads == 1 ? 0 : i / kRows;
      const RowTile& of = tile_of(head);
      const int r = i - head * kRows;
      const int at = head * kTileM + r;
      const Row row = describe_row(params, of, run, r);
      rows()[at] = row;
      sinks()[at] =
          part.with_sink() ? sink_of_row(params, of, Config::kAlibi, row, r) * kLog2E : kNegInf;
    }
  }

  /// Starts the copies of the queries and of the first kStages - 1 steps, a group for each, and
  /// describes the rows meanwhile. New keys of int8 scores are saved before any is read.
  __device__ void start_copies(KeyInterval run, Pages& pages, const Copies& copies) {
    copy_query();
    close_copy_group();
    if constexpr (Format::kInt8) {
      copy_query_scales<kTileM, kThreads>(params, tile, factors(), thread);
      if (save != nullptr) {
        save_new<Config, kThreads>(*save, tile, run, thread);
        __syncthreads();
      }
    }
#pragma unroll
    for (int step = 0; step < Config::kStages - 1; ++step) copy_step(step, pages, copies);
    describe_rows(run);
  }

  /// The queries and the rows are there. Why not the first step: what may be done to the queries
  /// is done while it is still on its way.
  __device__ void await_query() {
    wait_copy_groups<Config::kStages - 1>();
    __syncthreads();
    if constexpr (kConvertsQuery<Config>) {
      convert_query_rows<Config, kAllRows, kQueryPitch, kThreads>(memory + kLayout.query, factors(),
                                                                  thread);
      __syncthreads();
    }
  }

  /// This warp's rows of it.
  __device__ StoredQuery stored_query() const {
    const u32 at = shared_address(memory + kLayout.query) + first_row() * kQueryPitch;
    return {kQueryInOrder ? rows_first_address<kQueryPitch>(at)
                          : at + lane / 4 * kQueryPitch + lane % 4 * 8};
  }

  __device__ void run(float2* states) {
    const KeyInterval run = part.run(tile.seq_len);
    const KeyInterval seen = seen_keys(run);
    const int begin_key = seen.begin / kKeys * kKeys;
    const int end_key = seen.begin < seen.end ? seen.end : 0;
    Pages pages{params.kv.block_table + tile.request * params.kv.block_table_stride,
                begin_key + shared_stream() * kKeys, end_key, 0, early};
    if (!kIsShared<Part> || begin_key != 0) pages.start();
    const Copies copies(key, value, thread % Outputs::kCopyThreads);
    start_copies(run, pages, copies);
    await_query();
    const TileBounds bounds = bounds_of_rows(rows(), tile, 0, kRows);

    const Choose<kHoldQuery, HeldQuery<Config::kRowBlocks, kQuerySteps>, StoredQuery> query{
        stored_query()};
    State state;
    reset_state(state);
    Output o = {};
    const float folded = Format::kScaled ? 1.0f : key_factor;
    const ScoreScale scale{params.score.softmax_scale * folded * kLog2E, params.score.soft_cap,
                           key_places(Config::kAlibi, params.score, tile.request)};
    const RowScale row_scale = row_factors<Config, Place, Config::kRowBlocks>(
        factors() + first_row(), Config::kScaleFirst ? 1.0f : scale.factor);
#pragma unroll 1
    for (int step = 0;; ++step) {
      const int key_at = pages.first_key + step * kDistance;
      if (key_at >= end_key) break;
      wait_copy_groups<Config::kStages - 2>();
      sync_stream();  // all pieces are there, and nobody reads the oldest stage any more
      copy_step(step + Config::kStages - 1, pages, copies);
      const bool masked = needs_mask(bounds, key_at, key_at + kKeys);
      attend(step, key_at, masked, query, scale, row_scale, state, o);
    }
    if constexpr (Format::kTokenHeadScales) apply_units(state, o);
    wait_copy_groups<0>();
    __syncthreads();  // rings become outputs
    publish(state, o, states);
    if constexpr (requires { part.begin_store(); }) part.begin_store();
    __syncthreads();
    store(states);
  }
};

/// Dynamic shared memory on the alignment of the rings.
struct alignas(kRingAlignment) DecodeMemory {
  unsigned char bytes[kRingAlignment];
};

/// The work of one CTA on one run of keys. `same` is the same row tile, which shared memory has in
/// `tile`: its keys and values are found by it.
template <class Config, class Part>
__device__ __forceinline__ Decode<Config, Part> decode_work(
    const AttendParams& params, const Part& part, unsigned char* memory, const RowTile& tile,
    const RowTile& same, const Int8CacheWriteParams* save = nullptr, int early = 0) {
  const int thread = static_cast<int>(threadIdx.x);
  const int head = thread / 32 % kStreamWarpsOf<Config> / Config::kRowWarps;
  return {{{{{params, part, memory, tile, key_side<Config>(params, same),
              value_side<Config>(params, same), thread, thread % 32, thread / 32}},
            key_scale<Config>(params, same.kv_head + head),
            value_scale<Config>(params, same.kv_head)}},
          save,
          early};
}

/// Has the page table of a request fetched into the L2, as far as a warp has lanes for its lines,
/// while its length is still on the way: where its keys lie is then known that much sooner.
template <class Config>
__device__ __forceinline__ void fetch_page_table(const AttendParams& params, int request) {
  if constexpr (Config::kBlockSize != 0) {
    constexpr int kLine = kLineBytes / 4;
    const i64 at = threadIdx.x * kLine;
    if (threadIdx.x < 32 && at < params.kv.block_table_stride) {
      fetch_line(params.kv.block_table + request * params.kv.block_table_stride + at);
    }
  }
}

/// Grid: x = (request, part, row tile, KV head), the head fastest: neighbours read the same pages.
/// Row tiles past a request's rows are idle.
template <class Config, class Part>
__device__ __forceinline__ void decode_part(const AttendParams& params, const Part& part,
                                            const GridPlace& place,
                                            const Int8CacheWriteParams* save = nullptr) {
  extern __shared__ DecodeMemory decode_memory[];
  using Work = Decode<Config, Part>;
  __shared__ RowTile tile;
  __shared__ float2 states[Work::kStreams * Work::kAllRows];
  fetch_page_table<Config>(params, place.request);
  const RowTile mine = row_tile_now(params, place.request, place.kv_head,
                                    place.row_tile * Work::kTileM, Work::kTileM);
  if (mine.num_rows <= 0) return;
  if (threadIdx.x == 0) tile = mine;
  __syncthreads();
  decode_work<Config>(params, part, reinterpret_cast<unsigned char*>(decode_memory), tile, mine,
                      save)
      .run(states);
}

/// The entries: whole requests; splits, put together by combine_splits(); Triton's segments, put
/// together by reduce_segments(). The latter two let that kernel start early.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    decode(const __grid_constant__ AttendParams params) {
  const GridPlace place = grid_place(params, 1, Config::kHeads);
  const WholeRequest part{};
  decode_part<Config>(params, part, place);
}

template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    decode_splits(const __grid_constant__ AttendParams params,
                  const __grid_constant__ SplitParams split) {
  allow_next_kernel();
  const GridPlace place = grid_place(params, split.num_splits, Config::kHeads);
  const OneSplit part{split, place.part};
  decode_part<Config>(params, part, place);
}

/// The same two of int8 scores, where a request's rows are one tile: they store the new keys and
/// values too, so that decoding takes no launch more.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    decode_saving(const __grid_constant__ AttendParams params,
                  const __grid_constant__ Int8CacheWriteParams save) {
  const GridPlace place = grid_place(params, 1);
  const WholeRequest part{};
  decode_part<Config>(params, part, place, &save);
}

template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    decode_splits_saving(const __grid_constant__ AttendParams params,
                         const __grid_constant__ SplitParams split,
                         const __grid_constant__ Int8CacheWriteParams save) {
  allow_next_kernel();
  const GridPlace place = grid_place(params, split.num_splits);
  const OneSplit part{split, place.part};
  decode_part<Config>(params, part, place, &save);
}

template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    decode_segments(const __grid_constant__ AttendParams params,
                    const __grid_constant__ SegmentParams segments) {
  allow_next_kernel();
  const GridPlace place = grid_place(params, segments.num_segments, Config::kHeads);
  const int seq_len = params.seq_lens[place.request];
  if (place.part >= num_active_segments(seq_len, segments.num_segments, segments.tile)) return;
  const OneSegment part{segments, place.part};
  decode_part<Config>(params, part, place);
}

}  // namespace attn
