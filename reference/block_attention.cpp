// Two passes over tiles of keys: the first scores them and finds each row's maximum, the second
// turns scores into weights and multiplies them with the values. All scores of a block stay in
// memory between the passes. Values that hold NaN or infinity leave the matrix product and are
// added row by row, because 0 * NaN there would reach rows to which the key is masked (semantics
// §0.6.6).
#include "reference/block_attention.h"

// Why: g++ 12 warns of _mm512_undefined_* inside its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
// The caller spreads blocks over threads; a product never starts threads of its own.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "reference/vector_math.h"

namespace attnbench {
namespace {

template <typename Real>
using Matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <typename Real>
using MatrixMap = Eigen::Map<Matrix<Real>>;
template <typename Real>
using ConstMatrixMap = Eigen::Map<const Matrix<Real>>;
template <typename Real>
using ArrayMap = Eigen::Map<Eigen::Array<Real, Eigen::Dynamic, 1>>;
template <typename Real>
using ConstArrayMap = Eigen::Map<const Eigen::Array<Real, Eigen::Dynamic, 1>>;

template <typename Real>
constexpr Real kInfinityOf = std::numeric_limits<Real>::infinity();

template <typename Buffer>
void grow(Buffer& buffer, std::int64_t size) {
  if (static_cast<std::int64_t>(buffer.size()) < size) {
    buffer.resize(static_cast<std::size_t>(size));
  }
}

/// x - x is 0 for finite x and NaN for the others, so one sum tells.
template <typename Real>
bool all_finite(const Real* values, std::int64_t count) {
  const ConstArrayMap<Real> array(values, count);
  return (array - array).sum() == Real{0};
}

/// sum += left * right. With few rows, as in decode, Eigen's packing of `right` costs more than the
/// product, so each row goes by itself.
template <typename Real, typename Right>
void multiply(const ConstMatrixMap<Real>& left, const Right& right, MatrixMap<Real> sum) {
  constexpr Eigen::Index kFewRows = 8;
  if (left.rows() > kFewRows) {
    sum.noalias() += left * right;
    return;
  }
  for (Eigen::Index row = 0; row < left.rows(); ++row) {
    sum.row(row).noalias() += left.row(row) * right;
  }
}

// Rows of one KV head lie too far apart for the hardware to foresee; without this the loading of
// keys takes most of the time of a decode row.
constexpr std::int64_t kPrefetchDistance = 16;

/// Prefetches the row that starts at element `first`, if the tensor reaches that far.
void prefetch_row(const Tensor& tensor, std::int64_t first) {
  constexpr std::int64_t kCacheLine = 64;
  const auto element_size = static_cast<std::int64_t>(dtype_size(tensor.dtype()));
  const std::int64_t begin = first * element_size;
  const std::int64_t end = begin + tensor.dim(2) * element_size;
  if (end > static_cast<std::int64_t>(tensor.size_bytes())) return;
  for (std::int64_t byte = begin; byte < end; byte += kCacheLine) {
    __builtin_prefetch(tensor.bytes() + byte);
  }
}

/// Half a unit in the last place of float32, of 1.
constexpr double kFloat32Rounding = 0x1p-24;
/// Weights below it may count as 0, of a largest weight of 1.
constexpr double kFloat32Least = 0x1p-125;
/// What exponential and sums add to the error of a score, in such roundings.
constexpr double kExponentialRoundings = 4;

/// Of the elements that are finite.
template <typename Real>
double square_norm(const Real* values, std::int64_t count) {
  const ConstArrayMap<Real> array(values, count);
  const auto square = static_cast<double>(array.square().sum());
  if (std::isfinite(square)) return square;
  double finite = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<double>(values[i]);
    if (std::isfinite(value)) finite += value * value;
  }
  return std::isfinite(finite) ? finite : 0;
}

/// P as a kernel would hand it to P V. In e4m3 it is shifted by 2^8, or small probabilities would
/// lose their mantissa (semantics §10.5).
void round_probabilities(Dtype dtype, float* values, std::int64_t count) {
  const float shift = dtype == Dtype::kE4M3 ? 0x1p8f : 1.0f;
  ArrayMap<float> array(values, count);
  array *= shift;
  round_values(dtype, values, count);
  array /= shift;
}

}  // namespace

