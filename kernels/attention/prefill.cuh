// Attention of many query rows: 16-bit tensor cores, K and V streamed through shared memory, online
// softmax (semantics §3). One CTA does one tile of packed rows of one request and KV head.
//
// Shape of a CTA: kTileM rows, kRowBlocks * 16 of them for each warp; a warp holds S [its rows,
// kTileN] and O [its rows, Dv] in registers, and all warps share the tiles of K and V. For every
// tile of keys from the first that any row sees to the last:
//   wait for the tile; start the copy of the next one; S = Q @ K^T; scale, mask; P = 2^(S - base);
//   O += P @ V.
// Two stages of K and V and one barrier a tile: the barrier that makes a tile visible to all warps
// also says that all of them are done with the one before, whose place the next copy takes. Tiles
// of codes have a single 16-bit stage: their copy goes to a place of its own, and decoding empties
// it. Sums and the output are f32; P is rounded to the element of V.
//
// The caller guarantees: row starts are multiples of kCopyBytes and kQueryCopyBytes, head sizes are
// multiples of 8, block sizes of 16, and paged K and V have the same strides.
//
// Config: kQuery, kKeyValue, kOutput (Element) · kHeadSize, kVHeadSize · kBlockSize (0 = ragged) ·
// kCopyBytes, kQueryCopyBytes (4, 8, 16: what every row start is a multiple of) · kWarps,
// kRowBlocks (16-row blocks of a warp), kTileN (keys of a tile) · kMinCtas (per multiprocessor) ·
// kScaleFirst (scores are brought to log2 units before their maximum: soft cap, ALiBi, scale <= 0)
// · kSoftCap · kAlibi · for one-byte keys and values kRoundDequantized, kTokenHeadScales
#pragma once

#include "kernels/attention/prefill_layout.cuh"
#include "kernels/attention/query_rows.cuh"
#include "kernels/common/platform.cuh"

namespace attn {

/// Page table entries in shared memory: those of the next kPageWindow * kPageGrain keys.
constexpr int kPageWindow = 128;

template <class Config>
struct Prefill {
  static constexpr int kThreads = Config::kWarps * 32;
  static constexpr int kWarpRows = Config::kRowBlocks * 16;
  static constexpr int kTileM = Config::kWarps * kWarpRows;
  static constexpr int kTileN = Config::kTileN;
  static constexpr int kDepth = round_up(Config::kHeadSize, 16);
  static constexpr int kQueryPitch = tile_pitch(Config::kHeadSize);
  static constexpr int kPitch = prefill_pitch(Config::kHeadSize, size_of(Config::kKeyValue));
  static constexpr int kValuePitch = prefill_pitch(Config::kVHeadSize, size_of(Config::kKeyValue));
  using Format = Formats<Config>;
  static constexpr bool kCodes = Format::kCodes;
  static constexpr Element kValueElement = Format::kValue;
  // Where O, S and the temporaries of S leave registers for it: small heads only.
  static constexpr bool kHoldQuery =
      !kCodes && !Config::kScaleFirst && kDepth + Config::kVHeadSize <= 128;
  static constexpr int kCodePitch = round_up(Config::kHeadSize, 16);
  static constexpr int kValueCodePitch = round_up(Config::kVHeadSize, 16);
  static constexpr int kStages = prefill_stages(size_of(Config::kKeyValue));
  static constexpr int kKeyBlocks = kTileN / 8;
  static constexpr int kValueBlocks = round_up(Config::kVHeadSize, 16) / 8;
  static constexpr PrefillLayout kLayout =
      prefill_layout(Config::kWarps, kTileM, kTileN, Config::kHeadSize, Config::kVHeadSize,
                     size_of(Config::kKeyValue));
  static_assert(kPageWindow * kPageGrain % kTileN == 0);

  const AttendParams& params;
  unsigned char* memory;
  // In shared memory, as are the bounds: registers are for O and S.
  const RowTile& tile;
  const Side& key;
  const Side& value;
  int thread;

