// The query rows of one CTA: (token, head) pairs that share a KV head, packed so that row r of a
// request is query token r / G and head r % G of the group. Why packed: with G query heads for a KV
// head, a decode step has G rows that read the same keys. As rows of one tile they fill the 16 rows
// of a tensor core product, and every key is loaded once for all of them.
//
// Units: scores inside the fast kernels are in log2 units, scores times log2(e), since the
// hardware's exponential is 2^x. Whatever leaves a kernel (LSE, segment maxima) is in natural
// units.
#pragma once

#include "kernels/common/mask.cuh"
#include "kernels/params.h"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/packed.cuh"

namespace attn {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
/// No infinity literal exists without the headers of the host.
constexpr float kNegInf = __builtin_bit_cast(float, 0xFF800000u);

/// Which rows a CTA has, and the lengths of their request.
struct RowTile {
  int request;
  int kv_head;
  int group;        // G
  int first_row;    // packed, within the request and KV head
  int num_rows;     // <= rows of the tile; <= 0: nothing to do
  int first_token;  // of the request, in [T]
  int context_len;  // seq_len - query_len; may be negative
  int seq_len;
};

/// At most `max_rows` rows from packed row `first_row` on; num_rows <= 0 where the request has
/// fewer. `begin` and `end` are its entries of query_start_loc.
__device__ __forceinline__ RowTile row_tile(int group, int request, int kv_head, int first_row,
                                            int max_rows, int begin, int end, int seq_len) {
  RowTile tile;
  tile.request = request;
  tile.kv_head = kv_head;
  tile.group = group;
  tile.first_token = begin;
  tile.seq_len = seq_len;
  tile.context_len = seq_len - (end - begin);
  tile.first_row = first_row;
  tile.num_rows = smaller(max_rows, (end - begin) * tile.group - first_row);
  return tile;
}
__device__ __forceinline__ RowTile row_tile(const AttendParams& params, int request, int kv_head,
                                            int first_row, int max_rows) {
  return row_tile(params.num_heads / params.num_kv_heads, request, kv_head, first_row, max_rows,
                  params.query_start_loc[request], params.query_start_loc[request + 1],
                  params.seq_lens[request]);
}
/// The same for kernels that wait for it: all three numbers are asked for at once. A compiler asks
/// for the length where it is needed first, behind the number of rows, so that every CTA waits for
/// device memory twice.
__device__ __forceinline__ RowTile row_tile_now(const AttendParams& params, int request,
                                                int kv_head, int first_row, int max_rows) {
  const int seq_len = load_now(params.seq_lens + request);
  const int begin = load_now(params.query_start_loc + request);
  const int end = load_now(params.query_start_loc + request + 1);
  return row_tile(params.num_heads / params.num_kv_heads, request, kv_head, first_row, max_rows,
                  begin, end, seq_len);
}

/// Token of the batch, and query head, of a row of the tile.
__device__ __forceinline__ int token_of(const RowTile& tile, int row) {
  return tile.first_token + (tile.first_row + row) / tile.group;
}
__device__ __forceinline__ int head_of(const RowTile& tile, int row) {
  return tile.kv_head * tile.group + (tile.first_row + row) % tile.group;
}

/// The same without the tile's first token and head. Why the comparison: most tiles are of one
/// token, and where every instruction waits for the one before it a division takes a tenth of a
/// microsecond.
struct PackedRow {
  int token;
  int head;  // of the group
};
__device__ __forceinline__ PackedRow unpack_row(const RowTile& tile, int row) {
  const int packed = tile.first_row + row;
  if (packed < tile.group) return {0, packed};
  const int token = packed / tile.group;
  return {token, packed - token * tile.group};
}

/// What the inner loops need to know of a row; 16 bytes, in shared memory.
struct Row {
  KeyInterval keys;  // that it may see, of those that the CTA works on
  int position;      // in its request; of global forms of ALiBi in the whole sequence
  float slope;       // ALiBi, times log2(e)
};

/// The part of linear ALiBi that is the same for every key of a row, natural units. Why apart:
/// slope * j reaches hundreds, where f32 has no digits left for the score itself. So scores get
/// slope * (j - position), which is small for the keys that matter, and this constant is added
/// where a row's scores leave the kernel: to its LSE or segment maximum. Sums and outputs do not
/// change.
__device__ __forceinline__ float alibi_row_constant(Alibi form, const Row& row, int context_len) {
  if (local_form(form) == Alibi::kKeyIndex)
    return row.slope * kLn2 * static_cast<float>(row.position);
  if (form == Alibi::kContextRelative) {
    return row.slope * kLn2 * static_cast<float>(row.position - context_len);
  }
  return 0.0f;
}

/// The score of a row's sink in natural units, without the row's constant as its other scores are;
/// -inf where there is none (semantics §3.5).
__device__ __forceinline__ float sink_of_row(const AttendParams& params, const RowTile& tile,
                                             Alibi form, const Row& info, int row) {
  if (params.score.sinks == nullptr || row >= tile.num_rows) return kNegInf;
  return params.score.sinks[head_of(tile, row)] - alibi_row_constant(form, info, tile.context_len);
}

/// A row's sink, a key with a score and no value, joins its state (m and l of semantics §3.1);
/// returns the factor of what the values summed up to. `weight(a, b)` is e^(a - b), or 2^(a - b),
/// of two bases. Why at the end and not as the first key: P relative to a sink far above all scores
/// is 0 in 16 bits.
template <class Weight>
__device__ __forceinline__ float add_sink(float sink, float& base, float& sum, Weight weight) {
  if (sink == kNegInf) return 1.0f;
  const float top = fmaxf(base, sink);
  const float factor = weight(base, top);
  sum = sum * factor + weight(sink, top);
  base = top;
  return factor;
}

/// Row `row` of the tile cut to keys [run.begin, run.end); rows past the tile see nothing.
template <bool kRanges = true>
__device__ __forceinline__ Row describe_row(const AttendParams& params, const RowTile& tile,
                                            KeyInterval run, int row) {
  if (row >= tile.num_rows) return {{0, 0}, 0, 0.0f};
  const ScoreParams& score = params.score;
  int position = tile.context_len + (tile.first_row + row) / tile.group;
  KeyInterval keys = window_interval(position, tile.seq_len, score.window_left, score.window_right);
  if (kRanges && score.mm_ranges != nullptr) {
    const int* ranges = score.mm_ranges + 2 * static_cast<i64>(tile.request) * score.num_mm_ranges;
    keys = join_ranges(keys, position, tile.seq_len, ranges, score.num_mm_ranges);
  }
  keys.begin = larger(keys.begin, run.begin);
  keys.end = smaller(keys.end, run.end);
  if (score.positions.first_rows != nullptr) {
    position = score.positions.first_rows[tile.request] + (tile.first_row + row) / tile.group;
  }
  const float slope =
      score.alibi_slopes == nullptr ? 0.0f : score.alibi_slopes[head_of(tile, row)] * kLog2E;
  return {keys, position, slope};
}

/// Where the keys of a request stand, as transforms of scores need it.
struct KeyPlaces {
  GlobalPositions of;
  int first;  // index on the rank of the call's first key
};
/// Nothing unless `form` is a global one.
__device__ __forceinline__ KeyPlaces key_places(Alibi form, const ScoreParams& score, int request) {
  if (!is_global(form)) return {};
  const GlobalPositions& of = score.positions;
  return {of, of.first_keys == nullptr ? 0 : of.first_keys[request]};
}
/// Position of key `key` of the call, by which `form` has its bias.
__device__ __forceinline__ int place_of_key(Alibi form, const KeyPlaces& places, int key) {
  return is_global(form) ? global_key(places.of, places.first + key) : key;
}

/// The bounds of what the lanes of a warp hold, in all of them.
__device__ __forceinline__ TileBounds join_lanes(TileBounds bounds) {
  constexpr u32 kAll = 0xFFFFFFFFu;
  bounds.hull.begin = __reduce_min_sync(kAll, bounds.hull.begin);
  bounds.hull.end = __reduce_max_sync(kAll, bounds.hull.end);
  bounds.core.begin = __reduce_max_sync(kAll, bounds.core.begin);
  bounds.core.end = __reduce_min_sync(kAll, bounds.core.end);
  return bounds;
}

/// Bounds of rows [first, first + count), by one whole warp; every lane gets the result. The rows
/// must be in shared memory already (a barrier after they were described).
__device__ __forceinline__ TileBounds bounds_of_rows(const Row* rows, const RowTile& tile,
                                                     int first, int count) {
  TileBounds bounds = no_rows();
  for (int r = first + static_cast<int>(threadIdx.x % 32); r < first + count; r += 32) {
    if (r < tile.num_rows) bounds = add_row(bounds, rows[r].keys);
  }
  return join_lanes(bounds);
}

/// Stores two neighbouring columns of an output row: elements `offset` and `offset` + 1 from `to`
/// on, rounded to nearest even. `pair` says that the two may be stored at once (see
/// pairs_aligned()).
template <Element kOutput>
__device__ __forceinline__ void store_pair(void* to, i64 offset, float first, float second,
                                           bool pair) {
  if constexpr (kOutput == Element::kF32) {
    float* at = static_cast<float*>(to) + offset;
    at[0] = first;
    at[1] = second;
  } else if constexpr (kOutput == Element::kE4M3) {
    u8* at = static_cast<u8*>(to) + offset;
    at[0] = e4m3_from_float(first);
    at[1] = e4m3_from_float(second);
  } else {
    u16* at = static_cast<u16*>(to) + offset;
    const u32 packed = pack<kOutput>(first, second);
    if (pair) {
      *reinterpret_cast<u32*>(at) = packed;
    } else {
      at[0] = static_cast<u16>(packed);
      at[1] = static_cast<u16>(packed >> 16);
    }
  }
}

/// Stores element `at` from `to` on.
template <Element kOutput>
__device__ __forceinline__ void store_one(void* to, i64 at, float value) {
  if constexpr (kOutput == Element::kF32) {
    static_cast<float*>(to)[at] = value;
  } else if constexpr (kOutput == Element::kE4M3) {
    static_cast<u8*>(to)[at] = e4m3_from_float(value);
  } else {
    static_cast<u16*>(to)[at] = static_cast<u16>(pack<kOutput>(value, value));
  }
}

/// Whether two neighbouring 16-bit columns of any output row lie in one aligned word.
__device__ __forceinline__ bool pairs_aligned(const AttendParams& params) {
  const i64 strides = params.output_token_stride | params.output_head_stride;
  return (strides & 1) == 0 && (reinterpret_cast<unsigned long long>(params.output) & 3) == 0;
}

/// Factor on every output: 1 / output_scale where the output is quantised (semantics §4.5).
__device__ __forceinline__ float output_factor(const AttendParams& params) {
  return params.output_scale > 0.0f ? 1.0f / params.output_scale : 1.0f;
}

/// LSE of a row, natural units, where the caller of the operation wants it.
__device__ __forceinline__ void store_lse(const AttendParams& params, const RowTile& tile, int row,
                                          float lse) {
  if (params.lse == nullptr) return;
  params.lse[head_of(tile, row) * params.lse_stride + token_of(tile, row)] = lse;
}

}  // namespace attn
