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
#include "kernels/ptx/mma_double.cuh"

namespace attn {

/// Config: int kRows, int kColumns (of V), bool kWritesRows; to attend also unsigned kElements, the
/// types of query, key and value. A warp has eight rows; where those are fewer than the warps have,
/// groups of warps share the keys of a tile, each with a running maximum of its own.
template <class Config>
struct ScreenTile {
  static constexpr int kRows = Config::kRows;
  static constexpr int kColumns = Config::kColumns;
  static constexpr int kRowTiles = kRows / 8;
  static constexpr int kGroups = kScreenThreads / 32 / kRowTiles;
  static constexpr int kKeys = kScreenKeys / kGroups;            // of a group
  static constexpr int kValueKeys = kScreenValueKeys * kGroups;  // in shared memory at a time
  static_assert(kGroups == 1 || kKeys == kScreenValueKeys);
  // Rows begin four banks of 8 bytes apart, so that a fragment is read without conflicts.
  static constexpr int kDepthStride = kScreenDepth + 4;
  static constexpr int kValueStride = kColumns + 4;
  static constexpr int kWeightStride = kScreenKeys + 4;
  static constexpr int kProducts = (kRows + kScreenKeys) * kDepthStride;
  static constexpr int kValues = kValueKeys * kValueStride;
  static constexpr int kOperands = kProducts > kValues ? kProducts : kValues;
};

template <class Config>
struct ScreenMemory {
  double operands[ScreenTile<Config>::kOperands];  // Q and K [rows, depth], or V [keys, columns]
  double weights[ScreenTile<Config>::kRows * ScreenTile<Config>::kWeightStride];  // [rows, keys]
  double value_squares[kScreenKeys];
  double states[3 * ScreenTile<Config>::kRows];  // largest score, sum, spread of finished rows
  i64 query_rows[ScreenTile<Config>::kRows];     // token * H + head; -1 = no row
  i64 key_rows[kScreenKeys];                     // row of keys and values; -1 = no key
};

/// What a thread knows of its row: sums are of weights e^(score - most).
template <class Config>
struct ScreenRow {
  static constexpr int kTiles = ScreenTile<Config>::kColumns / 8;
  double most;
  double sum;     // of this thread's keys, until reduce()
  double spread;  // likewise
  double values[kTiles][2];

  __device__ __forceinline__ void clear() {
    most = -screen_infinity();
    sum = spread = 0.0;
    clear_values();
  }
  __device__ __forceinline__ void clear_values() {
#pragma unroll
    for (int c = 0; c < kTiles; ++c) values[c][0] = values[c][1] = 0.0;
  }

  /// e^(x - most), where nothing has been seen 0.
  static __device__ __forceinline__ double weight(double x, double most) {
    return exp(x - (most == -screen_infinity() ? 0.0 : most));
  }

  /// Goes over to a greater maximum.
  __device__ __forceinline__ void raise(double new_most) {
    const double factor = weight(most, new_most);
    most = new_most;
    sum *= factor;
    spread *= factor * factor;
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) values[c][i] *= factor;
    }
  }
};

template <class Config>
class ScreenCta {
  using Tile = ScreenTile<Config>;
  using Memory = ScreenMemory<Config>;
  static constexpr int kKeyTiles = Tile::kKeys / 8;
  static constexpr int kColumnTiles = Tile::kColumns / 8;

 public:
  __device__ __forceinline__ ScreenCta(const ScreenParams& params, Memory& memory)
      : p_(params),
        item_(params.items[blockIdx.x]),
        memory_(memory),
        quad_(static_cast<int>(threadIdx.x) % 32 / 4),
        lane_(static_cast<int>(threadIdx.x) % 4),
        row_(static_cast<int>(threadIdx.x) / 32 % Tile::kRowTiles * 8 + quad_),
        group_(static_cast<int>(threadIdx.x) / 32 / Tile::kRowTiles) {}

  __device__ __forceinline__ void attend() {
    mine_.clear();
    if (static_cast<int>(threadIdx.x) < Tile::kRows) {
      const int row = static_cast<int>(threadIdx.x);
      memory_.query_rows[row] = row < item_.num_rows ? place_of(row) : -1;
    }
    for (int key = item_.key_begin; key < item_.key_end; key += kScreenKeys) attend_tile(key);
    mine_.sum = sum_of_quad(mine_.sum);
    mine_.spread = sum_of_quad(mine_.spread);
    join_groups();
    if (item_.partial < 0) {
      compare();
    } else if (group_ == 0) {
      const i64 row = i64{item_.partial} * Tile::kRows + row_;
      leave(p_.partial_states + 3 * row, p_.partial_sums + row * Tile::kColumns);
    }
  }

