// Every row of an attention output against attention in float64: the referee's own pass over a case
// on a GPU, where the reference of the host could only afford a sample of its rows.
//
// It is plain on purpose: scores, weights and sums in float64, keys and values as dense rows,
// visible keys as the intervals that the host worked out; nothing of the kernels that are judged,
// neither their masks nor their pages, is used. A CTA takes a tile of rows (tokens times the heads
// that share a KV head) and goes over tiles of keys with a running maximum. Where there are too few
// rows to fill the device, several CTAs share the keys of a tile of rows, and a second kernel
// merges their parts. Rows are compared where they are made: only a record of each comes back.
//
// Thread t has column t % 16 and row t / 16 of a grid that repeats over the tile, so that 16
// neighbouring threads hold one row and operands are read from shared memory without conflicts.
#pragma once

#include "kernels/common/numeric.cuh"
#include "kernels/params_measure.h"

namespace attn {

constexpr int kScreenDepth = 32;      // columns of Q and K in shared memory at a time
constexpr int kScreenValueKeys = 16;  // rows of V likewise

/// Config: int kRowsPerThread, int kColumnsPerThread (of V).
template <class Config>
struct ScreenTile {
  static constexpr int kRows = 16 * Config::kRowsPerThread;
  static constexpr int kColumns = 16 * Config::kColumnsPerThread;
  static constexpr int kRowStride = kRows + 1;
  static constexpr int kKeyStride = kScreenKeys + 1;
  static constexpr int kOperands = kScreenDepth * (kRowStride + kKeyStride);
  static_assert(kOperands >= kScreenValueKeys * kColumns);
};

template <class Config>
struct ScreenMemory {
  double operands[ScreenTile<Config>::kOperands];  // Q and K [depth, rows], or V [keys, columns]
  double weights[kScreenKeys * ScreenTile<Config>::kRowStride];  // [keys, rows]
  double value_squares[kScreenKeys];
  double states[3 * ScreenTile<Config>::kRows];  // largest score, sum, spread of finished rows
  i64 query_rows[ScreenTile<Config>::kRows];     // index of the first element; -1 = no row
  i64 key_rows[kScreenKeys];                     // row of keys and values; -1 = no key
};

ATTN_FN double screen_infinity() { return double{float_from_bits(0x7F800000u)}; }
ATTN_FN bool screen_is_finite(double x) { return x - x == 0.0; }

/// Half of the distance between the e4m3 code of value `x` and the next one.
ATTN_FN double screen_e4m3_half_step(double x) {
  const int exponent = static_cast<int>(float_bits(static_cast<float>(x)) >> 23 & 0xFFu) - 127;
  const u32 least = static_cast<u32>((exponent < -6 ? -6 : exponent) - 4 + 127);
  return double{float_from_bits(least << 23)};
}

template <Element kElement>
ATTN_FN double screen_number(const void* data, i64 at) {
  if constexpr (kElement == Element::kF32) return static_cast<const float*>(data)[at];
  if constexpr (kElement == Element::kF16) return f16_to_float(static_cast<const u16*>(data)[at]);
  if constexpr (kElement == Element::kBF16) {
    return bf16_to_float(static_cast<const u16*>(data)[at]);
  }
  if constexpr (kElement == Element::kE4M3) return e4m3_to_float(static_cast<const u8*>(data)[at]);
}

/// body.run<element>() for the element of a tensor: the choice stands outside of the loops, so that
/// their loads are under way together.
template <bool kIsOutput, class Body>
ATTN_FN void with_screen_element(Element element, const Body& body) {
  if (element == Element::kF32) return body.template run<Element::kF32>();
  if (element == Element::kF16) return body.template run<Element::kF16>();
  if constexpr (kIsOutput) {
    if (element == Element::kE4M3) return body.template run<Element::kE4M3>();
  }
  body.template run<Element::kBF16>();
}

/// Columns [first, first + kScreenDepth) of kRows rows, transposed: to[column * stride + row].
template <int kRows, int kStride>
struct ScreenLoadRows {
  double* to;
  const void* from;
  const i64* rows;
  i64 row_stride;
  i64 row_offset;
  int first;
  int end;