template <typename Real>
BlockAttention<Real>::BlockAttention(const AttentionMath& math, const ReferenceInputs& inputs,
                                     const EmulationRule* rule, std::span<const std::int32_t> rows,
                                     ReferenceOutput& output)
    : math_(math),
      inputs_(inputs),
      rule_(rule),
      rows_(rows),
      result_(output),
      num_heads_(static_cast<int>(inputs.query->dim(1))),
      num_kv_heads_(static_cast<int>(inputs.key->dim(1))),
      head_size_(inputs.query->dim(2)),
      v_head_size_(inputs.value->dim(2)) {}

template <typename Real>
void BlockAttention<Real>::compute(const RowBlock& block) {
  find_visible(block);
  plan_tiles(block);
  load_query(block);
  const std::int64_t matrix_rows = block.num_matrix_rows();
  row_max_.assign(static_cast<std::size_t>(matrix_rows), -kInfinityOf<Real>);
  row_sum_.assign(static_cast<std::size_t>(matrix_rows), Real{0});
  sums_.assign(static_cast<std::size_t>(matrix_rows * v_head_size_), Real{0});
  if constexpr (kMeasuresRows) {
    spread_.assign(static_cast<std::size_t>(matrix_rows), {});
    key_norm_.resize(static_cast<std::size_t>(block.keys.end - block.keys.begin));
  }
  for (const Tile& tile : tiles_) score_tile(block, tile);
  add_sinks(block);
  for (const Tile& tile : tiles_) {
    weigh_tile(block, tile);
    accumulate_tile(block, tile);
  }
  finish(block);
}

template <typename Real>
std::int64_t BlockAttention<Real>::position_of(const RowBlock& block, std::int64_t token) const {
  const auto request = static_cast<std::size_t>(block.request);
  const std::int64_t row = rows_[static_cast<std::size_t>(block.row_begin + token)];
  return row - inputs_.query_start_loc[request + 1] + inputs_.seq_lens[request];
}

template <typename Real>
std::int64_t BlockAttention<Real>::query_row_of(std::int64_t list_row) const {
  return inputs_.query_is_of_rows ? list_row : rows_[static_cast<std::size_t>(list_row)];
}

template <typename Real>
std::int64_t BlockAttention<Real>::key_row_of(const RowBlock& block, std::int64_t key) const {
  for (const MovedKeys& moved : inputs_.moved_keys) {
    if (key >= moved.first && key < moved.first + moved.count) {
      return moved.source + key - moved.first;
    }
  }
  return inputs_.key_start_loc[static_cast<std::size_t>(block.request)] + key;
}

template <typename Real>
void BlockAttention<Real>::find_visible(const RowBlock& block) {
  const std::int64_t seq_len = inputs_.seq_lens[static_cast<std::size_t>(block.request)];
  visible_.clear();
  visible_offset_.assign(1, 0);
  std::vector<KeyRange> ranges;
  for (std::int64_t token = 0; token < block.num_tokens(); ++token) {
    ranges.clear();
    append_visible_ranges(math_, block.request, position_of(block, token), seq_len, ranges);
    visible_.insert(visible_.end(), ranges.begin(), ranges.end());
    visible_offset_.push_back(visible_.size());
  }
}

template <typename Real>
template <typename Body>
void BlockAttention<Real>::for_visible(const Tile& tile, std::int64_t token,
                                       const Body& body) const {
  const auto index = static_cast<std::size_t>(token);
  for (std::size_t i = visible_offset_[index]; i < visible_offset_[index + 1]; ++i) {
    const KeyRange range{std::max(visible_[i].begin, tile.begin),
                         std::min(visible_[i].end, tile.end)};
    if (range.begin < range.end) body(range);
  }
}

template <typename Real>
void BlockAttention<Real>::plan_tiles(const RowBlock& block) {
  tiles_.clear();
  std::int64_t offset = 0;
  for (std::int64_t begin = block.keys.begin; begin < block.keys.end; begin += kTileKeys) {
    Tile tile{begin, std::min(begin + kTileKeys, block.keys.end), block.num_tokens(), 0, offset};
    for (std::int64_t token = 0; token < block.num_tokens(); ++token) {
      for_visible(tile, token, [&](const KeyRange&) {
        tile.first_token = std::min(tile.first_token, token);
        tile.last_token = token + 1;
      });
    }
    if (tile.first_token >= tile.last_token) continue;
    offset += (tile.last_token - tile.first_token) * block.num_heads * tile.num_keys();
    tiles_.push_back(tile);
  }
  grow(scores_, offset);
}