  /// Of an item with partial results.
  __device__ __forceinline__ void merge() {
    mine_.clear();
    for (int split = 0; split < item_.num_splits; ++split) {
      const i64 row = i64{item_.partial + split} * Tile::kRows + row_;
      add(p_.partial_states + 3 * row, p_.partial_sums + row * Tile::kColumns);
    }
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
  /// Key `at` of this thread in a tile, where a thread has two of each eight.
  __device__ __forceinline__ int key_of(int at) const {
    return group_ * Tile::kKeys + at / 2 * 8 + 2 * lane_ + at % 2;
  }
  __device__ __forceinline__ double& weight_of(int key) const {
    return memory_.weights[row_ * Tile::kWeightStride + key];
  }

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
    double scores[kKeyTiles][2];
    score(scores);
    weigh(first_key, scores);
    add_values(careful);
  }

  __device__ __forceinline__ void score(double (&scores)[kKeyTiles][2]) {
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) scores[j][0] = scores[j][1] = 0.0;
      // One loop for both parts, so that its unrolled body is there once.
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      add_products(part == 0 ? p_.query : p_.query_rope, part == 0 ? p_.key : p_.key_rope, scores);
    }
  }

  __device__ __forceinline__ void add_products(const ScreenOperand& query, const ScreenOperand& key,
                                               double (&scores)[kKeyTiles][2]) {
    double* const queries = memory_.operands;
    double* const keys = memory_.operands + Tile::kRows * Tile::kDepthStride;
#pragma unroll 1
    for (int first = 0; first < query.width; first += kScreenDepth) {
      __syncthreads();
      with_screen_element<Config::kElements>(query.element,
                                             ScreenLoadRows<Tile::kRows, Tile::kDepthStride>{
                                                 queries, query, memory_.query_rows, 0, first});
      with_screen_element<Config::kElements>(
          key.element, ScreenLoadRows<kScreenKeys, Tile::kDepthStride>{keys, key, memory_.key_rows,
                                                                       item_.kv_head, first});
      __syncthreads();
#pragma unroll 2
      for (int d = 0; d < kScreenDepth; d += 4) {
        double k[kKeyTiles];
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j) {
          k[j] = keys[(group_ * Tile::kKeys + 8 * j + quad_) * Tile::kDepthStride + d + lane_];
        }
        multiply_add_double(scores, queries[row_ * Tile::kDepthStride + d + lane_], k);
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
  __device__ __forceinline__ void transform(int first_key, double (&scores)[kKeyTiles][2]) {
#pragma unroll
    for (int at = 0; at < 2 * kKeyTiles; ++at) weight_of(key_of(at)) = scores[at / 2][at % 2];
    if (row_ < item_.num_rows) {
      const int position =
          static_cast<int>(token_of(row_)) - item_.first_token + item_.seq_len - item_.query_len;
#pragma unroll 1
      for (int at = 0; at < 2 * kKeyTiles; ++at) {
        double& score = weight_of(key_of(at));
        score = biased(score, head_of(row_), position, first_key + key_of(at));
      }
    }
#pragma unroll
    for (int at = 0; at < 2 * kKeyTiles; ++at) scores[at / 2][at % 2] = weight_of(key_of(at));
  }

  /// Scores to weights, in shared memory for the whole warp.
  __device__ __forceinline__ void weigh(int first_key, double (&scores)[kKeyTiles][2]) {
#pragma unroll
    for (int at = 0; at < 2 * kKeyTiles; ++at) scores[at / 2][at % 2] *= p_.softmax_scale;
    if (p_.soft_cap > 0.0 || p_.alibi != Alibi::kNone) transform(first_key, scores);
    const bool valid = row_ < item_.num_rows;
    const i64 token = valid ? token_of(row_) : 0;
    const int begin = valid ? p_.visible_begin[token] : 0;
    const int end = valid ? smaller_of(p_.visible_end[token], item_.key_end) : 0;
    double most = mine_.most;
#pragma unroll
    for (int at = 0; at < 2 * kKeyTiles; ++at) {
      const int key = first_key + key_of(at);
      double& score = scores[at / 2][at % 2];
      score = key >= begin && key < end ? score : -screen_infinity();
      most = score > most ? score : most;
    }
    mine_.raise(most_of_quad(most));
#pragma unroll
    for (int at = 0; at < 2 * kKeyTiles; ++at) {
      const double weight = ScreenRow<Config>::weight(scores[at / 2][at % 2], mine_.most);
      const int key = key_of(at);
      mine_.sum += weight;
      mine_.spread += weight == 0.0 ? 0.0 : weight * weight * memory_.value_squares[key];
      weight_of(key) = weight;
    }
  }

  static __device__ __forceinline__ int smaller_of(int a, int b) { return a < b ? a : b; }

  __device__ __forceinline__ void add_values(bool careful) {
#pragma unroll 1
    for (int first = 0; first < kScreenKeys; first += Tile::kValueKeys) {
      __syncthreads();
      with_screen_element<Config::kElements>(
          p_.value.element, ScreenLoadValues<Tile::kValueKeys, Tile::kColumns, Tile::kValueStride>{
                                memory_.operands, p_.value, memory_.key_rows + first, item_.kv_head,
                                item_.chunk * Tile::kColumns});
      __syncthreads();
      // The group's own keys among those that are there.
      const double* const weights = &weight_of(first + group_ * kScreenValueKeys);
      const double* const values =
          memory_.operands + group_ * kScreenValueKeys * Tile::kValueStride;
      if (careful) {
        add_carefully(weights, values);
      } else {
#pragma unroll 2
        for (int key = 0; key < kScreenValueKeys; key += 4) {
          double v[kColumnTiles];
#pragma unroll
          for (int c = 0; c < kColumnTiles; ++c) {
            v[c] = values[(key + lane_) * Tile::kValueStride + 8 * c + quad_];
          }
          multiply_add_double(mine_.values, weights[key + lane_], v);
        }
      }
    }
  }

  /// Without the values of keys of no weight.
  __device__ __forceinline__ void add_carefully(const double* weights, const double* values) {
#pragma unroll 1
    for (int key = 0; key < kScreenValueKeys; ++key) {
      const double weight = weights[key];
      if (weight == 0.0) continue;
      const double* const v = values + key * Tile::kValueStride + 2 * lane_;
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        mine_.values[c][0] += weight * v[8 * c];
        mine_.values[c][1] += weight * v[8 * c + 1];
      }
    }
  }

  /// This thread's part of its row: state [3], values [columns of a CTA].
  __device__ __forceinline__ void leave(double* state, double* values) const {
    if (lane_ == 0) {
      state[0] = mine_.most;
      state[1] = mine_.sum;
      state[2] = mine_.spread;
    }
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
      values[8 * c + 2 * lane_] = mine_.values[c][0];
      values[8 * c + 2 * lane_ + 1] = mine_.values[c][1];
    }
  }

  /// Adds what leave() has left of other keys.
  __device__ __forceinline__ void add(const double* state, const double* values) {
    const double most = state[0];
    if (most > mine_.most) mine_.raise(most);
    const double factor = ScreenRow<Config>::weight(most, mine_.most);
    mine_.sum += factor * state[1];
    mine_.spread += factor * factor * state[2];
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
      mine_.values[c][0] += factor * values[8 * c + 2 * lane_];
      mine_.values[c][1] += factor * values[8 * c + 2 * lane_ + 1];
    }
  }

  /// Group 0 gets the sums over all groups.
  __device__ __forceinline__ void join_groups() {
#pragma unroll 1
    for (int other = 1; other < Tile::kGroups; ++other) {
      __syncthreads();
      if (group_ == other) leave(memory_.states + 3 * row_, finished(row_));
      __syncthreads();
      if (group_ == 0) add(memory_.states + 3 * row_, finished(row_));
    }
  }

  /// The sink is one more score, with the value 0.
  __device__ __forceinline__ void add_sink(int head) {
    if (p_.sinks == nullptr) return;
    const double sink = p_.sinks[head];
    if (sink == -screen_infinity()) return;
    if (sink == screen_infinity()) {
      mine_.most = sink;
      mine_.sum = 1.0;
      mine_.spread = 0.0;
      mine_.clear_values();
      return;
    }
    if (sink > mine_.most) mine_.raise(sink);
    mine_.sum += ScreenRow<Config>::weight(sink, mine_.most);
  }

  /// Rows are complete, in group 0. They go through shared memory, and 16 threads take a row.
  __device__ __forceinline__ void compare() {
    __syncthreads();
    if (group_ == 0) {
      add_sink(row_ < item_.num_rows ? head_of(row_) : 0);
      leave(memory_.states + 3 * row_, finished(row_));
    }
    __syncthreads();
    if constexpr (Config::kWritesRows) {
#pragma unroll 1
      for (int row = line(); row < Tile::kRows; row += 16) write_row(row);
    } else {
      with_screen_element<kScreenOutputElements>(p_.output.element, CompareRows{*this});
    }
  }
  static __device__ __forceinline__ int line() {
    return static_cast<int>(threadIdx.x) / kScreenLanes;
  }
  static __device__ __forceinline__ int column() {
    return static_cast<int>(threadIdx.x) % kScreenLanes;
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
      for (int row = line(); row < Tile::kRows; row += 16) cta.template compare_row<kElement>(row);
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
    for (int c = column(); valid && c < end_column(); c += kScreenLanes) {
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
    for (int c = column(); valid && c < end_column(); c += kScreenLanes) {
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
    if (row < item_.num_rows && column() == 0) {
      p_.records[place_of(row) * p_.num_chunks + item_.chunk] = record;
    }
  }

  const ScreenParams& p_;
  const ScreenItem item_;
  Memory& memory_;
  const int quad_;   // of the warp: threads that share a row
  const int lane_;   // of the quad
  const int row_;    // of the tile
  const int group_;  // which of the tile's keys the warp has
  ScreenRow<Config> mine_;
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
    constexpr int kColumns = Config::kColumns;
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

/// Fills value_squares. Config: int kColumns, unsigned kElements. Grid: one thread each;
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
