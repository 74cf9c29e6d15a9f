// Every row of an attention output against attention in float64: the referee's own pass over a case
// on a GPU, where the reference of the host could only afford a sample of its rows.
//
// It is plain on purpose: scores, weights and sums in float64, keys and values as dense rows,
// visible keys as the intervals that the host worked out; nothing of the kernels that are judged,
// neither their masks nor their pages, is used. A CTA takes a tile of rows (tokens times the heads
// that share a KV head) and goes over tiles of keys with a running maximum. Where there are too few
// rows to fill the device, several CTAs share the keys of a tile of rows, and a second kernel
// merges their parts. Rows are written for a comparison of their own, with each output that is to
// be them (screen_rows.cuh), those of latent attention after they are projected
// (screen_latent.cuh); where there is no memory for them, they are compared where they are made,
// and only a record of each comes back.
#pragma once

#include "kernels/measure/screen_compare.cuh"

namespace attn {

/// Config: int kRowsPerThread, int kColumnsPerThread (of V), bool kWritesRows; to attend also
/// unsigned kElements, the types of query, key and value.
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
  i64 query_rows[ScreenTile<Config>::kRows];     // token * H + head; -1 = no row
  i64 key_rows[kScreenKeys];                     // row of keys and values; -1 = no key
};

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
        line_(static_cast<int>(threadIdx.x) / kScreenLanes) {}

  __device__ __forceinline__ void attend() {
    rows_.clear();
    if (static_cast<int>(threadIdx.x) < Tile::kRows) {
      const int row = static_cast<int>(threadIdx.x);
      memory_.query_rows[row] = row < item_.num_rows ? place_of(row) : -1;
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
    return item_.first_token + (item_.first_row + row) / p_.group;
  }
  __device__ __forceinline__ int head_of(int row) const {
    return p_.first_head + item_.kv_head * p_.group + (item_.first_row + row) % p_.group;
  }
  /// Among the rows of query, output and records.
  __device__ __forceinline__ i64 place_of(int row) const {
    return token_of(row) * p_.num_heads + head_of(row);
  }
  __device__ __forceinline__ int row_of(int i) const { return line_ + 16 * i; }

  __device__ __forceinline__ i64 row_of_key(i64 key) const {
    return p_.key_index == nullptr ? key : p_.key_index[key];
  }

  __device__ __forceinline__ void attend_tile(int first_key) {
    __syncthreads();
    bool careful = false;
    if (static_cast<int>(threadIdx.x) < kScreenKeys) {
      const int key = first_key + static_cast<int>(threadIdx.x);
      const i64 row = key < item_.key_end ? row_of_key(item_.first_key + key) : -1;
      const i64 head_row = row * p_.num_kv_heads + item_.kv_head;
      const double squares =
          row < 0 ? 0.0 : p_.value_squares[head_row * p_.num_chunks + item_.chunk];
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
    // One loop for both parts, so that its unrolled body is there once.
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      add_products(part == 0 ? p_.query : p_.query_rope, part == 0 ? p_.key : p_.key_rope, scores);
    }
  }

  __device__ __forceinline__ void add_products(const ScreenOperand& query, const ScreenOperand& key,
                                               double (&scores)[kR][kKeysPerThread]) {
    double* const queries = memory_.operands;
    double* const keys = memory_.operands + kScreenDepth * Tile::kRowStride;
#pragma unroll 1
    for (int first = 0; first < query.width; first += kScreenDepth) {
      __syncthreads();
      with_screen_element<Config::kElements>(query.element,
                                             ScreenLoadRows<Tile::kRows, Tile::kRowStride>{
                                                 queries, query, memory_.query_rows, 0, first});
      with_screen_element<Config::kElements>(
          key.element, ScreenLoadRows<kScreenKeys, Tile::kKeyStride>{keys, key, memory_.key_rows,
                                                                     item_.kv_head, first});
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
      with_screen_element<Config::kElements>(
          p_.value.element,
          ScreenLoadValues<Tile::kColumns>{memory_.operands, p_.value, memory_.key_rows + first,
                                           item_.kv_head, first_column});
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
    if constexpr (Config::kWritesRows) {
#pragma unroll 1
      for (int row = line_; row < Tile::kRows; row += 16) write_row(row);
    } else {
      with_screen_element<kScreenOutputElements>(p_.output.element, CompareRows{*this});
    }
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

  /// Of the attention, and 0 for a row that sees nothing.
  __device__ __forceinline__ double expected(int row, int column) const {
    const double sum = memory_.states[3 * row + 1];
    return sum == 0.0 ? 0.0 : finished(row)[column] / sum;
  }
  __device__ __forceinline__ int end_column() const {
    return smaller_of(Tile::kColumns, p_.v_head_size - item_.chunk * Tile::kColumns);
  }

  template <Element kElement>
  __device__ __forceinline__ void compare_row(int row) const {
    const bool valid = row < item_.num_rows;
    const i64 first = (valid ? place_of(row) : 0) * p_.v_head_size + item_.chunk * Tile::kColumns;
    ScreenErrors errors;
#pragma unroll 1
    for (int c = lane_; valid && c < end_column(); c += kScreenLanes) {
      const double stored = screen_number<kElement>(p_.output.data, first + c);
      errors.add(p_.output, stored * p_.output.scale, expected(row, c));
    }
    leave_record(row, errors);
  }

  /// What it is compared with is found later: its size is all that is known of it.
  __device__ __forceinline__ void write_row(int row) const {
    const bool valid = row < item_.num_rows;
    const i64 first = ((valid ? place_of(row) : 0) - p_.first_row) * p_.v_head_size +
                      item_.chunk * Tile::kColumns;
    ScreenErrors sizes;
#pragma unroll 1
    for (int c = lane_; valid && c < end_column(); c += kScreenLanes) {
      const double x = expected(row, c);
      p_.rows[first + c] = x;
      if (screen_is_finite(x)) sizes.reference_squares += x * x;
    }
    leave_record(row, sizes);
  }

  __device__ __forceinline__ void leave_record(int row, const ScreenErrors& errors) const {
    const double* const state = memory_.states + 3 * row;
    ScreenRecord record = errors.record();
    record.spread_squares = state[1] == 0.0 ? 0.0 : state[2] / (state[1] * state[1]);
    record.lse = state[1] == 0.0 ? -screen_infinity() : state[0] + log(state[1]);
    if (row < item_.num_rows && lane_ == 0) {
      p_.records[place_of(row) * p_.num_chunks + item_.chunk] = record;
    }
  }

  const ScreenParams& p_;
  const ScreenItem item_;
  Memory& memory_;
  const int lane_;
  const int line_;
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
__global__ void __launch_bounds__(kScreenThreads, 1)
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
    constexpr int kColumns = 16 * Config::kColumnsPerThread;
    const int first = static_cast<int>(at % p.num_chunks) * kColumns;
    const i64 row = at / p.num_chunks;
    const i64 place = p.value.first + row / p.num_kv_heads * p.value.row_stride +
                      row % p.num_kv_heads * p.value.head_stride;
    double sum = 0.0;
    bool is_finite = true;
#pragma unroll 8
    for (int c = 0; c < kColumns; ++c) {
      const int column = first + c;
      if (column >= p.v_head_size) continue;
      const double v = screen_number<kElement>(p.value.data, place + column);
      is_finite = is_finite && screen_is_finite(v);
      if (screen_is_finite(v)) sum += v * v;
    }
    p.value_squares[at] = is_finite ? sum : -1.0 - sum;
  }
};

/// Fills value_squares. Config: int kColumnsPerThread, unsigned kElements. Grid: one thread each;
/// CTA: kScreenThreads.
template <class Config>
__global__ void __launch_bounds__(kScreenThreads, 1)
    screen_value_squares(const __grid_constant__ ScreenParams params) {
  const i64 at = i64{blockIdx.x} * kScreenThreads + threadIdx.x;
  if (at >= params.num_keys * params.num_kv_heads * params.num_chunks) return;
  with_screen_element<Config::kElements>(params.value.element,
                                         ScreenValueSquares<Config>{params, at});
}

}  // namespace attn