template <typename Real>
void BlockAttention<Real>::load_query(const RowBlock& block) {
  grow(query_, block.num_matrix_rows() * head_size_);
  const std::int64_t width = block.num_heads * head_size_;
  for (std::int64_t token = 0; token < block.num_tokens(); ++token) {
    const std::int64_t row = query_row_of(block.row_begin + token);
    load_values(inputs_.query->dtype(), inputs_.query->bytes(),
                (row * num_heads_ + block.first_head) * head_size_, width,
                query_.data() + token * width);
  }
  if constexpr (kMeasuresRows) {
    query_norm_.clear();
    for (std::int64_t row = 0; row < block.num_matrix_rows(); ++row) {
      query_norm_.push_back(std::sqrt(square_norm(query_.data() + row * head_size_, head_size_)));
    }
  }
  if constexpr (std::is_same_v<Real, float>) {
    query_is_codes_ =
        rule_ != nullptr && rule_->e4m3_products &&
        query_codes_.load(query_.data(), block.num_matrix_rows(), head_size_, inputs_.query_scale);
  }
}

template <typename Real>
void BlockAttention<Real>::load_tile(const Tensor& tensor, const RowBlock& block, const Tile& tile,
                                     Buffer& buffer) {
  const std::int64_t width = tensor.dim(2);
  grow(buffer, kTileKeys * width);
  const std::int64_t kv_head = block.first_head / (num_heads_ / num_kv_heads_);
  for (std::int64_t key = tile.begin; key < tile.end; ++key) {
    const std::int64_t first = (key_row_of(block, key) * num_kv_heads_ + kv_head) * width;
    prefetch_row(tensor, first + kPrefetchDistance * num_kv_heads_ * width);
    load_values(tensor.dtype(), tensor.bytes(), first, width,
                buffer.data() + (key - tile.begin) * width);
  }
}

template <typename Real>
void BlockAttention<Real>::load_tile_values(const RowBlock& block, const Tile& tile) {
  load_tile(*inputs_.value, block, tile, values_);
  special_keys_.clear();
  for (std::int64_t column = 0; column < tile.num_keys(); ++column) {
    Real* value = values_.data() + column * v_head_size_;
    if (all_finite(value, v_head_size_)) continue;
    // A matrix product would turn weight 0 into 0 * NaN for every row (semantics §0.6).
    special_keys_.push_back({column, Buffer(value, value + v_head_size_)});
    std::fill_n(value, v_head_size_, Real{0});
  }
}

template <typename Real>
bool BlockAttention<Real>::multiply_codes(const RowBlock& block, const Tile& tile, Real* products) {
  if constexpr (std::is_same_v<Real, float>) {
    const auto kv_head = static_cast<std::size_t>(block.first_head / (num_heads_ / num_kv_heads_));
    const std::span<const float> scales = inputs_.key_scales;
    const float key_scale = scales.empty() ? 1.0f : scales[scales.size() > 1 ? kv_head : 0];
    if (!query_is_codes_ ||
        !key_codes_.load(keys_.data(), tile.num_keys(), head_size_, key_scale)) {
      return false;
    }
    multiply_e4m3(query_codes_, tile.first_token * block.num_heads,
                  (tile.last_token - tile.first_token) * block.num_heads, key_codes_, products);
    return true;
  }
  return false;
}

