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
// each warp, which are added up at the end: every warp publishes O and (base, sum) of its rows, a
// thread for each row brings the bases to a common one, and all threads sum up and store the
// output.
//
// More than 16 rows (several tokens of a request, or many heads of a KV head): kRowWarps warps
// share a ring, with 16 rows each, and take turns in copying its steps. Every key is then copied
// once for up to 128 rows, and a step costs a barrier of those warps. They are a stream; streams
// interleave as single warps do.
//
// At the end of the loop the rings become the place of the warps' outputs: hence the barrier there.
//
// Config: as prefill's, with kStages (steps a stream has under way or in work) instead of kTileN,
// kCells (keys and values with a scale each lie in cells, cells.cuh), kRowWarps (of a stream) and
// kTransposed (no tile has more than 8 rows, transposed.cuh); kMinCtas counts CTAs per
// multiprocessor. Part: see parts.cuh.
#pragma once

#include "kernels/attention/cells.cuh"
#include "kernels/attention/decode_layout.cuh"
#include "kernels/attention/parts.cuh"
#include "kernels/attention/query_rows.cuh"
#include "kernels/attention/transposed.cuh"
#include "kernels/common/platform.cuh"
#include "kernels/params_int8.h"
#include "kernels/ptx/arrivals.cuh"
#include "kernels/ptx/dependents.cuh"

namespace attn {

/// Streams of a CTA: each has its own keys and its own ring.
template <class Config>
constexpr int kStreamsOf = Config::kWarps / Config::kRowWarps;

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
struct Decode {
  static constexpr int kThreads = Config::kWarps * 32;
  static constexpr int kStreams = kStreamsOf<Config>;
  static constexpr int kWarpRows = Config::kRowBlocks * 16;
  static constexpr int kTileM = Config::kRowWarps * kWarpRows;
  static constexpr int kKeys = 16;  // of one step
  static constexpr int kDepth = round_up(Config::kHeadSize, 16);
  using Format = Formats<Config>;
  static constexpr bool kCodes = Format::kCodes;
  static constexpr bool kValueCodes = Format::kValueCodes;
  static constexpr int kElementBytes = size_of(Config::kKeyValue);
  static constexpr int kValueBytes = size_of(kStoredValue<Config>);
  static constexpr int kQueryPitch = tile_pitch(Config::kHeadSize);
  static constexpr bool kCells = Format::kTokenHeadScales && Config::kCells;
  static constexpr int kPitch = decode_pitch(Config::kHeadSize, kElementBytes, kCells);
  static constexpr int kValuePitch = decode_pitch(Config::kVHeadSize, kValueBytes, kCells);
  static constexpr int kColumnBlocks = round_up(Config::kVHeadSize, kValueCodes ? 32 : 16) / 8;
  static constexpr int kValueBlocks = Config::kTransposed ? kColumnBlocks / 2 : kColumnBlocks;
  static constexpr int kQuerySteps = kDepth / (Format::kInt8 ? 32 : 16);
  static constexpr bool kHoldQuery = Config::kRowBlocks == 1 && kDepth <= 192;
  static constexpr bool kHoldValues = kValueCodes && kColumnBlocks <= 16;
  static constexpr DecodeLayout kLayout =
      decode_layout(kStreams, Config::kRowWarps* Config::kRowBlocks, Config::kStages,
                    Config::kHeadSize, Config::kVHeadSize, kElementBytes, kValueBytes, kCells);
  static_assert(kStreams * Config::kRowWarps == Config::kWarps);
  static_assert(Config::kRowWarps == 1 || !Config::kTransposed);
  using Place = Choose<Config::kTransposed, KeysByRows, RowsByKeys>;
  static constexpr int kKeyBlocks = Config::kTransposed ? 1 : 2;
  using Shift = Choose<kCells, CellShift, NoShift>;
  using Copies = Choose<kCells, CellCopies<Config::kHeadSize, Config::kVHeadSize>, RowCopies>;
  using RowScale = RowFactors<Config::kRowBlocks>;

  const AttendParams& params;
  const Part& part;
  unsigned char* memory;
  const RowTile& tile;
  Side key;
  Side value;
  int thread;
  int lane;
  int warp;
  float key_factor;  // key_scale(), value_scale()
  float value_factor;
  /// New int8 keys with their scales and new values, which the CTA of their KV head whose run they
  /// lie in stores before it reads any; only where a request's rows are one tile. Null: there are
  /// none to store.
  const Int8CacheWriteParams* save = nullptr;