  template <Element kElement>
  __device__ __forceinline__ void run() const {
    constexpr int kRowsAtOnce = kScreenThreads / kScreenDepth;
    const int column = static_cast<int>(threadIdx.x) % kScreenDepth;
    double loaded[kRows / kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      const i64 row = rows[static_cast<int>(threadIdx.x) / kScreenDepth + i * kRowsAtOnce];
      const bool valid = row >= 0 && first + column < end;
      loaded[i] =
          valid ? screen_number<kElement>(from, row * row_stride + row_offset + first + column)
                : 0.0;
    }
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      to[column * kStride + static_cast<int>(threadIdx.x) / kScreenDepth + i * kRowsAtOnce] =
          loaded[i];
    }
  }
};

/// kScreenValueKeys rows of V: to[key * kColumns + column].
template <int kColumns>
struct ScreenLoadValues {
  double* to;
  const void* from;
  const i64* rows;
  i64 row_stride;
  i64 row_offset;  // of the first column
  int num_columns;

  template <Element kElement>
  __device__ __forceinline__ void run() const {
    constexpr int kKeysAtOnce = kScreenThreads / kColumns;
    const int column = static_cast<int>(threadIdx.x) % kColumns;
    double loaded[kScreenValueKeys / kKeysAtOnce];
#pragma unroll
    for (int i = 0; i < kScreenValueKeys / kKeysAtOnce; ++i) {
      const i64 row = rows[static_cast<int>(threadIdx.x) / kColumns + i * kKeysAtOnce];
      const bool valid = row >= 0 && column < num_columns;
      loaded[i] =
          valid ? screen_number<kElement>(from, row * row_stride + row_offset + column) : 0.0;
    }
#pragma unroll
    for (int i = 0; i < kScreenValueKeys / kKeysAtOnce; ++i) {
      to[(static_cast<int>(threadIdx.x) / kColumns + i * kKeysAtOnce) * kColumns + column] =
          loaded[i];
    }
  }
};

/// Sum or maximum over the 16 threads of a row; every one of them gets it.
__device__ __forceinline__ double screen_row_sum(double x) {
#pragma unroll
  for (int step = kScreenLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
__device__ __forceinline__ double screen_row_max(double x) {
#pragma unroll
  for (int step = kScreenLanes / 2; step > 0; step /= 2) {
    const double other = __shfl_xor_sync(~0u, x, step);
    x = other > x ? other : x;
  }
  return x;
}

/// What a thread knows of its rows: sums are of weights e^(score - most).
template <class Config>
struct ScreenRows {
  double most[Config::kRowsPerThread];
  double sum[Config::kRowsPerThread];     // of this thread's keys, until reduce()
  double spread[Config::kRowsPerThread];  // likewise
  double values[Config::kRowsPerThread][Config::kColumnsPerThread];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < Config::kRowsPerThread; ++i) {
      most[i] = -screen_infinity();
      sum[i] = spread[i] = 0.0;
#pragma unroll
      for (int c = 0; c < Config::kColumnsPerThread; ++c) values[i][c] = 0.0;
    }
  }

  /// e^(x - most), where nothing has been seen 0.
  static __device__ __forceinline__ double weight(double x, double most) {
    return exp(x - (most == -screen_infinity() ? 0.0 : most));
  }

  /// Goes over to a greater maximum.
  __device__ __forceinline__ void raise(int i, double new_most) {
    const double factor = weight(most[i], new_most);
    most[i] = new_most;
    sum[i] *= factor;
    spread[i] *= factor * factor;
#pragma unroll
    for (int c = 0; c < Config::kColumnsPerThread; ++c) values[i][c] *= factor;
  }
};

template <class Config>
class ScreenCta {
  using Tile = ScreenTile<Config>;
  using Memory = ScreenMemory<Config>;
  static constexpr int kR = Config::kRowsPerThread;
  static constexpr int kC = Config::kColumnsPerThread;
  static constexpr int kKeysPerThread = kScreenKeys / kScreenLanes;

 public:
  __device__ __forceinline__ ScreenCta(const ScreenParams& params, Memory& memory)
      : p_(params),
        item_(params.items[blockIdx.x]),
        memory_(memory),
        lane_(static_cast<int>(threadIdx.x) % kScreenLanes),
        line_(static_cast<int>(threadIdx.x) / kScreenLanes),
        group_(params.num_heads / params.num_kv_heads) {}

