// Attention of f32 queries with f32 arithmetic throughout: no tensor core keeps 24 bits. Keys and
// values of any element, head sizes, block sizes and alignments of any kind. A CTA of 16 x 16
// threads holds 16 or 64 packed rows; thread (y, x) has rows y * kRowsPerThread and on, keys
// x + 16 j of a tile, and four columns of every 64 of the output.
//
// For every tile of 64 keys: S = Q @ K^T, 32 columns of Q and K in shared memory at a time; the 16
// threads of a row, half a warp, find its maximum by shuffles and leave P in shared memory; then
// O += P @ V, 8 or 16 keys of V in shared memory at a time, in the place that Q and K had. O and
// the state of the rows stay in registers. Each thread's sum is of its own keys; they are added up
// once, in store().
//
// Config: kQuery (kF32), kKeyValue, kOutput (Element) · kHeadSize, kVHeadSize · kPaged · kAlibi ·
// kSoftCap · kTokenHeadScales · kQueryVector, kKeyVector, kValueVector (elements of a load: 1, 2
// or 4) · kRowsPerThread (1 or 4) · kMinCtas. Part: see parts.cuh.
#pragma once

#include "kernels/attention/f32_loads.cuh"
#include "kernels/attention/parts.cuh"

namespace attn {

template <class Config, class Part>
struct F32Attention {
  static constexpr int kThreads = 256;
  static constexpr int kRows = Config::kRowsPerThread;
  static constexpr int kTileM = 16 * kRows;
  static constexpr int kTileN = 64;
  static constexpr int kKeysPerThread = kTileN / 16;
  static constexpr int kDepth = 32;  // columns of Q and K in shared memory at a time
  static constexpr int kDepthPitch = kDepth + 4;
  static constexpr int kColumnBlocks = (Config::kVHeadSize + 63) / 64;
  static constexpr int kValuePitch = kColumnBlocks * 64;
  /// Keys of V in shared memory at a time.
  static constexpr int kValueKeys = kValuePitch <= 256 ? 16 : 8;
  /// Why odd for one row: the columns that a warp writes then lie in different banks.
  static constexpr int kWeightPitch = kRows == 1 ? kTileM + 1 : kTileM + 4;

  // Q and K share their room with V.
  static constexpr int kScoreFloats = (kTileM + kTileN) * kDepthPitch;
  static constexpr int kValueFloats = kValueKeys * kValuePitch;

  struct Memory {
    alignas(16) float operands[kScoreFloats > kValueFloats ? kScoreFloats : kValueFloats];
    alignas(16) float weights[kTileN * kWeightPitch];  // P, key by key
    Row rows[kTileM];
    i64 query_at[kTileM];  // offsets in elements; negative: zeros
    i64 key_at[kTileN];
    i64 value_at[kTileN];
    float key_scale[kTileN];
    float value_scale[kTileN];
    float key_factor;    // per tensor
    float value_factor;  // per tensor
    RowTile tile;
  };

  const AttendParams& params;
  const Part& part;
  Memory& memory;
  // Why so little here: all registers go to scores, output and loads under way.
  const int thread = static_cast<int>(threadIdx.x);
  const int x = thread % 16;
  const int y = thread / 16;

  __device__ const RowTile& tile() const { return memory.tile; }

  /// What rows see and where their queries lie; rows past the tile see nothing and read zeros.
  __device__ void locate_rows() {
    const KeyInterval run = part.run(tile().seq_len);
    for (int r = thread; r < kTileM; r += kThreads) {
      memory.rows[r] = describe_row(params, tile(), run, r);
      memory.query_at[r] = -1;
      if (r >= tile().num_rows) continue;
      const i64 token = token_of(tile(), r);
      const i64 head = head_of(tile(), r);
      memory.query_at[r] = token * params.query_token_stride + head * params.query_head_stride;
    }
  }

