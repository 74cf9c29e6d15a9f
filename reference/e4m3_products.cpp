// A column of the left row is multiplied with a chunk of keys at a time. Terms are integers in
// units of a step: 32 products below 2^15 and a sum below 2^14, so that neither their order nor
// float32 rounds anything that the definition does not.
#include "reference/e4m3_products.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "reference/vector_math.h"

namespace attnbench {
namespace {

constexpr std::int64_t kChunkKeys = 64;
constexpr int kFloatBias = 127;
constexpr int kFloatMantissa = 23;
constexpr int kLeastExponent = -6;  // of e4m3; subnormal codes have it too
constexpr int kZeroExponent = -60;  // below every sum of two, and twice of it fits into a byte
constexpr int kLeastOfStep = -40;   // of a step of zeros, so that its unit is an ordinary number
constexpr float kCodeTolerance = 0x1p-20f;

int exponent_of(float value) {
  return static_cast<int>(std::bit_cast<std::uint32_t>(value) >> kFloatMantissa & 0xff) -
         kFloatBias;
}

float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + kFloatBias) << kFloatMantissa);
}

/// Sums of one left row with up to kChunkKeys right ones.
class Chunk {
 public:
  explicit Chunk(std::int64_t keys) : keys_(static_cast<std::size_t>(keys)) { sums_.fill(0); }

  void begin_step() { largest_.fill(2 * kZeroExponent); }

  void see(int exponent, const std::int8_t* exponents) {
    const std::size_t keys = keys_;  // Why: bytes are written, which might be keys_
    for (std::size_t j = 0; j < keys; ++j) {
      largest_[j] = std::max(largest_[j], static_cast<std::int8_t>(exponent + exponents[j]));
    }
  }

  void align() {
    for (std::size_t j = 0; j < keys_; ++j) {
      const int of_sum = exponent_of(sums_[j]);
      const int exponent = std::max({static_cast<int>(largest_[j]), of_sum, kLeastOfStep});
      units_[j] = power_of_two(exponent - E4m3Rows::kKeptBits);
      per_unit_[j] = power_of_two(E4m3Rows::kKeptBits - exponent);
      terms_[j] = static_cast<std::int32_t>(sums_[j] * per_unit_[j]);
    }
  }

  void add(float code, const float* codes) {
    for (std::size_t j = 0; j < keys_; ++j) {
      terms_[j] += static_cast<std::int32_t>(code * codes[j] * per_unit_[j]);
    }
  }

  void end_step() {
    for (std::size_t j = 0; j < keys_; ++j) sums_[j] = static_cast<float>(terms_[j]) * units_[j];
  }

  float sum(std::size_t key) const { return sums_[key]; }

 private:
  std::size_t keys_;
  std::array<float, kChunkKeys> sums_;
  std::array<float, kChunkKeys> units_;
  std::array<float, kChunkKeys> per_unit_;
  std::array<std::int32_t, kChunkKeys> terms_;
  std::array<std::int8_t, kChunkKeys> largest_;
};

}  // namespace

bool E4m3Rows::load(const float* values, std::int64_t rows, std::int64_t columns, float scale) {
  rows_ = rows;
  columns_ = columns;
  scale_ = scale;
  const auto size = static_cast<std::size_t>(rows * columns);
  codes_.resize(size);
  exponents_.resize(size);
  has_nan_.assign(static_cast<std::size_t>(rows), 0);
  if (!(std::isfinite(scale) && scale > 0)) return false;
  std::vector<float, AlignedAllocator<float>> row(static_cast<std::size_t>(columns));
  bool are_codes = true;
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* const from = values + i * columns;
    for (std::int64_t c = 0; c < columns; ++c) row[static_cast<std::size_t>(c)] = from[c] / scale;
    round_values(Dtype::kE4M3, row.data(), columns);
    for (std::int64_t c = 0; c < columns; ++c) {
      float code = row[static_cast<std::size_t>(c)];
      const auto to = static_cast<std::size_t>(c * rows + i);
      if (std::isnan(code)) {
        has_nan_[static_cast<std::size_t>(i)] = 1;
        code = 0;
      } else {
        const float off = std::abs(code * scale - from[c]);
        are_codes = are_codes && off <= kCodeTolerance * std::abs(from[c]);
      }
      codes_[to] = code;
      exponents_[to] = static_cast<std::int8_t>(
          code == 0 ? kZeroExponent : std::max(exponent_of(std::abs(code)), kLeastExponent));
    }
  }
  return are_codes;
}

void multiply_e4m3(const E4m3Rows& left, const E4m3Rows& right, float* product) {
  if (left.columns_ != right.columns_) {
    fail(ErrorKind::kShape, "e4m3 products: {} columns and {}", left.columns_, right.columns_);
  }
  const float scale = left.scale_ * right.scale_;
  for (std::int64_t i = 0; i < left.rows_; ++i) {
    for (std::int64_t first = 0; first < right.rows_; first += kChunkKeys) {
      const std::int64_t keys = std::min(kChunkKeys, right.rows_ - first);
      Chunk chunk(keys);
      for (std::int64_t begin = 0; begin < left.columns_; begin += E4m3Rows::kStepColumns) {
        const std::int64_t end = std::min(begin + E4m3Rows::kStepColumns, left.columns_);
        chunk.begin_step();
        for (std::int64_t c = begin; c < end; ++c) {
          chunk.see(left.exponents_[static_cast<std::size_t>(c * left.rows_ + i)],
                    right.exponents_.data() + c * right.rows_ + first);
        }
        chunk.align();
        for (std::int64_t c = begin; c < end; ++c) {
          chunk.add(left.codes_[static_cast<std::size_t>(c * left.rows_ + i)],
                    right.codes_.data() + c * right.rows_ + first);
        }
        chunk.end_step();
      }
      float* const to = product + i * right.rows_ + first;
      const bool row_has_nan = left.has_nan_[static_cast<std::size_t>(i)] != 0;
      for (std::int64_t j = 0; j < keys; ++j) {
        const bool is_nan = row_has_nan || right.has_nan_[static_cast<std::size_t>(first + j)] != 0;
        to[j] = is_nan ? std::numeric_limits<float>::quiet_NaN()
                       : chunk.sum(static_cast<std::size_t>(j)) * scale;
      }
    }
  }
}

}  // namespace attnbench
