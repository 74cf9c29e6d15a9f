// What the decode kernel (decode.cuh) brings into shared memory: the queries of its row tile, and
// the keys and values of every step into the ring of their stream.
#pragma once

#include "kernels/attention/cells.cuh"
#include "kernels/attention/decode/shape.cuh"
#include "kernels/attention/query_rows.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace attn {

/// Page table entries of one stream's steps, 32 at a time in its lanes, fetched one batch ahead:
/// the address of a copy then waits for a shuffle and not for device memory. Steps are kDistance
/// keys apart.
template <class Config, int kDistance>
struct PageWindow {
  const int* table;  // of the request
  int first_key;     // of the stream's step 0
  int end_key;
  int entries;  // of this lane, in the batch in use
  int next;     // of this lane, in the batch after it

  static __device__ int key_of_lane(int first_key, int batch) {
    return first_key + (batch * 32 + static_cast<int>(threadIdx.x % 32)) * kDistance;
  }
  __device__ int fetch(int batch) const {
    const int key = key_of_lane(first_key, batch);
    return key < end_key ? table[key / larger(Config::kBlockSize, 1)] : 0;
  }
  __device__ void start() {
    if constexpr (Config::kBlockSize != 0) next = fetch(0);
  }
  /// Entry of a step, the same for all lanes. Steps must be requested in order, each once, by all
  /// lanes.
  __device__ int of_step(int step) {
    if constexpr (Config::kBlockSize == 0) return 0;
    if (step % 32 == 0) {
      entries = next;
      next = fetch(step / 32 + 1);
    }
    return __shfl_sync(0xFFFFFFFFu, entries, step % 32);
  }
};

/// In the place of CellCopies where copy_run() does the work: it keeps nothing from step to step.
struct RowCopies {
  __device__ RowCopies(const Side&, const Side&, int) {}
};

template <class Config, class Part>
struct DecodeLoads : DecodeShape<Config, Part> {
  using Shape = DecodeShape<Config, Part>;
  using Shape::kAllRows;
  using Shape::kCells;
  using Shape::kElementBytes;
  using Shape::key;
  using Shape::kKeys;
  using Shape::kLayout;
  using Shape::kPitch;
  using Shape::kQueryPitch;
  using Shape::kRows;
  using Shape::kStreams;
  using Shape::kStreamWarps;
  using Shape::kThreads;
  using Shape::kTileM;
  using Shape::kValueBytes;
  using Shape::kValuePitch;
  using Shape::lane;
  using Shape::memory;
  using Shape::params;
  using Shape::stage;
  using Shape::thread;
  using Shape::tile;
  using Shape::tile_of;
  using Shape::value;
  using Shape::warp;
  using typename Shape::Format;
  using Shift = Choose<kCells, CellShift, NoShift>;
  /// From one step of a stream to its next, in keys.
  static constexpr int kDistance = kKeys * kStreams * kSharersOf<Part>;
  using Pages = PageWindow<Config, kDistance>;
  /// Threads that copy a step of a stream together.
  static constexpr int kCopyThreads = Config::kHeads * 32;
  using Copies = Choose<kCells,
                        CellCopies<Config::kHeads * Config::kHeadSize,
                                   Config::kHeads * Config::kVHeadSize, kCopyThreads>,
                        RowCopies>;

  /// The keys of the part that rows of the tile see, and perhaps some more: known before the rows
  /// are described. Those of the first and the last row bound those of the rows between, but for
  /// bidirectional ranges.
  __device__ KeyInterval seen_keys(KeyInterval run) const {
    const ScoreParams& score = params.score;
    if (score.mm_ranges != nullptr) return run;
    int first = tile.context_len;
    int last = first;
    if (tile.first_row > 0 || tile.num_rows > tile.group) {
      first += tile.first_row / tile.group;
      last += (tile.first_row + tile.num_rows - 1) / tile.group;
    }
    const KeyInterval of_first =
        window_interval(first, tile.seq_len, score.window_left, score.window_right);
    const KeyInterval of_last =
        window_interval(last, tile.seq_len, score.window_left, score.window_right);
    return {larger(of_first.begin, run.begin), smaller(of_last.end, run.end)};
  }

  /// Starts the copy of the queries; clears the padding of queries and of the keys of all stages.
  __device__ void copy_query() {
#pragma unroll
    for (int head = 0; head < Config::kHeads; ++head) {
      copy_query_rows<Config, kRows, kQueryPitch, kThreads>(
          params, tile_of(head),
          shared_address(memory + kLayout.query) + head * kTileM * kQueryPitch, thread);
    }
    clear_padding<Config::kHeadSize, 2, kQueryPitch>(memory + kLayout.query, kAllRows, thread,
                                                     kThreads);
    for (int i = 0; i < Config::kStages && warp % kStreamWarps == 0; ++i) {
      clear_padding<Config::kHeadSize, kElementBytes, kPitch>(stage(i), kKeys, lane, 32);
    }
  }

  __device__ Shift shift_of(const Side& side) const {
    if constexpr (kCells) {
      return shift_of_cells(side);
    } else {
      return {};
    }
  }

  /// Entries of the first 32 steps, if the stream begins at key `first_key`; before it is known how
  /// many keys there are. Those past the request's keys say nothing.
  static __device__ int early_entries(const AttendParams& params, int request, int first_key) {
    if constexpr (Config::kBlockSize == 0) return 0;
    const int at = Pages::key_of_lane(first_key, 0) / larger(Config::kBlockSize, 1);
    if (at >= params.kv.block_table_stride) return 0;
    return load_now(params.kv.block_table + request * params.kv.block_table_stride + at);
  }

  /// Starts the copy of a step, if there is one and it is this warp's turn, and closes a group
  /// either way: the count of pending groups then says which step has arrived.
  __device__ void copy_step(int step, Pages& pages, const Copies& copies) {
    const int at = pages.first_key + step * kDistance;
    const int block = pages.of_step(step);
    const u32 to = shared_address(stage(step));
    const bool has_turn = step % Config::kRowWarps == warp % Config::kRowWarps;
    if (has_turn && at < pages.end_key) {
      const int valid_rows = tile.seq_len - at;
      const unsigned char* keys = key.base + offset_of_key<Config>(key, block, at);
      const unsigned char* values = value.base + offset_of_key<Config>(value, block, at);
      if constexpr (kCells) {
        copies.start(keys, values, valid_rows, to);
      } else {
        copy_run<kKeys, Config::kHeadSize * kElementBytes, Config::kCopyBytes, kPitch, 32>(
            keys, key.token_stride, valid_rows, to, lane);
        copy_run<kKeys, Config::kVHeadSize * kValueBytes, Config::kCopyBytes, kValuePitch, 32>(
            values, value.token_stride, valid_rows, to + kLayout.value, lane);
        if constexpr (Format::kKeyScales) {
          copy_scales<Config, kKeys>(params, tile.kv_head, &block, at, tile.seq_len,
                                     to + kLayout.scales, lane);
        }
      }
    }
    close_copy_group();
  }
};

}  // namespace attn