  /// Where keys [first, first + kTileN) lie; from `end` on nothing is read.
  __device__ void locate_keys(int first, int end) {
    if (thread >= kTileN) return;
    const KvParams& kv = params.kv;
    const int key = first + thread;
    memory.key_at[thread] = -1;
    memory.value_at[thread] = -1;
    memory.key_scale[thread] = 1.0f;
    memory.value_scale[thread] = 1.0f;
    if (key >= end) return;
    const i64 head = tile().kv_head;
    i64 block = 0;
    i64 slot = key;
    if constexpr (Config::kPaged) {
      block = kv.block_table[tile().request * kv.block_table_stride + key / kv.block_size];
      slot = key % kv.block_size;
    } else {
      slot += kv.kv_start_loc[tile().request];
    }
    const i64 block_at = Config::kPaged ? block * kv.block_stride : 0;
    memory.key_at[thread] = block_at + slot * kv.token_stride_key + head * kv.head_stride_key;
    memory.value_at[thread] = block_at + slot * kv.token_stride_value + head * kv.head_stride_value;
    if constexpr (Config::kTokenHeadScales) {
      const i64 at =
          block * kv.scale_block_stride + slot * kv.scale_slot_stride + head * kv.scale_head_stride;
      memory.key_scale[thread] = kv.key_scales[at];
      memory.value_scale[thread] = kv.value_scales[at];
    }
  }

  /// Columns [first_column, first_column + kDepth) of all queries and keys of the tile into shared
  /// memory, zeros past the head size. Keys are dequantised here, so that S needs no scales.
  __device__ void load_operands(int first_column) {
    using Query = LoadTile<Config::kQuery, Config::kQueryVector, kTileM, kDepth, kDepthPitch,
                           Config::kHeadSize, kThreads>;
    using Key = LoadTile<Config::kKeyValue, Config::kKeyVector, kTileN, kDepth, kDepthPitch,
                         Config::kHeadSize, kThreads>;
    Query::run(params.query, memory.query_at, first_column, memory.operands, thread,
               [](float q, int) { return q; });
    Key::run(params.kv.key, memory.key_at, first_column, memory.operands + kTileM * kDepthPitch,
             thread, [&](float code, int row) {
               const float k = dequantise<Config::kKeyValue>(code, memory.key_factor);
               return Config::kTokenHeadScales ? k * memory.key_scale[row] : k;
             });
  }

  /// S += Q @ K^T over the columns in shared memory. Reads of 16 bytes: a query's serve all 16
  /// threads of its row, and the pitch of kDepth + 4 puts the keys of neighbouring threads in
  /// different banks.
  __device__ void multiply_scores(float (&s)[kRows][kKeysPerThread]) {
    const float* query = memory.operands + y * kRows * kDepthPitch;
    const float* key = memory.operands + (kTileM + x) * kDepthPitch;
#pragma unroll 2
    for (int d = 0; d < kDepth; d += 4) {
      float4 k[kKeysPerThread];
#pragma unroll
      for (int j = 0; j < kKeysPerThread; ++j) {
        k[j] = *reinterpret_cast<const float4*>(key + j * 16 * kDepthPitch + d);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 q = *reinterpret_cast<const float4*>(query + r * kDepthPitch + d);
#pragma unroll
        for (int j = 0; j < kKeysPerThread; ++j) {
          s[r][j] = fmaf(q.x, k[j].x, s[r][j]);
          s[r][j] = fmaf(q.y, k[j].y, s[r][j]);
          s[r][j] = fmaf(q.z, k[j].z, s[r][j]);
          s[r][j] = fmaf(q.w, k[j].w, s[r][j]);
        }
      }
    }
  }

  /// s -> exponents of 2: scale, soft cap, ALiBi (semantics §3.1).
  __device__ float transform(float s, const Row& row, int key) const {
    s *= params.score.softmax_scale;
    if constexpr (Config::kSoftCap) {
      s = params.score.soft_cap * tanhf(s / params.score.soft_cap);
    }
    s *= kLog2E;
    const int place =
        place_of_key(Config::kAlibi, key_places(Config::kAlibi, params.score, tile().request), key);
    const auto distance = static_cast<float>(place - row.position);
    if constexpr (local_form(Config::kAlibi) == Alibi::kDistance) {
      s -= row.slope * fabsf(distance);
    } else if constexpr (local_form(Config::kAlibi) == Alibi::kSqrt) {
      s -= row.slope * sqrtf(fmaxf(-distance, 0.0f));
    } else if constexpr (Config::kAlibi != Alibi::kNone) {
      s += row.slope * distance;
    }
    return s;
  }