  __device__ Row* rows() { return reinterpret_cast<Row*>(memory + kLayout.rows); }
  /// Of all rows, then of each warp's.
  __device__ TileBounds* bounds() { return reinterpret_cast<TileBounds*>(memory + kLayout.bounds); }
  /// Bytes from the base of a side to each run of kPageGrain keys; the two sides share strides.
  __device__ i64* offsets() { return reinterpret_cast<i64*>(memory + kLayout.offsets); }
  __device__ int* pages() { return reinterpret_cast<int*>(memory + kLayout.pages); }
  /// Scales of the keys of a tile, then those of its values; tiles take turns.
  __device__ const float* scales(int turn) {
    return reinterpret_cast<const float*>(memory + kLayout.scales) + turn * 2 * kTileN;
  }
  __device__ float* factors() { return reinterpret_cast<float*>(memory + kLayout.factors); }
  __device__ unsigned char* key_tile(int turn) {
    return memory + kLayout.key + (kStages == 1 ? 0 : turn * kTileN * kPitch);
  }
  __device__ unsigned char* value_tile(int turn) {
    return memory + kLayout.value + (kStages == 1 ? 0 : turn * kTileN * kValuePitch);
  }
  __device__ u32 shared(int offset) { return shared_address(memory) + static_cast<u32>(offset); }

  /// Starts the copy of the queries, and clears the columns that pad queries and keys to the step
  /// of the products. The copies belong to the first group that is closed.
  __device__ void copy_query() {
    copy_query_rows<Config, kTileM, kQueryPitch, kThreads>(params, tile, shared(kLayout.query),
                                                           thread);
    clear_padding<Config::kHeadSize, 2, kQueryPitch>(memory + kLayout.query, kTileM, thread,
                                                     kThreads);
    clear_padding<Config::kHeadSize, 2, kPitch>(key_tile(0), kStages * kTileN, thread, kThreads);
  }

  /// Page table entries of the window of keys that starts at `first_key`, as far as the request
  /// goes, and the offsets that follow from them. Why a window: entries are read once for many
  /// tiles, by all threads, and not again by every thread that copies. Entries past the request's
  /// end are not read: they may be garbage. All threads; ends with a barrier. No barrier is needed
  /// before: the last reads of the old window lie before the barrier of the tile in work.
  __device__ void load_pages(int first_key) {
    const int* table = params.kv.block_table + tile.request * params.kv.block_table_stride;
    for (int i = thread; i < kPageWindow; i += kThreads) {
      const int at = first_key + i * kPageGrain;
      if (at >= tile.seq_len) break;
      const int block = table[at / larger(Config::kBlockSize, 1)];
      pages()[i] = block;
      offsets()[i] = offset_of_key<Config>(key, block, at);
    }
    __syncthreads();
  }

  /// Keys of pages whose offsets are `at`; those from `valid_rows` on become zeros.
  template <int kBytes, int kTilePitch>
  __device__ __forceinline__ void copy_pages(const Side& side, const i64* at, int valid_rows,
                                             u32 to) {
    constexpr int kRuns = kTileN / kPageGrain;
    // Why all reads of shared memory first: to the compiler every copy may change shared memory,
    // and it would read each offset again after the copy before it.
    const Side from = side;
    i64 offset[kRuns];
#pragma unroll
    for (int i = 0; i < kRuns; ++i) offset[i] = i * kPageGrain < valid_rows ? at[i] : 0;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      copy_run<kPageGrain, kBytes, Config::kCopyBytes, kTilePitch, kThreads>(
          from.base + offset[i], from.token_stride, valid_rows - i * kPageGrain,
          to + i * kPageGrain * kTilePitch, thread);
    }
  }

  /// One side of a tile of kTileN keys; those past the request's end become zeros.
  template <int kColumns, int kTilePitch>
  __device__ void copy_tile(const Side& side, int first_key, u32 to) {
    constexpr int kBytes = kColumns * size_of(Config::kKeyValue);
    const int valid_rows = tile.seq_len - first_key;
    if constexpr (Config::kBlockSize == 0) {
      copy_run<kTileN, kBytes, Config::kCopyBytes, kTilePitch, kThreads>(
          side.base + first_key * side.token_stride, side.token_stride, valid_rows, to, thread);
    } else {
      const i64* at = offsets() + first_key / kPageGrain % kPageWindow;
      if (valid_rows >= kTileN) {
        copy_pages<kBytes, kTilePitch>(side, at, kTileN, to);
      } else {
        copy_pages<kBytes, kTilePitch>(side, at, valid_rows, to);
      }
    }
  }