template <typename Real>
void BlockAttention<Real>::score_tile(const RowBlock& block, const Tile& tile) {
  load_tile(*inputs_.key, block, tile, keys_);
  if constexpr (kMeasuresRows) measure_keys(block, tile);
  const std::int64_t heads = block.num_heads;
  const std::int64_t matrix_rows = (tile.last_token - tile.first_token) * heads;
  const std::int64_t width = tile.num_keys();
  Real* const scores = scores_.data() + tile.score_offset;
  if (!multiply_codes(block, tile, scores)) {
    std::fill_n(scores, matrix_rows * width, Real{0});
    multiply<Real>(ConstMatrixMap<Real>(query_.data() + tile.first_token * heads * head_size_,
                                        matrix_rows, head_size_),
                   ConstMatrixMap<Real>(keys_.data(), width, head_size_).transpose(),
                   MatrixMap<Real>(scores, matrix_rows, width));
  }
  const auto scale = static_cast<Real>(math_.softmax_scale);
  const auto cap = static_cast<Real>(math_.logits_soft_cap);
  for (std::int64_t token = tile.first_token; token < tile.last_token; ++token) {
    for (int head = 0; head < block.num_heads; ++head) {
      const std::int64_t row = token * heads + head;
      Real* const row_scores = scores + (row - tile.first_token * heads) * width - tile.begin;
      Real& row_max = row_max_[static_cast<std::size_t>(row)];
      for_visible(tile, token, [&](const KeyRange& keys) {
        Real* const visible = row_scores + keys.begin;
        const std::int64_t count = keys.end - keys.begin;
        ArrayMap<Real> array(visible, count);
        array *= scale;
        if (cap > 0) soft_cap(visible, count, cap);
        add_bias(visible, keys, block, token, head);
        const Real largest = array.template maxCoeff<Eigen::PropagateNaN>();
        if (largest > row_max || std::isnan(largest)) row_max = largest;
      });
    }
  }
}

template <typename Real>
void BlockAttention<Real>::add_bias(Real* scores, const KeyRange& keys, const RowBlock& block,
                                    std::int64_t token, int head) const {
  if (math_.alibi == AlibiForm::kNone) return;
  const auto slope =
      static_cast<Real>(inputs_.alibi_slopes[static_cast<std::size_t>(block.first_head + head)]);
  const auto request = static_cast<std::size_t>(block.request);
  const std::int64_t query_len =
      inputs_.query_start_loc[request + 1] - inputs_.query_start_loc[request];
  const std::int64_t context_len = inputs_.seq_lens[request] - query_len;
  const std::int64_t position = inputs_.row_positions.empty()
                                    ? position_of(block, token)
                                    : inputs_.row_positions[static_cast<std::size_t>(token)];
  const std::int64_t first_key = inputs_.key_start_loc[request];
  const auto add = [&](auto bias) {
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      const std::int64_t place =
          inputs_.key_positions.empty()
              ? key
              : inputs_.key_positions[static_cast<std::size_t>(first_key + key)];
      scores[key - keys.begin] += bias(place);
    }
  };
  switch (math_.alibi) {
    case AlibiForm::kNone:
      return;
    case AlibiForm::kKeyIndex:
      return add([&](std::int64_t key) { return slope * static_cast<Real>(key); });
    case AlibiForm::kContextRelative:
      return add([&](std::int64_t key) { return slope * static_cast<Real>(key - context_len); });
    case AlibiForm::kDistance:
      return add(
          [&](std::int64_t key) { return -slope * static_cast<Real>(std::abs(position - key)); });
    case AlibiForm::kSqrt:
      return add([&](std::int64_t key) {
        const auto distance = static_cast<Real>(std::max<std::int64_t>(0, position - key));
        return -slope * std::sqrt(distance);
      });
  }
}

/// The sink is one more logit of the maximum and the sum, with value 0 (semantics §3.5).
template <typename Real>
void BlockAttention<Real>::add_sinks(const RowBlock& block) {
  if (inputs_.sinks.empty()) return;
  for (std::int64_t row = 0; row < block.num_matrix_rows(); ++row) {
    const auto head = static_cast<std::size_t>(block.first_head + row % block.num_heads);
    const auto sink = static_cast<Real>(inputs_.sinks[head]);
    if (sink == -kInfinityOf<Real>) continue;
    Real& row_max = row_max_[static_cast<std::size_t>(row)];
    row_max = std::max(row_max, sink);
    row_sum_[static_cast<std::size_t>(row)] =
        sink == kInfinityOf<Real> ? Real{1} : std::exp(sink - row_max);
  }
}