  /// Scores become weights in shared memory; state and output of every row follow its maximum. A
  /// key that a row may not see has weight -0, which no visible key has.
  __device__ void fold(float (&s)[kRows][kKeysPerThread], int first_key, float (&base)[kRows],
                       float (&sum)[kRows], float (&o)[kRows][kColumnBlocks][4]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Row row = memory.rows[y * kRows + r];
      float most = base[r];
#pragma unroll
      for (int j = 0; j < kKeysPerThread; ++j) {
        const int key = first_key + x + 16 * j;
        s[r][j] = transform(s[r][j], row, key);
        if (key < row.keys.begin || key >= row.keys.end) s[r][j] = kNegInf;
        // NaN is passed over here and shows in P.
        most = fmaxf(most, s[r][j]);
      }
#pragma unroll
      for (int step = 8; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
      }
      if (most > base[r]) {
        const float factor = exp2_fast(base[r] - most);
        sum[r] *= factor;
#pragma unroll
        for (int c = 0; c < kColumnBlocks; ++c) {
#pragma unroll
          for (int i = 0; i < 4; ++i) o[r][c][i] *= factor;
        }
      }
      base[r] = most;
      // Why: a row that has seen no key has base -inf, and (-inf) - (-inf) is NaN.
      const float from = most == kNegInf ? 0.0f : most;
#pragma unroll
      for (int j = 0; j < kKeysPerThread; ++j) {
        const int key = first_key + x + 16 * j;
        const float p = exp2_fast(s[r][j] - from);
        sum[r] += p;
        const bool visible = key >= row.keys.begin && key < row.keys.end;
        memory.weights[(x + 16 * j) * kWeightPitch + y * kRows + r] = visible ? p : -0.0f;
      }
    }
  }

  /// O += P V of keys [first, first + kValueKeys) of the tile. kMasked: weights of -0 count for
  /// nothing, whatever their value is.
  template <bool kMasked>
  __device__ void accumulate_values(int first, float (&o)[kRows][kColumnBlocks][4]) {
    const float* weights = memory.weights + first * kWeightPitch + y * kRows;
#pragma unroll 2
    for (int key = 0; key < kValueKeys; ++key) {
      float p[kRows];
      if constexpr (kRows == 4) {
        const float4 four = *reinterpret_cast<const float4*>(weights + key * kWeightPitch);
        p[0] = four.x;
        p[1] = four.y;
        p[2] = four.z;
        p[3] = four.w;
      } else {
        p[0] = weights[key * kWeightPitch];
      }
#pragma unroll
      for (int c = 0; c < kColumnBlocks; ++c) {
        const float4 v =
            *reinterpret_cast<const float4*>(memory.operands + key * kValuePitch + c * 64 + x * 4);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (kMasked && __float_as_uint(p[r]) == 0x80000000u) continue;
          o[r][c][0] = fmaf(p[r], v.x, o[r][c][0]);
          o[r][c][1] = fmaf(p[r], v.y, o[r][c][1]);
          o[r][c][2] = fmaf(p[r], v.z, o[r][c][2]);
          o[r][c][3] = fmaf(p[r], v.w, o[r][c][3]);
        }
      }
    }
  }

  /// O += P @ V of a tile, kValueKeys keys at a time. The tile's keys from `end` on are left out.
  __device__ void add_values(int first_key, int end, bool masked,
                             float (&o)[kRows][kColumnBlocks][4]) {
    using Value = LoadTile<Config::kKeyValue, Config::kValueVector, kValueKeys, kValuePitch,
                           kValuePitch, Config::kVHeadSize, kThreads>;
#pragma unroll 1
    for (int first = 0; first < smaller(kTileN, end - first_key); first += kValueKeys) {
      __syncthreads();  // the weights are there, and nobody reads what is overwritten
      Value::run(params.kv.value, memory.value_at + first, 0, memory.operands, thread,
                 [&](float code, int row) {
                   const float v = dequantise<Config::kKeyValue>(code, memory.value_factor);
                   return Config::kTokenHeadScales ? v * memory.value_scale[first + row] : v;
                 });
      __syncthreads();
      if (masked) {
        accumulate_values<true>(first, o);
      } else {
        accumulate_values<false>(first, o);
      }
    }
  }

  /// One tile of keys. `masked`: some row may not see some of them.
  __device__ void attend_tile(int first_key, int end, bool masked, float (&base)[kRows],
                              float (&sum)[kRows], float (&o)[kRows][kColumnBlocks][4]) {
    __syncthreads();  // nobody reads the places of the tile before
    locate_keys(first_key, end);
    float s[kRows][kKeysPerThread] = {};
#pragma unroll 1
    for (int d = 0; d < Config::kHeadSize; d += kDepth) {
      __syncthreads();
      load_operands(d);
      __syncthreads();
      multiply_scores(s);
    }
    fold(s, first_key, base, sum, o);
    add_values(first_key, end, masked, o);
  }

  /// Sums of the rows, the sink, then output and state to where the part says.
  __device__ void store(const float (&base)[kRows], const float (&sum)[kRows],
                        const float (&o)[kRows][kColumnBlocks][4]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = y * kRows + r;
      float total = sum[r];
#pragma unroll
      for (int step = 8; step > 0; step /= 2) {
        total += __shfl_xor_sync(0xFFFFFFFFu, total, step);
      }
      if (row >= tile().num_rows) continue;
      const Row& info = memory.rows[row];
      float most = base[r];
      float factor = 1.0f;
      if (part.with_sink()) {
        const float sink = sink_of_row(params, tile(), Config::kAlibi, info, row) * kLog2E;
        factor = add_sink(sink, most, total, weight_of_base);
      }
      if (x == 0) part.template store_state<Config>(params, tile(), row, most, total, info);
      if constexpr (Part::kNormalise) factor = total == 0.0f ? 0.0f : factor / total;
#pragma unroll
      for (int c = 0; c < kColumnBlocks; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = c * 64 + x * 4 + i;
          if (column >= Config::kVHeadSize) continue;
          part.template store_value<Config>(params, tile(), row, column, o[r][c][i] * factor);
        }
      }
    }
  }

  __device__ void run() {
    locate_rows();
    __syncthreads();
    const TileBounds bounds = bounds_of_rows(memory.rows, tile(), 0, kTileM);
    float base[kRows];
    float sum[kRows];
    float o[kRows][kColumnBlocks][4] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      base[r] = kNegInf;
      sum[r] = 0.0f;
    }
