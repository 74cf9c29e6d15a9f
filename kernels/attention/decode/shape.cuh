// What every part of the decode kernel (decode.cuh) goes by: its sizes, who a thread is, and where
// things lie in shared memory.
#pragma once

#include "kernels/attention/decode/layout.cuh"
#include "kernels/attention/kv_rows.cuh"
#include "kernels/attention/rows.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/attention/transposed.cuh"
#include "kernels/common/platform.cuh"
#include "kernels/ptx/arrivals.cuh"

namespace attn {

/// Warps that share a ring: those of a head's rows, of each KV head that is in it.
template <class Config>
constexpr int kStreamWarpsOf = Config::kRowWarps* Config::kHeads;
/// Streams of a CTA: each has its own keys and its own ring.
template <class Config>
constexpr int kStreamsOf = Config::kWarps / kStreamWarpsOf<Config>;

/// CTAs that take turns at the keys of a part, 16 of each of their streams at a time; each has a
/// place() among them. Other parts belong to one CTA.
template <class Part>
ATTN_FN constexpr int sharers_of() {
  if constexpr (requires { Part::kSharers; }) {
    return Part::kSharers;
  } else {
    return 1;
  }
}
template <class Part>
constexpr int kSharersOf = sharers_of<Part>();
template <class Part>
constexpr bool kIsShared = sharers_of<Part>() > 1;

template <class Config, class Part>
struct DecodeShape {
  static constexpr int kThreads = Config::kWarps * 32;
  static constexpr int kStreams = kStreamsOf<Config>;
  static constexpr int kHeads = Config::kHeads;
  static constexpr int kStreamWarps = kStreamWarpsOf<Config>;
  static constexpr int kWarpRows = Config::kRowBlocks * 16;
  static constexpr int kTileM = Config::kRowWarps * kWarpRows;
  /// Of all heads: those of each lie kTileM behind those of the one before.
  static constexpr int kAllRows = kHeads * kTileM;
  /// Rows of a head that there can be; of products of 8 rows the others have no place.
  static constexpr int kRows = Config::kTransposed ? kTileM / 2 : kTileM;
  static constexpr int kKeys = 16;  // of one step
  static constexpr int kDepth = round_up(Config::kHeadSize, 16);
  using Format = Formats<Config>;
  static constexpr bool kCodes = Format::kCodes;
  static constexpr bool kValueCodes = Format::kValueCodes;
  static constexpr int kElementBytes = size_of(Config::kKeyValue);
  static constexpr int kValueBytes = size_of(kStoredValue<Config>);
  static constexpr int kQueryPitch = tile_pitch(Config::kHeadSize);
  static constexpr bool kCells = Format::kTokenHeadScales && Config::kCells;
  static constexpr int kPitch = decode_pitch(Config::kHeadSize, kElementBytes, kCells, kHeads);
  static constexpr int kValuePitch = decode_pitch(Config::kVHeadSize, kValueBytes, kCells, kHeads);
  static constexpr int kColumnBlocks = round_up(Config::kVHeadSize, kValueCodes ? 32 : 16) / 8;
  static constexpr int kValueBlocks = Config::kTransposed ? kColumnBlocks / 2 : kColumnBlocks;
  static constexpr int kQuerySteps = kDepth / (Format::kInt8 ? 32 : 16);
  static constexpr bool kHoldQuery = Config::kRowBlocks == 1 && kDepth <= 192;
  static constexpr bool kHoldValues = kValueCodes && kColumnBlocks <= 16;
  static constexpr DecodeLayout kLayout =
      decode_layout(kStreams, kStreamWarps* Config::kRowBlocks, Config::kStages, Config::kHeadSize,
                    Config::kVHeadSize, kElementBytes, kValueBytes, kCells, kHeads);
  static_assert(kStreams * kStreamWarps == Config::kWarps);
  static_assert(kHeads == 1 || kCells);
  static_assert(Config::kRowWarps == 1 || !Config::kTransposed);
  using Place = Choose<Config::kTransposed, KeysByRows, RowsByKeys>;
  static constexpr int kKeyBlocks = Config::kTransposed ? 1 : 2;
  using RowScale = RowFactors<Config::kRowBlocks>;
  /// Output of a thread's rows, and their state.
  using Output = float[Config::kRowBlocks][kValueBlocks][4];
  using State = SoftmaxState<Config::kRowBlocks>;

  const AttendParams& params;
  const Part& part;
  unsigned char* memory;
  const RowTile& tile;  // of the first head
  Side key;
  Side value;
  int thread;
  int lane;
  int warp;

  __device__ int stream() const { return warp / kStreamWarps; }
  /// The KV head of this warp, from the tile's on; and the same row tile of any of them.
  __device__ int head() const { return warp % kStreamWarps / Config::kRowWarps; }
  using HeadTile = Choose<kHeads == 1, const RowTile&, RowTile>;
  __device__ HeadTile tile_of(int of_head) const {
    if constexpr (kHeads == 1) {
      return tile;
    } else {
      RowTile of = tile;
      of.kv_head += of_head;
      return of;
    }
  }
  /// Of all streams that share the part's keys.
  __device__ int shared_stream() const {
    if constexpr (kIsShared<Part>) return part.place() * kStreams + stream();
    return stream();
  }
  /// Of this warp's rows, among those of all heads.
  __device__ int first_row() const { return warp % kStreamWarps * kWarpRows; }
  __device__ Row* rows() { return reinterpret_cast<Row*>(memory + kLayout.rows); }
  __device__ Row* rows_of_warp() { return rows() + first_row(); }
  /// The warps of a stream; what each wrote to shared memory is there.
  __device__ void sync_stream() const {
    if constexpr (kStreamWarps == 1) {
      __syncwarp();
    } else {
      meet_threads(1 + stream(), kStreamWarps * 32);
    }
  }
  /// Those of them that have rows of the same head.
  __device__ void sync_head() const {
    if constexpr (kHeads == 1) {
      sync_stream();
    } else {
      static_assert(Config::kRowWarps == 1);
      __syncwarp();
    }
  }
  /// In log2 units; -inf for none.
  __device__ float* sinks() { return reinterpret_cast<float*>(memory + kLayout.sinks); }
  __device__ float* factors() { return reinterpret_cast<float*>(memory + kLayout.factors); }
  /// Where this stream's step lies in its ring: keys, then values, then their scales.
  __device__ unsigned char* stage(int step) {
    const int slot = stream() * Config::kStages + step % Config::kStages;
    return memory + kLayout.rings + slot * kLayout.stage_bytes;
  }
  /// Output of one row of one stream, f32.
  __device__ float* output_of(int of_stream, int row) {
    return reinterpret_cast<float*>(memory + kLayout.rings +
                                    (of_stream * kAllRows + row) * kLayout.output_pitch);
  }
};

}  // namespace attn
