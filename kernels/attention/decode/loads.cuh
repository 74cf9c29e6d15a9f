// What the decode kernel (decode.cuh) brings into shared memory: the queries of its row tile, and
// the keys and values of every step into the ring of their stream.
#pragma once

#include "kernels/attention/cells.cuh"
#include "kernels/attention/decode/shape.cuh"
#include "kernels/attention/query_rows.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace attn {

/// Page table entries of one stream's steps, 32 at a time in its lanes, fetched one batch ahead:
/// the address of a copy then waits for a shuffle and not for device memory.
template <class Config>
struct PageWindow {
  const int* table;  // of the request
  int first_key;     // of the stream's step 0
  int end_key;
  int entries;  // of this lane, in the batch in use
  int next;     // of this lane, in the batch after it

  __device__ int fetch(int batch) const {
    const int key = first_key + (batch * 32 + static_cast<int>(threadIdx.x % 32)) * kPageGrain *
                                    kStreamsOf<Config>;
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
  using Shape::kCells;
  using Shape::kElementBytes;
  using Shape::key;
  using Shape::kKeys;
  using Shape::kLayout;
  using Shape::kPitch;
  using Shape::kQueryPitch;
  using Shape::kStreams;
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
  using Shape::value;
  using Shape::warp;
  using typename Shape::Format;
  using Shift = Choose<kCells, CellShift, NoShift>;
  using Copies = Choose<kCells, CellCopies<Config::kHeadSize, Config::kVHeadSize>, RowCopies>;

  /// Starts the copy of the queries; clears the padding of queries and of the keys of all stages.
  __device__ void copy_query() {
    copy_query_rows<Config, kTileM, kQueryPitch, kThreads>(
        params, tile, shared_address(memory + kLayout.query), thread);
    clear_padding<Config::kHeadSize, 2, kQueryPitch>(memory + kLayout.query, kTileM, thread,
                                                     kThreads);
    for (int i = 0; i < Config::kStages && warp % Config::kRowWarps == 0; ++i) {
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

  /// Starts the copy of a step, if there is one and it is this warp's turn, and closes a group
  /// either way: the count of pending groups then says which step has arrived.
  __device__ void copy_step(int step, int first_key, PageWindow<Config>& pages,
                            const Copies& copies) {
    const int at = first_key + step * kKeys * kStreams;
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