  /// Starts the copy of a tile of K and V. Tiles start on multiples of kTileN, so that their
  /// entries lie together in the window.
  __device__ void copy_keys_values(int first_key, int turn, bool first_tile) {
    constexpr int kWindowKeys = kPageWindow * kPageGrain;
    if (Config::kBlockSize != 0 && (first_tile || first_key % kWindowKeys == 0)) {
      load_pages(first_key / kWindowKeys * kWindowKeys);
    }
    if constexpr (kCodes) {
      copy_tile<Config::kHeadSize, kCodePitch>(key, first_key, shared(kLayout.key_codes));
      copy_tile<Config::kVHeadSize, kValueCodePitch>(value, first_key, shared(kLayout.value_codes));
    } else {
      copy_tile<Config::kHeadSize, kPitch>(key, first_key, shared_address(key_tile(turn)));
      copy_tile<Config::kVHeadSize, kValuePitch>(value, first_key,
                                                 shared_address(value_tile(turn)));
    }
    if constexpr (Format::kTokenHeadScales) {
      static_assert(kThreads >= 2 * kTileN);
      copy_scales<Config, kTileN>(params, tile.kv_head,
                                  pages() + first_key / kPageGrain % kPageWindow, first_key,
                                  tile.seq_len, shared_address(scales(turn)), thread);
    }
    close_copy_group();
  }
  /// Codes become the 16-bit tiles of the products. After its barrier the place of the codes is
  /// free for the next copy.
  __device__ void decode_tile() {
    if constexpr (kCodes) {
      decode_rows<Config, kTileN, Config::kHeadSize, kCodePitch, kPitch, kThreads, Format::kScore>(
          memory + kLayout.key_codes, key_scale<Config>(params, tile.kv_head), key_tile(0), thread);
      decode_rows<Config, kTileN, Config::kVHeadSize, kValueCodePitch, kValuePitch, kThreads,
                  kValueElement>(memory + kLayout.value_codes,
                                 value_scale<Config>(params, tile.kv_head), value_tile(0), thread);
      __syncthreads();
    }
  }

  /// NaN and infinity in a tile with masked keys: added to the rows that see them, then cleared.
  /// All threads must call this or none: the tile is shared, and barriers lie between reading it as
  /// it is and clearing it, and between that and the products.
  __device__ void settle_nonfinite(const Row* warp_rows, int key_at, int turn, bool seen,
                                   const TileValues<kValuePitch>& values,
                                   float (&o)[Config::kRowBlocks][kValueBlocks][4]) {
    const bool found = find_nonfinite<kValueElement, Config::kVHeadSize * 2, kValuePitch>(
        value_tile(turn), kTileN, thread, kThreads);
    if (!__syncthreads_or(found)) return;
    if (seen) accumulate_nonfinite<kValueElement, kKeyBlocks>(warp_rows, key_at, values, o);
    __syncthreads();
    clear_nonfinite<kValueElement, Config::kVHeadSize * 2, kValuePitch>(value_tile(turn), kTileN,
                                                                        thread, kThreads);
    __syncthreads();
  }