template <typename Real>
void BlockAttention<Real>::weigh_tile(const RowBlock& block, const Tile& tile) {
  const std::int64_t heads = block.num_heads;
  const std::int64_t width = tile.num_keys();
  for (std::int64_t row = tile.first_token * heads; row < tile.last_token * heads; ++row) {
    Real* const weights =
        scores_.data() + tile.score_offset + (row - tile.first_token * heads) * width;
    const Real row_max = row_max_[static_cast<std::size_t>(row)];
    const bool sink_takes_all =
        !inputs_.sinks.empty() &&
        inputs_.sinks[static_cast<std::size_t>(block.first_head + row % heads)] ==
            kInfinityOf<float>;
    std::int64_t done = 0;
    if (row_max != -kInfinityOf<Real> && !sink_takes_all) {
      for_visible(tile, row / heads, [&](const KeyRange& keys) {
        std::fill(weights + done, weights + (keys.begin - tile.begin), Real{0});
        done = keys.end - tile.begin;
        Real* const visible = weights + (keys.begin - tile.begin);
        const std::int64_t count = keys.end - keys.begin;
        exp_minus(visible, count, row_max);
        row_sum_[static_cast<std::size_t>(row)] += ArrayMap<Real>(visible, count).sum();
        if constexpr (std::is_same_v<Real, float>) {
          if (rule_ != nullptr) round_probabilities(rule_->probability, visible, count);
        }
      });
    }
    std::fill(weights + done, weights + width, Real{0});
  }
}

template <typename Real>
void BlockAttention<Real>::accumulate_tile(const RowBlock& block, const Tile& tile) {
  load_tile_values(block, tile);
  if constexpr (kMeasuresRows) add_spread(block, tile);
  const std::int64_t first_row = tile.first_token * block.num_heads;
  const std::int64_t matrix_rows = (tile.last_token - tile.first_token) * block.num_heads;
  const std::int64_t width = tile.num_keys();
  const Real* const weights = scores_.data() + tile.score_offset;
  MatrixMap<Real> sums(sums_.data() + first_row * v_head_size_, matrix_rows, v_head_size_);
  multiply<Real>(ConstMatrixMap<Real>(weights, matrix_rows, width),
                 ConstMatrixMap<Real>(values_.data(), width, v_head_size_), sums);
  for (const SpecialKey& key : special_keys_) {
    const ConstArrayMap<Real> value(key.value.data(), v_head_size_);
    for (std::int64_t row = 0; row < matrix_rows; ++row) {
      const Real weight = weights[row * width + key.column];
      if (weight != Real{0}) sums.row(row).array() += weight * value.transpose();
    }
  }
}

template <typename Real>
void BlockAttention<Real>::measure_keys(const RowBlock& block, const Tile& tile) {
  for (std::int64_t key = 0; key < tile.num_keys(); ++key) {
    key_norm_[static_cast<std::size_t>(tile.begin - block.keys.begin + key)] =
        std::sqrt(square_norm(keys_.data() + key * head_size_, head_size_));
  }
}

template <typename Real>
void BlockAttention<Real>::measure_values(const Tile& tile) {
  value_square_.resize(static_cast<std::size_t>(tile.num_keys()));
  for (std::int64_t key = 0; key < tile.num_keys(); ++key) {
    value_square_[static_cast<std::size_t>(key)] =
        square_norm(values_.data() + key * v_head_size_, v_head_size_);
  }
  for (const SpecialKey& key : special_keys_) {
    value_square_[static_cast<std::size_t>(key.column)] =
        square_norm(key.value.data(), v_head_size_);
  }
}

/// The error of a score is in proportion to ||q|| ||k||, whose product is the sum of its terms'
/// magnitudes at most, and to the maximum, from which it is subtracted.
template <typename Real>
void BlockAttention<Real>::add_spread(const RowBlock& block, const Tile& tile) {
  measure_values(tile);
  using Array = Eigen::Array<double, Eigen::Dynamic, 1>;
  const std::int64_t width = tile.num_keys();
  const ConstArrayMap<double> values(value_square_.data(), width);
  const ConstArrayMap<double> keys(key_norm_.data() + (tile.begin - block.keys.begin), width);
  Array squares(width);
  Array errors(width);
  const std::int64_t first_row = tile.first_token * block.num_heads;
  const std::int64_t last_row = tile.last_token * block.num_heads;
  for (std::int64_t row = first_row; row < last_row; ++row) {
    const auto index = static_cast<std::size_t>(row);
    Spread& spread = spread_[index];
    const ConstArrayMap<Real> weights(
        scores_.data() + tile.score_offset + (row - first_row) * width, width);
    const double per_key = std::abs(math_.softmax_scale) * query_norm_[index];
    const double largest = std::isfinite(row_max_[index]) ? std::abs(row_max_[index]) : 0;
    spread.largest_value = std::max(spread.largest_value, values.maxCoeff());
    squares = weights.template cast<double>().square();
    errors = squares * (per_key * keys + (2 * largest + kExponentialRoundings)).square();
    spread.values += (squares * values).sum();
    spread.errors += errors.sum();
    errors *= values;
    spread.value_errors += errors.sum();
    spread.weighted_errors += (errors * weights.template cast<double>()).sum();
  }
}