  __device__ __forceinline__ void attend() {
    rows_.clear();
    if (static_cast<int>(threadIdx.x) < Tile::kRows) {
      const int row = static_cast<int>(threadIdx.x);
      memory_.query_rows[row] =
          row < item_.num_rows ? token_of(row) * p_.num_heads + head_of(row) : -1;
    }
    for (int key = item_.key_begin; key < item_.key_end; key += kScreenKeys) attend_tile(key);
    reduce();
    if (item_.partial < 0) {
      compare();
    } else {
      save();
    }
  }

  /// Of an item with partial results.
  __device__ __forceinline__ void merge() {
    rows_.clear();
    for (int split = 0; split < item_.num_splits; ++split) add_partial(item_.partial + split);
    compare();
  }

 private:
  __device__ __forceinline__ i64 token_of(int row) const {
    return item_.first_token + (item_.first_row + row) / group_;
  }
  __device__ __forceinline__ int head_of(int row) const {
    return item_.kv_head * group_ + (item_.first_row + row) % group_;
  }
  __device__ __forceinline__ int row_of(int i) const { return line_ + 16 * i; }

  __device__ __forceinline__ void attend_tile(int first_key) {
    __syncthreads();
    bool careful = false;
    if (static_cast<int>(threadIdx.x) < kScreenKeys) {
      const int key = first_key + static_cast<int>(threadIdx.x);
      const i64 row =
          key < item_.key_end ? (item_.first_key + key) * p_.num_kv_heads + item_.kv_head : -1;
      const double squares = row < 0 ? 0.0 : p_.value_squares[row * p_.num_chunks + item_.chunk];
      memory_.key_rows[threadIdx.x] = row;
      careful = squares < 0.0;
      memory_.value_squares[threadIdx.x] = careful ? -1.0 - squares : squares;
    }
    // Why: 0 * NaN of a key that is masked must not reach a row.
    careful = __syncthreads_or(careful ? 1 : 0) != 0;
    double scores[kR][kKeysPerThread];
    score(scores);
    weigh(first_key, scores);
    if (careful) {
      add_values<true>();
    } else {
      add_values<false>();
    }
  }

  __device__ __forceinline__ void score(double (&scores)[kR][kKeysPerThread]) {
#pragma unroll
    for (int i = 0; i < kR; ++i) {
#pragma unroll
      for (int j = 0; j < kKeysPerThread; ++j) scores[i][j] = 0.0;
    }
    double* const queries = memory_.operands;
    double* const keys = memory_.operands + kScreenDepth * Tile::kRowStride;
    for (int first = 0; first < p_.head_size; first += kScreenDepth) {
      __syncthreads();
      with_screen_element<false>(p_.query_element, ScreenLoadRows<Tile::kRows, Tile::kRowStride>{
                                                       queries, p_.query, memory_.query_rows,
                                                       p_.head_size, 0, first, p_.head_size});
      with_screen_element<false>(p_.key_element, ScreenLoadRows<kScreenKeys, Tile::kKeyStride>{
                                                     keys, p_.key, memory_.key_rows, p_.head_size,
                                                     0, first, p_.head_size});
      __syncthreads();
#pragma unroll 4
      for (int d = 0; d < kScreenDepth; ++d) {
        double q[kR];
        double k[kKeysPerThread];
#pragma unroll
        for (int i = 0; i < kR; ++i) q[i] = queries[d * Tile::kRowStride + row_of(i)];
#pragma unroll
        for (int j = 0; j < kKeysPerThread; ++j) {
          k[j] = keys[d * Tile::kKeyStride + lane_ + kScreenLanes * j];
        }
#pragma unroll
        for (int i = 0; i < kR; ++i) {
#pragma unroll
          for (int j = 0; j < kKeysPerThread; ++j) scores[i][j] += q[i] * k[j];
        }
      }
    }
  }

  __device__ __forceinline__ double biased(double product, int head, int position, int key) const {
    double score = product;
    if (p_.soft_cap > 0.0) score = p_.soft_cap * tanh(score / p_.soft_cap);
    if (p_.alibi == Alibi::kNone) return score;
    const double slope = p_.alibi_slopes[head];
    const int distance = position - key;
    switch (p_.alibi) {
      case Alibi::kKeyIndex:
        return score + slope * key;
      case Alibi::kContextRelative:
        return score + slope * (key - (item_.seq_len - item_.query_len));
      case Alibi::kDistance:
        return score - slope * (distance < 0 ? -distance : distance);
      default:
        return score - slope * sqrt(static_cast<double>(distance > 0 ? distance : 0));
    }
  }