  /// Output and LSE of this warp's rows. The sink joins the state of the row first; then one
  /// multiplication for each element does the division by the sum, the scale of the values and that
  /// of the output.
  __device__ void store(SoftmaxState<Config::kRowBlocks>& state,
                        const float (&o)[Config::kRowBlocks][kValueBlocks][4], int warp_row) {
    const int lane = thread % 32;
    const bool pairs = pairs_aligned(params);
    const float folded = Format::kScaled ? 1.0f : value_scale<Config>(params, tile.kv_head);
    const float factor = folded * output_factor(params);
#pragma unroll
    for (int m = 0; m < Config::kRowBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = sum_of_row<RowsByKeys>(state.sum[m][half]);
        float base = state.base[m][half];
        const int row = warp_row + m * 16 + half * 8 + lane / 4;
        if (row >= tile.num_rows) continue;
        const float sink = sink_of_row(params, tile, Config::kAlibi, rows()[row], row) * kLog2E;
        const float kept = add_sink(sink, base, sum, weight_of_base);
        const float inverse = sum == 0.0f ? 0.0f : kept / sum * factor;
        const i64 at = token_of(tile, row) * params.output_token_stride +
                       head_of(tile, row) * params.output_head_stride + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < Config::kVHeadSize / 8; ++n) {
          store_pair<Config::kOutput>(params.output, at + n * 8, o[m][n][half * 2] * inverse,
                                      o[m][n][half * 2 + 1] * inverse, pairs);
        }
        if (lane % 4 == 0) {
          store_lse(params, tile, row, row_lse<Config>(base, sum, rows()[row], tile.context_len));
        }
      }
    }
  }

  __device__ void run() {
    copy_query();
    for (int r = thread; r < kTileM; r += kThreads) {
      rows()[r] = describe_row(params, tile, {0, tile.seq_len}, r);
    }
    __syncthreads();
    const int warp = thread / 32;
    const int warp_row = warp * kWarpRows;
    const Row* warp_rows = rows() + warp_row;
    bounds()[1 + warp] = bounds_of_rows(rows(), tile, warp_row, kWarpRows);
    if (warp == 0) bounds()[0] = bounds_of_rows(rows(), tile, 0, kTileM);
    // Of all rows: which tiles are copied at all. Of this warp's: which it computes, and which it
    // masks.
    const TileBounds& all = bounds()[0];
    const TileBounds& mine = bounds()[1 + warp];

    SoftmaxState<Config::kRowBlocks> state;
    reset_state(state);
    float o[Config::kRowBlocks][kValueBlocks][4] = {};
    const float folded = Format::kScaled ? 1.0f : key_scale<Config>(params, tile.kv_head);
    const ScoreScale scale{params.score.softmax_scale * folded * kLog2E, params.score.soft_cap,
                           key_places(Config::kAlibi, params.score, tile.request)};

    __syncthreads();
    const TileQuery<kQueryPitch> stored{
        rows_first_address<kQueryPitch>(shared(kLayout.query) + warp_row * kQueryPitch)};
    const u32 key_lane = columns_first_address<kPitch>(shared(kLayout.key));
    const u32 value_lane = rows_first_address<kValuePitch>(shared(kLayout.value));

    // Only where the queries are needed before the first tile: elsewhere they arrive with it.
    if constexpr (kHoldQuery || kConvertsQuery<Config>) {
      close_copy_group();
      wait_copy_groups<0>();
      __syncthreads();
    }
    if constexpr (kConvertsQuery<Config>) {
      convert_query_rows<Config, kTileM, kQueryPitch, kThreads>(memory + kLayout.query, factors(),
                                                                thread);
      __syncthreads();
    }
    using StoredQuery = TileQuery<kQueryPitch>;
    const Choose<kHoldQuery, HeldQuery<Config::kRowBlocks, kDepth / 16>, StoredQuery> query{stored};

    // Tiles start on multiples of kTileN, whatever the window; the first one may begin with masked
    // keys.
    const int end = all.hull.end;
    int key_at = all.hull.begin < end ? all.hull.begin / kTileN * kTileN : end;
    int turn = 0;
    if (key_at < end) copy_keys_values(key_at, 0, true);
#pragma unroll 1
    for (; key_at < end; key_at += kTileN, turn ^= 1) {
      const int past = key_at + kTileN;
      // Why here: what the bounds say arrives while the tile is waited for.
      const bool seen = key_at < mine.hull.end && past > mine.hull.begin;
      const bool masked = needs_mask(mine, key_at, past);
      const bool any_masked = needs_mask(all, key_at, past);
      wait_copy_groups<0>();
      __syncthreads();  // the tile is there, and nobody reads the last one any more
      decode_tile();
      if (past < end) copy_keys_values(past, turn ^ 1, false);
      const TileKeys<kPitch> keys{key_lane + (kStages == 1 ? 0 : turn * kTileN * kPitch)};
      const TileValues<kValuePitch> values{value_lane +
                                           (kStages == 1 ? 0 : turn * kTileN * kValuePitch)};
      if (any_masked) settle_nonfinite(warp_rows, key_at, turn, seen, values, o);
      if (!seen) continue;  // the warp still takes part in all barriers above
      // S = Q @ K^T, then exponents of 2, then P in the same registers.
      float s[Config::kRowBlocks][kKeyBlocks][4];
      multiply_scores<Format::kScore, kDepth / 16>(query, keys, s);
      const float* row_scales = factors() + warp_row;
      if constexpr (Format::kTokenHeadScales)
        scale_columns(s, RowOfScales<RowsByKeys>{scales(turn)});
      if constexpr (Config::kScaleFirst) {
        if constexpr (kCodes) {
          scale_rows(s, row_factors<Config, RowsByKeys, Config::kRowBlocks>(row_scales, 1.0f));
        }
        transform_scores<Config, RowsByKeys>(s, warp_rows, key_at, scale);
      }
      if (masked) mask_keys<RowsByKeys>(s, warp_rows, key_at, kNegInf);
      if constexpr (Config::kScaleFirst) {
        fold_scores<Format::kTokenHeadScales, RowsByKeys>(s, SameFactor{1.0f}, state, o);
      } else {
        fold_scores<Format::kTokenHeadScales, RowsByKeys>(
            s, row_factors<Config, RowsByKeys, Config::kRowBlocks>(row_scales, scale.factor), state,
            o);
      }
      if constexpr (Format::kTokenHeadScales) {
        const RowOfScales<RowsByKeys> value_scales{scales(turn) + kTileN};
        if (masked) {
          scale_weights<true, RowsByKeys>(s, warp_rows, key_at, value_scales, state, o);
        } else {
          scale_weights<false, RowsByKeys>(s, warp_rows, key_at, value_scales, state, o);
        }
      }
      // O += P @ V
      accumulate_values<kValueElement>(s, values, o);
    }
    if constexpr (Format::kTokenHeadScales) apply_units(state, o);
    store(state, o, warp_row);
  }
};