/// With r the sum of p_j v_j and an error d_j of each score, r moves by p_j d_j (v_j - r). Values
/// are taken as independent of each other, of which ||v_j - r||^2 is (1 - 2 p_j) ||v_j||^2 + sum_i
/// p_i^2 ||v_i||^2 on average.
template <typename Real>
void BlockAttention<Real>::finish_spread(const RowBlock& block, std::int64_t row,
                                         std::int64_t place) {
  const Spread& spread = spread_[static_cast<std::size_t>(row)];
  const auto sum = static_cast<double>(row_sum_[static_cast<std::size_t>(row)]);
  const auto largest = static_cast<double>(row_max_[static_cast<std::size_t>(row)]);
  const auto at = static_cast<std::size_t>(place);
  const auto finite_or_zero = [](double value) { return std::isfinite(value) ? value : 0; };
  const double values = finite_or_zero(spread.values / (sum * sum));
  const double norm = std::sqrt(square_norm(sums_.data() + row * v_head_size_, v_head_size_));
  const double size = std::max(norm, kRowSpread * std::sqrt(values));
  result_.row_size[at] = size;
  const double errors = finite_or_zero(spread.errors / (sum * sum));
  const double moved = finite_or_zero(
      (spread.value_errors - 2 * spread.weighted_errors / sum) / (sum * sum) + values * errors);
  const auto num_keys = static_cast<double>(block.keys.end - block.keys.begin);
  const double added = size * std::sqrt(num_keys);
  const double lost = kFloat32Least * num_keys * std::sqrt(spread.largest_value);
  result_.output_loss[at] = kFloat32Rounding * (std::sqrt(std::max(0.0, moved)) + added) + lost;
  const double magnitude = finite_or_zero(2 * std::abs(largest) + std::abs(std::log(sum)));
  result_.lse_loss[at] =
      kFloat32Rounding * (std::sqrt(errors) + magnitude + 1 + std::sqrt(num_keys));
}

template <typename Real>
void BlockAttention<Real>::finish(const RowBlock& block) {
  const auto num_rows = static_cast<std::int64_t>(result_.rows.size());
  for (std::int64_t row = 0; row < block.num_matrix_rows(); ++row) {
    const Real row_sum = row_sum_[static_cast<std::size_t>(row)];
    const Real row_max = row_max_[static_cast<std::size_t>(row)];
    const std::int64_t list_row = block.row_begin + row / block.num_heads;
    const std::int64_t head = block.first_head + row % block.num_heads;
    const bool empty = row_max == -kInfinityOf<Real> && row_sum == Real{0};
    result_.lse[static_cast<std::size_t>(head * num_rows + list_row)] =
        empty ? -kInfinityOf<double> : static_cast<double>(row_max + std::log(row_sum));
    Real* const sums = sums_.data() + row * v_head_size_;
    ArrayMap<Real> array(sums, v_head_size_);
    if (!empty) array /= row_sum;
    if constexpr (std::is_same_v<Real, float>) {
      if (rule_ != nullptr) round_values(rule_->storage, sums, v_head_size_);
    }
    if constexpr (kMeasuresRows) finish_spread(block, row, list_row * num_heads_ + head);
    double* const output = result_.output.data() + (list_row * num_heads_ + head) * v_head_size_;
    std::copy_n(sums, v_head_size_, output);
  }
}

template class BlockAttention<double>;
template class BlockAttention<float>;

}  // namespace attnbench