  /// Soft-cap and bias, which few cases have: through shared memory, for the sake of a loop.
  __device__ __forceinline__ void transform(int first_key, double (&scores)[kR][kKeysPerThread]) {
    const auto place = [&](int i, int j) -> double& {
      return memory_.weights[(lane_ + kScreenLanes * j) * Tile::kRowStride + row_of(i)];
    };
#pragma unroll
    for (int i = 0; i < kR; ++i) {
#pragma unroll
      for (int j = 0; j < kKeysPerThread; ++j) place(i, j) = scores[i][j];
    }
#pragma unroll 1
    for (int at = 0; at < kR * kKeysPerThread; ++at) {
      const int row = row_of(at / kKeysPerThread);
      if (row >= item_.num_rows) continue;
      const int position =
          static_cast<int>(token_of(row)) - item_.first_token + item_.seq_len - item_.query_len;
      const int j = at % kKeysPerThread;
      double& score = place(at / kKeysPerThread, j);
      score = biased(score, head_of(row), position, first_key + lane_ + kScreenLanes * j);
    }
#pragma unroll
    for (int i = 0; i < kR; ++i) {
#pragma unroll
      for (int j = 0; j < kKeysPerThread; ++j) scores[i][j] = place(i, j);
    }
  }

  /// Scores to weights, in shared memory for all threads.
  __device__ __forceinline__ void weigh(int first_key, double (&scores)[kR][kKeysPerThread]) {
#pragma unroll
    for (int i = 0; i < kR; ++i) {
#pragma unroll
      for (int j = 0; j < kKeysPerThread; ++j) scores[i][j] *= p_.softmax_scale;
    }
    if (p_.soft_cap > 0.0 || p_.alibi != Alibi::kNone) transform(first_key, scores);
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      const bool valid = row_of(i) < item_.num_rows;
      const i64 token = valid ? token_of(row_of(i)) : 0;
      const int begin = valid ? p_.visible_begin[token] : 0;
      const int end = valid ? smaller_of(p_.visible_end[token], item_.key_end) : 0;
      double most = rows_.most[i];
#pragma unroll
      for (int j = 0; j < kKeysPerThread; ++j) {
        const int key = first_key + lane_ + kScreenLanes * j;
        const bool visible = key >= begin && key < end;
        scores[i][j] = visible ? scores[i][j] : -screen_infinity();
        most = scores[i][j] > most ? scores[i][j] : most;
      }
      rows_.raise(i, screen_row_max(most));
#pragma unroll
      for (int j = 0; j < kKeysPerThread; ++j) {
        const double weight = ScreenRows<Config>::weight(scores[i][j], rows_.most[i]);
        const int key = lane_ + kScreenLanes * j;
        rows_.sum[i] += weight;
        rows_.spread[i] += weight == 0.0 ? 0.0 : weight * weight * memory_.value_squares[key];
        memory_.weights[key * Tile::kRowStride + row_of(i)] = weight;
      }
    }
  }

  static __device__ __forceinline__ int smaller_of(int a, int b) { return a < b ? a : b; }

  template <bool kCareful>
  __device__ __forceinline__ void add_values() {
    const int first_column = item_.chunk * Tile::kColumns;
    for (int first = 0; first < kScreenKeys; first += kScreenValueKeys) {
      __syncthreads();
      with_screen_element<false>(p_.value_element,
                                 ScreenLoadValues<Tile::kColumns>{
                                     memory_.operands, p_.value, memory_.key_rows + first,
                                     p_.v_head_size, first_column, p_.v_head_size - first_column});
      __syncthreads();
#pragma unroll 4
      for (int key = 0; key < kScreenValueKeys; ++key) {
        double v[kC];
#pragma unroll
        for (int c = 0; c < kC; ++c) v[c] = memory_.operands[key * Tile::kColumns + lane_ + 16 * c];
#pragma unroll
        for (int i = 0; i < kR; ++i) {
          const double weight = memory_.weights[(first + key) * Tile::kRowStride + row_of(i)];
#pragma unroll
          for (int c = 0; c < kC; ++c) {
            if (!kCareful || weight != 0.0) rows_.values[i][c] += weight * v[c];
          }
        }
      }
    }
  }

  __device__ __forceinline__ void reduce() {
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      rows_.sum[i] = screen_row_sum(rows_.sum[i]);
      rows_.spread[i] = screen_row_sum(rows_.spread[i]);
    }
  }

  __device__ __forceinline__ i64 partial_row(int partial, int i) const {
    return i64{partial} * Tile::kRows + row_of(i);
  }

  __device__ __forceinline__ void save() {
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      const i64 row = partial_row(item_.partial, i);
      if (lane_ == 0) {
        p_.partial_states[3 * row] = rows_.most[i];
        p_.partial_states[3 * row + 1] = rows_.sum[i];
        p_.partial_states[3 * row + 2] = rows_.spread[i];
      }
#pragma unroll
      for (int c = 0; c < kC; ++c) {
        p_.partial_sums[row * Tile::kColumns + lane_ + 16 * c] = rows_.values[i][c];
      }
    }
  }

  __device__ __forceinline__ void add_partial(int partial) {
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      const i64 row = partial_row(partial, i);
      const double most = p_.partial_states[3 * row];
      if (most > rows_.most[i]) rows_.raise(i, most);
      const double factor = ScreenRows<Config>::weight(most, rows_.most[i]);
      rows_.sum[i] += factor * p_.partial_states[3 * row + 1];
      rows_.spread[i] += factor * factor * p_.partial_states[3 * row + 2];
#pragma unroll
      for (int c = 0; c < kC; ++c) {
        rows_.values[i][c] += factor * p_.partial_sums[row * Tile::kColumns + lane_ + 16 * c];
      }
    }
  }

  /// The sink is one more score, with the value 0.
  __device__ __forceinline__ void add_sink(int i, int head) {
    if (p_.sinks == nullptr) return;
    const double sink = p_.sinks[head];
    if (sink == -screen_infinity()) return;
    if (sink == screen_infinity()) {
      rows_.most[i] = sink;
      rows_.sum[i] = 1.0;
      rows_.spread[i] = 0.0;
#pragma unroll
      for (int c = 0; c < kC; ++c) rows_.values[i][c] = 0.0;
      return;
    }
    if (sink > rows_.most[i]) rows_.raise(i, sink);
    rows_.sum[i] += ScreenRows<Config>::weight(sink, rows_.most[i]);
  }

  /// Rows are complete. They go through shared memory, so that what follows is a loop and not as
  /// many copies of it as a thread has rows and columns.
  __device__ __forceinline__ void compare() {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      add_sink(i, row_of(i) < item_.num_rows ? head_of(row_of(i)) : 0);
      double* const state = memory_.states + 3 * row_of(i);
      if (lane_ == 0) {
        state[0] = rows_.most[i];
        state[1] = rows_.sum[i];
        state[2] = rows_.spread[i];
      }
#pragma unroll
      for (int c = 0; c < kC; ++c) finished(row_of(i))[lane_ + 16 * c] = rows_.values[i][c];
    }
    __syncthreads();
    with_screen_element<true>(p_.output_element, CompareRows{*this});
  }

  /// The columns of a row in shared memory, over operands and weights.
  __device__ __forceinline__ double* finished(int row) const {
    static_assert(sizeof(memory_.operands) + sizeof(memory_.weights) >=
                  sizeof(double) * Tile::kRows * Tile::kColumns);
    return memory_.operands + row * Tile::kColumns;
  }

  struct CompareRows {
    const ScreenCta& cta;

    template <Element kElement>
    __device__ __forceinline__ void run() const {
#pragma unroll 1
      for (int row = cta.line_; row < Tile::kRows; row += 16)
        cta.template compare_row<kElement>(row);
    }
  };

  struct RowErrors {
    double error_squares = 0.0;
    double reference_squares = 0.0;
    double largest_error = 0.0;
    double misplaced = 0.0;
  };

  template <Element kElement>
  __device__ __forceinline__ void compare_row(int row) const {
    const bool valid = row < item_.num_rows;
    const i64 token = valid ? token_of(row) : 0;
    const int head = valid ? head_of(row) : 0;
    const i64 first = (token * p_.num_heads + head) * p_.v_head_size;
    const double* const state = memory_.states + 3 * row;
    RowErrors errors;
    if (valid) {
#pragma unroll 1
      for (int c = lane_; c < Tile::kColumns; c += kScreenLanes) {
        const int column = item_.chunk * Tile::kColumns + c;
        if (column >= p_.v_head_size) break;
        const double actual = screen_number<kElement>(p_.output, first + column) * p_.output_scale;
        add_error(actual, state[1] == 0.0 ? 0.0 : finished(row)[c] / state[1], errors);
      }
    }
    ScreenRecord record;
    record.error_squares = screen_row_sum(errors.error_squares);
    record.reference_squares = screen_row_sum(errors.reference_squares);
    record.spread_squares = state[1] == 0.0 ? 0.0 : state[2] / (state[1] * state[1]);
    record.largest_error = screen_row_max(errors.largest_error);
    record.lse = state[1] == 0.0 ? -screen_infinity() : state[0] + log(state[1]);
    record.misplaced = static_cast<i64>(screen_row_sum(errors.misplaced));
    if (valid && lane_ == 0) {
      p_.records[(token * p_.num_heads + head) * p_.num_chunks + item_.chunk] = record;
    }
  }

  __device__ __forceinline__ void add_error(double actual, double expected,
                                            RowErrors& errors) const {
    if (expected > p_.output_limit || expected < -p_.output_limit) {
      // What the type cannot hold is its limit or an infinity; values between the largest one and
      // where rounding goes over to infinity may be either.
      if (p_.output_saturates != 0) {
        expected = expected < 0.0 ? -p_.output_limit : p_.output_limit;
      } else if (screen_is_finite(expected) && !screen_is_finite(actual) && actual == actual &&
                 (actual < 0.0) == (expected < 0.0)) {
        return;
      }
    }
    if (!screen_is_finite(actual) || !screen_is_finite(expected)) {
      const bool both_nan = actual != actual && expected != expected;
      if (!both_nan && actual != expected) errors.misplaced += 1.0;
      return;
    }
    const double error = actual - expected;
    double size = error < 0.0 ? -error : error;
    if (p_.output_saturates != 0) {
      size -= p_.output_scale * screen_e4m3_half_step(actual / p_.output_scale);
      size = size > 0.0 ? size : 0.0;
    }
    errors.error_squares += size * size;
    errors.reference_squares += expected * expected;
    errors.largest_error = size > errors.largest_error ? size : errors.largest_error;
  }

  const ScreenParams& p_;
  const ScreenItem item_;
  Memory& memory_;
  const int lane_;
  const int line_;
  const int group_;
  ScreenRows<Config> rows_;
};