/// Dynamic shared memory on a line, which tiles whose rows are whole lines need.
struct alignas(kLineBytes) PrefillMemory {
  unsigned char bytes[kLineBytes];
};

/// Grid: x = (row tile from the last one back, request, KV head), the head fastest; a request with
/// fewer tiles leaves the rest of its CTAs idle. Why from the last tile back: under a causal mask
/// it has the most keys, and long CTAs must not start last.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32, Config::kMinCtas)
    prefill(const __grid_constant__ AttendParams params) {
  extern __shared__ PrefillMemory prefill_memory[];
  constexpr int kTileM = Prefill<Config>::kTileM;
  const unsigned heads = static_cast<unsigned>(params.num_kv_heads);
  const unsigned requests = static_cast<unsigned>(params.num_requests);
  const int kv_head = static_cast<int>(blockIdx.x % heads);
  const int request = params.first_request + static_cast<int>(blockIdx.x / heads % requests);
  const int from_last = static_cast<int>(blockIdx.x / heads / requests);
  const int query_len = params.query_start_loc[request + 1] - params.query_start_loc[request];
  const int num_rows = query_len * (params.num_heads / params.num_kv_heads);
  const int index = (num_rows + kTileM - 1) / kTileM - 1 - from_last;
  if (index < 0) return;
  __shared__ RowTile tile;
  __shared__ Side key;
  __shared__ Side value;
  if (threadIdx.x == 0) {
    tile = row_tile(params, request, kv_head, index * kTileM, kTileM);
    key = key_side<Config>(params, tile);
    value = value_side<Config>(params, tile);
  }
  __syncthreads();
  Prefill<Config> work{params, reinterpret_cast<unsigned char*>(prefill_memory),
                       tile,   key,
                       value,  static_cast<int>(threadIdx.x)};
  work.run();
}

}  // namespace attn