#pragma unroll 1
    for (int key = bounds.hull.begin; key < bounds.hull.end; key += kTileN) {
      attend_tile(key, bounds.hull.end, needs_mask(bounds, key, key + kTileN), base, sum, o);
    }
    store(base, sum, o);
  }
};

/// One part of a request. Grid of the entries: as the decode kernels'.
template <class Config, class Part>
__device__ __forceinline__ void f32_part(const AttendParams& params, const Part& part,
                                         const GridPlace& place) {
  using Work = F32Attention<Config, Part>;
  __shared__ typename Work::Memory memory;
  const RowTile mine =
      row_tile(params, place.request, place.kv_head, place.row_tile * Work::kTileM, Work::kTileM);
  if (mine.num_rows <= 0) return;
  if (threadIdx.x == 0) {
    const KvParams& kv = params.kv;
    memory.tile = mine;
    memory.key_factor = kv.k_scale == nullptr ? 1.0f : kv.k_scale[place.kv_head];
    memory.value_factor = kv.v_scale == nullptr ? 1.0f : kv.v_scale[place.kv_head];
  }
  __syncthreads();
  Work work{params, part, memory};
  work.run();
}

template <class Config>
__global__ void __launch_bounds__(256, Config::kMinCtas)
    f32_whole(const __grid_constant__ AttendParams params) {
  f32_part<Config>(params, WholeRequest{}, grid_place(params, 1));
}

template <class Config>
__global__ void __launch_bounds__(256, Config::kMinCtas)
    f32_splits(const __grid_constant__ AttendParams params,
               const __grid_constant__ SplitParams split) {
  const GridPlace place = grid_place(params, split.num_splits);
  f32_part<Config>(params, OneSplit{split, place.part}, place);
}

template <class Config>
__global__ void __launch_bounds__(256, Config::kMinCtas)
    f32_segments(const __grid_constant__ AttendParams params,
                 const __grid_constant__ SegmentParams segments) {
  const GridPlace place = grid_place(params, segments.num_segments);
  const int seq_len = params.seq_lens[place.request];
  if (place.part >= num_active_segments(seq_len, segments.num_segments, segments.tile)) return;
  f32_part<Config>(params, OneSegment{segments, place.part}, place);
}

}  // namespace attn