/// Config: as ScreenTile. Grid: an item each; CTA: kScreenThreads; dynamic shared memory:
/// ScreenMemory<Config>. Needs value_squares of all keys.
template <class Config>
__global__ void __launch_bounds__(kScreenThreads, 1)
    screen_attention(const __grid_constant__ ScreenParams params) {
  extern __shared__ double screen_memory[];
  ScreenCta<Config>(params, *reinterpret_cast<ScreenMemory<Config>*>(screen_memory)).attend();
}

/// The same for what screen_attention() left in parts: an item for each of them.
template <class Config>
__global__ void __launch_bounds__(kScreenThreads)
    screen_merge(const __grid_constant__ ScreenParams params) {
  extern __shared__ double screen_memory[];
  ScreenCta<Config>(params, *reinterpret_cast<ScreenMemory<Config>*>(screen_memory)).merge();
}

template <class Config>
struct ScreenValueSquares {
  const ScreenParams& p;
  i64 at;  // (key * Hk + head) * chunks + chunk

  template <Element kElement>
  __device__ __forceinline__ void run() const {
    constexpr int kColumns = ScreenTile<Config>::kColumns;
    const int first = static_cast<int>(at % p.num_chunks) * kColumns;
    double sum = 0.0;
    bool is_finite = true;
#pragma unroll 8
    for (int c = 0; c < kColumns; ++c) {
      const int column = first + c;
      if (column >= p.v_head_size) continue;
      const double v = screen_number<kElement>(p.value, at / p.num_chunks * p.v_head_size + column);
      is_finite = is_finite && screen_is_finite(v);
      if (screen_is_finite(v)) sum += v * v;
    }
    p.value_squares[at] = is_finite ? sum : -1.0 - sum;
  }
};

/// Fills value_squares. Config: as ScreenTile. Grid: one thread each; CTA: kScreenThreads.
template <class Config>
__global__ void __launch_bounds__(kScreenThreads)
    screen_value_squares(const __grid_constant__ ScreenParams params) {
  const i64 at = i64{blockIdx.x} * kScreenThreads + threadIdx.x;
  if (at >= params.num_keys * params.num_kv_heads * params.num_chunks) return;
  with_screen_element<false>(params.value_element, ScreenValueSquares<Config>{params, at});
}

}  // namespace attn