  __device__ int stream() const { return warp / Config::kRowWarps; }
  /// Of this warp's rows, in the tile.
  __device__ int first_row() const { return warp % Config::kRowWarps * kWarpRows; }
  __device__ Row* rows() { return reinterpret_cast<Row*>(memory + kLayout.rows); }
  __device__ Row* rows_of_warp() { return rows() + first_row(); }
  /// The warps of a stream; what each wrote to shared memory is there.
  __device__ void sync_stream() const {
    if constexpr (Config::kRowWarps == 1) {
      __syncwarp();
    } else {
      meet_threads(1 + stream(), Config::kRowWarps * 32);
    }
  }
  /// Factors of the streams' outputs of a row, once weigh_streams() has made them.
  __device__ float* weights_of(int row) {
    constexpr int kPerRow = (kStreams + 3) / 4 * 4;
    return reinterpret_cast<float*>(memory + kLayout.weights) + row * kPerRow;
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
                                    (of_stream * kTileM + row) * kLayout.output_pitch);
  }

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

  /// Token i of the request goes to position seq_len - query_len + i (semantics §11.6), 16 bytes a
  /// thread and a time. What lies beside them in the cache is other CTAs'.
  __device__ void save_new(KeyInterval run) const {
    constexpr int kKeyPieces = Config::kHeadSize / 16;
    constexpr int kValuePieces = Config::kVHeadSize * kValueBytes / 16;
    constexpr int kPieces = kKeyPieces + kValuePieces + 1;
    const int first = larger(larger(tile.context_len, 0), run.begin);
    const int count = smaller(tile.seq_len, run.end) - first;
    const int* const table = save->block_table + tile.request * save->block_table_stride;
    for (int i = thread; i < count * kPieces; i += kThreads) {
      const int position = first + i / kPieces;
      const int piece = i % kPieces;
      const i64 token = tile.first_token + position - tile.context_len;
      const i64 block = table[position / larger(Config::kBlockSize, 1)];
      const i64 slot = position % larger(Config::kBlockSize, 1);
      const i64 cell =
          block * save->block_stride + slot * save->slot_stride + tile.kv_head * save->head_stride;
      if (piece < kKeyPieces) {
        const i64 from = token * save->key_token_stride + tile.kv_head * save->key_head_stride;
        *reinterpret_cast<uint4*>(save->key_cache + cell + piece * 16) =
            *reinterpret_cast<const uint4*>(save->key + from + piece * 16);
      } else if (piece < kKeyPieces + kValuePieces) {
        const i64 from = token * save->value_token_stride + tile.kv_head * save->value_head_stride;
        const int byte = (piece - kKeyPieces) * 16;
        *reinterpret_cast<uint4*>(static_cast<unsigned char*>(save->value_cache) +
                                  cell * kValueBytes + byte) =
            *reinterpret_cast<const uint4*>(static_cast<const unsigned char*>(save->value) +
                                            from * kValueBytes + byte);
      } else {
        save->key_scale_cache[block * save->scale_block_stride + slot * save->scale_slot_stride +
                              tile.kv_head * save->scale_head_stride] =
            save->key_scale[token * save->key_scale_token_stride +
                            tile.kv_head * save->key_scale_head_stride];
      }
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

  /// NaN and infinity in a step with masked keys: added to the rows that see them, then cleared. By
  /// the warps of a stream, which all find the same; int8 values have neither.
  template <class Values>
  __device__ void settle_nonfinite(int key_at, unsigned char* tile_of_values, const Values& values,
                                   float (&o)[Config::kRowBlocks][kValueBlocks][4]) {
    constexpr Element kStored = kValueCodes ? kStoredValue<Config> : Format::kValue;
    if constexpr (kStored == Element::kI8) return;
    constexpr int kBytes = Config::kVHeadSize * kValueBytes;
    const Shift shift = shift_of(value);
    if (!__any_sync(0xFFFFFFFFu, find_nonfinite<kStored, kBytes, kValuePitch>(tile_of_values, kKeys,
                                                                              lane, 32, shift))) {
      return;
    }
    if constexpr (Config::kTransposed) {
      accumulate_nonfinite_columns<Format::kValue>(rows_of_warp(), key_at, values, o[0]);
    } else {
      accumulate_nonfinite<Format::kValue, kKeys / 8>(rows_of_warp(), key_at, values, o);
    }
    sync_stream();
    clear_nonfinite<kStored, kBytes, kValuePitch>(
        tile_of_values, kKeys, thread % (Config::kRowWarps * 32), Config::kRowWarps * 32, shift);
    sync_stream();
  }

  /// This warp's part of the output and state into shared memory.
  __device__ void publish(SoftmaxState<Config::kRowBlocks>& state,
                          const float (&o)[Config::kRowBlocks][kValueBlocks][4], float2* states) {
#pragma unroll
    for (int m = 0; m < Config::kRowBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row() + m * 16 + Place::row(half);
        const float sum = sum_of_row<Place>(state.sum[m][half]);
        if (Place::key(0, 0) == 0) {
          states[stream() * kTileM + row] = make_float2(state.base[m][half], sum);
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

  /// One thread per row: state of all streams together, and the factor of each stream's output.
  __device__ void weigh_streams(int row, const float2* states) {
    float base = kNegInf;
    for (int w = 0; w < kStreams; ++w) base = fmaxf(base, states[w * kTileM + row].x);
    float sum = 0.0f;
    for (int w = 0; w < kStreams; ++w) {
      const float2 state = states[w * kTileM + row];
      const float weight = weight_of_base(state.x, base);
      weights_of(row)[w] = weight;
      sum += state.y * weight;
    }
    float factor = add_sink(sinks()[row], base, sum, weight_of_base);
    // Why the scale of the values here: once for a row instead of once for every value.
    if constexpr (!Format::kScaled) factor *= value_factor;
    if constexpr (Part::kNormalise) factor = sum == 0.0f ? 0.0f : factor / sum;
    for (int w = 0; w < kStreams; ++w) weights_of(row)[w] *= factor;
    part.template store_state<Config>(params, tile, row, base, sum, rows()[row]);
  }

  /// Columns of int8 values have scales of their own.
  __device__ __forceinline__ float4 scaled_columns(float4 o, int column) const {
    const float* const channels = params.int8.value_channel_scale;
    if (channels == nullptr) return o;
    const float* const at = channels + tile.kv_head * Config::kVHeadSize + column;
    return make_float4(o.x * at[0], o.y * at[1], o.z * at[2], o.w * at[3]);
  }

  /// output = sum over streams of their output * their factor, four columns a thread at a time.
  __device__ void store() {
    constexpr int kQuads = Config::kVHeadSize / 4;
    for (int i = thread; i < tile.num_rows * kQuads; i += kThreads) {
      const int row = i / kQuads;
      const int column = i % kQuads * 4;
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int w = 0; w < kStreams; ++w) {
        const float weight = weights_of(row)[w];
        const float4 o = *reinterpret_cast<const float4*>(output_of(w, row) + column);
        sum.x += o.x * weight;
        sum.y += o.y * weight;
        sum.z += o.z * weight;
        sum.w += o.w * weight;
      }
      if constexpr (Format::kInt8 && kValueCodes) sum = scaled_columns(sum, column);
      part.template store_values<Config>(params, tile, row, column, sum);
    }
  }

  /// One step of 16 keys from its operands: S = Q @ K^T, scale, mask, P = 2^(S - base), O += P @ V.
  template <class Query, class Keys, class Values, class Scales>
  __device__ void attend_step(int step, int key_at, bool masked, const Query& query,
                              const Keys& keys, const Values& values, const Scales& key_scales,
                              const Scales& value_scales, const ScoreScale& scale,
                              const RowScale& row_scale, SoftmaxState<Config::kRowBlocks>& state,
                              float (&o)[Config::kRowBlocks][kValueBlocks][4]) {
    float s[Config::kRowBlocks][kKeyBlocks][4];
    if (masked) settle_nonfinite(key_at, stage(step) + kLayout.value, values, o);
    const Choose<kHoldValues, HeldValues<Values, kColumnBlocks>, const Values&> held(values);
    if constexpr (Format::kInt8 && Config::kTransposed) {
      multiply_int8_keys<kDepth / 32>(query, keys, s[0][0]);
    } else if constexpr (Format::kInt8) {
      multiply_int8_scores<kDepth / 32>(query, keys, s);
    } else if constexpr (Config::kTransposed) {
      multiply_keys<Format::kScore, kDepth / 16>(query, keys, s[0][0]);
    } else {
      multiply_scores<Format::kScore, kDepth / 16>(query, keys, s);
    }
    if constexpr (Format::kKeyScales) scale_columns(s, key_scales);
    if constexpr (Config::kScaleFirst) {
      if constexpr (kCodes) scale_rows(s, row_scale);
      transform_scores<Config, Place>(s, rows_of_warp(), key_at, scale);
    }
    if (masked) mask_keys<Place>(s, rows_of_warp(), key_at, kNegInf);
    if constexpr (Config::kScaleFirst) {
      fold_scores<Format::kTokenHeadScales, Place>(s, SameFactor{1.0f}, state, o);
    } else {
      fold_scores<Format::kTokenHeadScales, Place>(s, row_scale, state, o);
    }
    if constexpr (Format::kTokenHeadScales) {
      if (masked) {
        scale_weights<true, Place>(s, rows_of_warp(), key_at, value_scales, state, o);
      } else {
        scale_weights<false, Place>(s, rows_of_warp(), key_at, value_scales, state, o);
      }
    }
    if constexpr (Config::kTransposed) {
      accumulate_columns<Format::kValue>(s[0][0], held, o[0]);
    } else {
      accumulate_values<Format::kValue>(s, held, o);
    }
  }

  /// The same from a tile of codes: rows start on their pitch or, in cells, a little behind it.
  template <class Query>
  __device__ void attend_codes(int step, int key_at, bool masked, const Query& query,
                               const ScoreScale& scale, const RowScale& row_scale,
                               SoftmaxState<Config::kRowBlocks>& state,
                               float (&o)[Config::kRowBlocks][kValueBlocks][4]) {
    const u32 at = shared_address(stage(step));
    const u32 value_at = at + kLayout.value;
    const int row = lane / 4;
    const int pair = lane % 4 * 2;
    const Shift key_shift = shift_of(key);
    const Shift value_shift = shift_of(value);
    const CodeKeys<Config::kKeyValue, Format::kScore, Format::kScaled, kPitch> keys{
        at + row * kPitch + key_shift.of(row) + lane % 4 * 4, key_factor};
    const u32 value_row = value_at + pair * kValuePitch + value_shift.of(pair);
    const u32 odd_value = kValuePitch + value_shift.of(pair + 1) - value_shift.of(pair);
    const CodeValues<Config::kKeyValue, Format::kValue, Format::kScaled, kValuePitch> values{
        value_row + row * 4, odd_value, value_factor};
    if constexpr (kCells) {
      const int first = Place::key(0, 0);
      const int second = Place::key(0, 1);
      const CellScales<kPitch> key_scales{
          at + first * kPitch + key_shift.of(first) + Config::kHeadSize,
          (second - first) * kPitch + key_shift.of(second) - key_shift.of(first)};
      const CellScales<kValuePitch> value_scales{
          value_at + first * kValuePitch + value_shift.of(first) + Config::kVHeadSize,
          (second - first) * kValuePitch + value_shift.of(second) - value_shift.of(first)};
      attend_step(step, key_at, masked, query, keys, values, key_scales, value_scales, scale,
                  row_scale, state, o);
    } else {
      const auto* scales = reinterpret_cast<const float*>(stage(step) + kLayout.scales);
      attend_step(step, key_at, masked, query, keys, values, RowOfScales<Place>{scales},
                  RowOfScales<Place>{scales + kKeys}, scale, row_scale, state, o);
    }
  }

  /// The same from a tile of int8 keys, whose products take them as they are, and one of values.
  template <class Query>
  __device__ void attend_int8(int step, int key_at, bool masked, const Query& query,
                              const ScoreScale& scale, const RowScale& row_scale,
                              SoftmaxState<Config::kRowBlocks>& state,
                              float (&o)[Config::kRowBlocks][kValueBlocks][4]) {
    static_assert(kDepth % 32 == 0);
    const u32 at = shared_address(stage(step));
    const u32 value_at = at + kLayout.value;
    const TileKeys<kPitch> keys{columns_first_address<kPitch>(at)};
    const auto* scales = reinterpret_cast<const float*>(stage(step) + kLayout.scales);
    const RowOfScales<Place> key_scales{scales};
    if constexpr (kValueCodes) {
      const CodeValues<Element::kI8, Format::kValue, false, kValuePitch> values{
          value_at + lane % 4 * 2 * kValuePitch + lane / 4 * 4, kValuePitch, 1.0f};
      attend_step(step, key_at, masked, query, keys, values, key_scales, key_scales, scale,
                  row_scale, state, o);
    } else {
      const TileValues<kValuePitch> values{rows_first_address<kValuePitch>(value_at)};
      attend_step(step, key_at, masked, query, keys, values, key_scales, key_scales, scale,
                  row_scale, state, o);
    }
  }

  /// The same from a 16-bit tile; there are no scales to give.
  template <class Query>
  __device__ void attend_tiles(int step, int key_at, bool masked, const Query& query,
                               const ScoreScale& scale, const RowScale& row_scale,
                               SoftmaxState<Config::kRowBlocks>& state,
                               float (&o)[Config::kRowBlocks][kValueBlocks][4]) {
    const u32 at = shared_address(stage(step));
    const TileKeys<kPitch> keys{columns_first_address<kPitch>(at)};
    const TileValues<kValuePitch> values{rows_first_address<kValuePitch>(at + kLayout.value)};
    attend_step(step, key_at, masked, query, keys, values, RowOfScales<Place>{nullptr},
                RowOfScales<Place>{nullptr}, scale, row_scale, state, o);
  }

  __device__ void run(float2* states) {
    copy_query();
    close_copy_group();
    const KeyInterval run = part.run(tile.seq_len);
    if constexpr (Format::kInt8) {
      copy_query_scales<kTileM, kThreads>(params, tile, factors(), thread);
      if (save != nullptr) save_new(run);  // read behind the barrier below
    }
    for (int r = thread; r < kTileM; r += kThreads) {
      const Row row = describe_row(params, tile, run, r);
      rows()[r] = row;
      sinks()[r] =
          part.with_sink() ? sink_of_row(params, tile, Config::kAlibi, row, r) * kLog2E : kNegInf;
    }
    __syncthreads();
    const TileBounds bounds = bounds_of_rows(rows(), tile, 0, kTileM);
    const bool any = bounds.hull.begin < bounds.hull.end;
    const int first_key = (any ? bounds.hull.begin / kKeys * kKeys : 0) + stream() * kKeys;
    const int end_key = any ? bounds.hull.end : 0;
    PageWindow<Config> pages{params.kv.block_table + tile.request * params.kv.block_table_stride,
                             first_key, end_key, 0, 0};
    pages.start();
    const Copies copies(key, value, lane);
    // Groups so far: the queries, then one for each of the first kStages - 1 steps.
#pragma unroll
    for (int step = 0; step < Config::kStages - 1; ++step) {
      copy_step(step, first_key, pages, copies);
    }
    // All but the last kStages - 1 groups are done: the queries are there. Why only now: the page
    // table and the first keys are on their way beside them.
    wait_copy_groups<Config::kStages - 1>();
    __syncthreads();
    if constexpr (kConvertsQuery<Config>) {
      convert_query_rows<Config, kTileM, kQueryPitch, kThreads>(memory + kLayout.query, factors(),
                                                                thread);
      __syncthreads();
    }

    const u32 query_tile = shared_address(memory + kLayout.query) + first_row() * kQueryPitch;
    constexpr bool kQueryInOrder = !kCodes || Format::kInt8;
    using StoredQuery = Choose<kQueryInOrder, TileQuery<kQueryPitch>, CodeQuery<kQueryPitch>>;
    const StoredQuery stored{!kQueryInOrder ? query_tile + lane / 4 * kQueryPitch + lane % 4 * 8
                                    : rows_first_address<kQueryPitch>(query_tile)};
    const Choose<kHoldQuery, HeldQuery<Config::kRowBlocks, kQuerySteps>, StoredQuery> query{stored};
    SoftmaxState<Config::kRowBlocks> state;
    reset_state(state);
    float o[Config::kRowBlocks][kValueBlocks][4] = {};
    const float folded = Format::kScaled ? 1.0f : key_factor;
    const ScoreScale scale{params.score.softmax_scale * folded * kLog2E, params.score.soft_cap,
                           key_places(Config::kAlibi, params.score, tile.request)};
    const RowScale row_scale = row_factors<Config, Place, Config::kRowBlocks>(
        factors() + first_row(), Config::kScaleFirst ? 1.0f : scale.factor);
#pragma unroll 1
    for (int step = 0;; ++step) {
      const int key_at = first_key + step * kKeys * kStreams;
      if (key_at >= end_key) break;
      wait_copy_groups<Config::kStages - 2>();
      sync_stream();  // all pieces are there, and nobody reads the oldest stage any more
      copy_step(step + Config::kStages - 1, first_key, pages, copies);
      const bool masked = needs_mask(bounds, key_at, key_at + kKeys);
      if constexpr (Format::kInt8) {
        attend_int8(step, key_at, masked, query, scale, row_scale, state, o);
      } else if constexpr (kCodes) {
        attend_codes(step, key_at, masked, query, scale, row_scale, state, o);
      } else {
        attend_tiles(step, key_at, masked, query, scale, row_scale, state, o);
      }
    }
    if constexpr (Format::kTokenHeadScales) apply_units(state, o);
    wait_copy_groups<0>();
    __syncthreads();  // rings become outputs
    publish(state, o, states);
    __syncthreads();
    for (int r = thread; r < tile.num_rows; r += kThreads) weigh_streams(r, states);
    __syncthreads();
    store();
  }
};

/// Dynamic shared memory on the alignment of the rings.
struct alignas(kRingAlignment) DecodeMemory {
  unsigned char bytes[kRingAlignment];
};

/// Grid: x = (request, part, row tile, KV head), the head fastest: neighbours read the same pages.
/// Row tiles past a request's rows are idle.
template <class Config, class Part>
__device__ __forceinline__ void decode_part(const AttendParams& params, const Part& part,
                                            int request, int row_tile_index, int kv_head,
                                            const Int8CacheWriteParams* save = nullptr) {
  extern __shared__ DecodeMemory decode_memory[];
  using Work = Decode<Config, Part>;
  __shared__ RowTile tile;
  __shared__ float2 states[Work::kStreams * Work::kTileM];
  const RowTile mine =
      row_tile(params, request, kv_head, row_tile_index * Work::kTileM, Work::kTileM);
  if (mine.num_rows <= 0) return;
  if (threadIdx.x == 0) tile = mine;
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  Work work{params,
            part,
            reinterpret_cast<unsigned char*>(decode_memory),
            tile,
            key_side<Config>(params, mine),
            value_side<Config>(params, mine),
            thread,
            thread % 32,
            thread / 32,
            key_scale<Config>(params, kv_head),
            value_scale<Config>(params, kv_head),
            save};
  work.run(states);
}

/// The entries: whole requests; splits, put together by combine_splits(); Triton's segments, put
/// together by reduce_segments(). The latter two let that kernel start early.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    decode(const __grid_constant__ AttendParams params) {
  const GridPlace place = grid_place(params, 1);
  const WholeRequest part{};
  decode_part<Config>(params, part, place.request, place.row_tile, place.kv_head);
}

template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    decode_splits(const __grid_constant__ AttendParams params,
                  const __grid_constant__ SplitParams split) {
  allow_next_kernel();
  const GridPlace place = grid_place(params, split.num_splits);
  const OneSplit part{split, place.part};
  decode_part<Config>(params, part, place.request, place.row_tile, place.kv_head);
}

/// The same two of int8 scores, where a request's rows are one tile: they store the new keys and
/// values too, so that decoding takes no launch more.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    decode_saving(const __grid_constant__ AttendParams params,
                  const __grid_constant__ Int8CacheWriteParams save) {
  const GridPlace place = grid_place(params, 1);
  const WholeRequest part{};
  decode_part<Config>(params, part, place.request, place.row_tile, place.kv_head, &save);
}

template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    decode_splits_saving(const __grid_constant__ AttendParams params,
                         const __grid_constant__ SplitParams split,
                         const __grid_constant__ Int8CacheWriteParams save) {
  allow_next_kernel();
  const GridPlace place = grid_place(params, split.num_splits);
  const OneSplit part{split, place.part};
  decode_part<Config>(params, part, place.request, place.row_tile, place.kv_head, &save);
}

template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    decode_segments(const __grid_constant__ AttendParams params,
                    const __grid_constant__ SegmentParams segments) {
  allow_next_kernel();
  const GridPlace place = grid_place(params, segments.num_segments);
  const int seq_len = params.seq_lens[place.request];
  if (place.part >= num_active_segments(seq_len, segments.num_segments, segments.tile)) return;
  const OneSegment part{segments, place.part};
  decode_part<Config>(params, part, place.request, place.row_tile, place.kv_head);
}

}  // namespace attn
