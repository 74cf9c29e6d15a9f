// Working memory of one CPU thread: a block of query rows, one tile of keys and values, and the
// running softmax state. Sized once per operation, so the inner loops never allocate, and kept from
// operation to operation, so a timed run allocates nothing at all.
//
// Every operation may find anything in it: nothing here is state between operations. Operations
// other than attention use single arrays as plain buffers.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/tensor.h"

namespace attnbench::cpu {

/// Query rows of one block; a row is a (token, head) pair that shares the KV head.
inline constexpr int kRowTile = 128;
/// Keys of one tile. Why 128: K, V and S tiles of D 128 fit a 1 MiB L2 cache together.
inline constexpr int kKeyTile = 128;
/// Blocks of at most this many rows take the dot-product path instead of matrix products.
inline constexpr int kMaxSmallRows = 8;
/// Row arrays are padded to a multiple of this, one vector register of floats.
inline constexpr int kLanes = 16;
/// The score of a masked key, and the log-sum-exp of a row that sees no key.
inline constexpr float kNegInf = -std::numeric_limits<float>::infinity();

using FloatArray = std::vector<float, AlignedAllocator<float>>;
using IntArray = std::vector<std::int32_t, AlignedAllocator<std::int32_t>>;
/// Value of every code of a one-byte element type, scales and rounding included where the reader
/// wants.
using CodeTable = std::array<float, 256>;

/// For each row of a block, one run [begin, end) of keys that it may see.
struct KeyInterval {
  IntArray begin;  // [kRowTile]
  IntArray end;    // [kRowTile]
};

struct Scratch {
  FloatArray query;    // small blocks [rows, D]; others [D, row_stride]; softmax_scale included
                       // unless int8
  FloatArray key;      // [kKeyTile, D]
  FloatArray value;    // [kKeyTile, Dv]
  FloatArray scores;   // [kKeyTile, row_stride]: S, then P
  FloatArray output;   // sum of P V: small blocks [rows, Dv]; others [Dv, row_stride]
  FloatArray row_max;  // [row_stride] m, less `shift`
  FloatArray row_sum;  // [row_stride] l
  FloatArray tile_max;
  FloatArray tile_sum;
  FloatArray rescale;
  FloatArray line;       // [max(D, Dv)] one row in transit
  IntArray position;     // [row_stride] p of every row
  FloatArray slope;      // [row_stride] ALiBi slope of every row
  FloatArray shift;      // [row_stride] what scores and row_max are taken less (load_rows)
  FloatArray row_scale;  // [row_stride] int8: query scale of every row
  CodeTable key_codes;
  CodeTable value_codes;
  const float* channel_scale = nullptr;  // [Dv] int8: multiplies the normalised output; or null
  std::vector<KeyInterval> intervals;    // causal rule and window, then mm_prefix ranges
  int num_intervals = 0;
  int num_rows = 0;
  int row_stride = 0;
  int first_key_index = 0;  // GlobalPositions::first_keys of the request
  bool small = false;

  /// Room for attention with these head sizes and so many bidirectional ranges. Only grows.
  void reserve(int head_size, int v_head_size, int num_ranges);
  /// Sum of P V of one element, before the division by the row sum.
  float output_at(int row, int dim, int v_head_size) const {
    return small ? output[static_cast<std::size_t>(row) * static_cast<std::size_t>(v_head_size) +
                          static_cast<std::size_t>(dim)]
                 : output[static_cast<std::size_t>(dim) * static_cast<std::size_t>(row_stride) +
                          static_cast<std::size_t>(row)];
  }
};

}  // namespace attnbench::cpu
