// A column of the left row is multiplied with 16 keys at a time. Terms are integers in units of a
// step: 32 products below 2^15 and a sum below 2^14, so that neither their order nor float32 rounds
// anything that the definition does not.
#include "reference/e4m3_products.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "reference/vector_math.h"

namespace attnbench {
namespace {

constexpr int kLanes = E4m3Rows::kLanes;
// Why vectors by name: compilers keep the sums of plain loops over keys in memory, which takes
// twice the time. Where a machine has narrower ones, they use several.
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Ints = std::int32_t __attribute__((vector_size(kLanes * sizeof(std::int32_t))));
using Bytes = std::int8_t __attribute__((vector_size(kLanes)));

constexpr int kFloatBias = 127;
constexpr int kFloatMantissa = 23;
constexpr int kLeastExponent = -6;  // of e4m3; subnormal codes have it too
constexpr int kZeroExponent = -60;  // below every sum of two, and twice of it fits into a byte
constexpr int kLeastOfStep = -40;   // of a step of zeros, so that its unit is an ordinary number
constexpr float kCodeTolerance = 0x1p-20f;

template <typename Vector, typename Element>
Vector load_lanes(const Element* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(Vector));
  return vector;
}

/// 2^exponent of each lane.
Floats powers_of_two(Ints exponents) {
  return std::bit_cast<Floats>((exponents + kFloatBias) << kFloatMantissa);
}

/// Adds a step of `columns` columns to the sums of one left row with kLanes keys.
Floats add_step(Floats sums, const float* left, const std::int8_t* left_exponents,
                const float* right, const std::int8_t* right_exponents, std::int64_t columns) {
  Bytes largest_product = Bytes{} + static_cast<std::int8_t>(2 * kZeroExponent);
  for (std::int64_t c = 0; c < columns; ++c) {
    const Bytes exponents =
        load_lanes<Bytes>(right_exponents + c * kLanes) + left_exponents[c * kLanes];
    largest_product = exponents > largest_product ? exponents : largest_product;
  }
  const Ints of_sums = (std::bit_cast<Ints>(sums) >> kFloatMantissa & 0xff) - kFloatBias;
  Ints largest = __builtin_convertvector(largest_product, Ints);
  largest = of_sums > largest ? of_sums : largest;
  largest = largest > kLeastOfStep ? largest : Ints{} + kLeastOfStep;
  const Floats per_unit = powers_of_two(E4m3Rows::kKeptBits - largest);
  Ints terms = __builtin_convertvector(sums * per_unit, Ints);
  for (std::int64_t c = 0; c < columns; ++c) {
    const Floats products = left[c * kLanes] * load_lanes<Floats>(right + c * kLanes);
    terms += __builtin_convertvector(products * per_unit, Ints);
  }
  return __builtin_convertvector(terms, Floats) * powers_of_two(largest - E4m3Rows::kKeptBits);
}

}  // namespace

bool E4m3Rows::load(const float* values, std::int64_t rows, std::int64_t columns, float scale) {
  rows_ = rows;
  columns_ = columns;
  scale_ = scale;
  if (!(std::isfinite(scale) && scale > 0)) return false;
  const auto size = static_cast<std::size_t>((rows + kLanes - 1) / kLanes * kLanes * columns);
  codes_.resize(size);
  exponents_.resize(size);
  has_nan_.assign(static_cast<std::size_t>(rows), 0);
  // kLanes rows at a time, so that columns are written by the cache line.
  std::vector<float, AlignedAllocator<float>> block(static_cast<std::size_t>(kLanes * columns));
  float worst = 0;  // by how much of itself a value is no code
  for (std::int64_t first = 0; first < rows; first += kLanes) {
    const std::int64_t count = std::min<std::int64_t>(kLanes, rows - first);
    const float* const from = values + first * columns;
    for (std::int64_t i = 0; i < count * columns; ++i) {
      block[static_cast<std::size_t>(i)] = from[i] / scale;
    }
    std::fill(block.begin() + static_cast<std::ptrdiff_t>(count * columns), block.end(), 0.0f);
    round_values(Dtype::kE4M3, block.data(), count * columns);
    for (std::int64_t i = 0; i < count * columns; ++i) {
      float& code = block[static_cast<std::size_t>(i)];
      const bool is_nan = code != code;
      if (is_nan) has_nan_[static_cast<std::size_t>(first + i / columns)] = 1;
      code = is_nan ? 0 : code;
      const float off = std::abs(code * scale - from[i]) - kCodeTolerance * std::abs(from[i]);
      worst = is_nan ? worst : std::max(worst, off);
    }
    for (std::int64_t c = 0; c < columns; ++c) {
      float* const codes = codes_.data() + first * columns + c * kLanes;
      std::int8_t* const exponents = exponents_.data() + first * columns + c * kLanes;
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const float code = block[static_cast<std::size_t>(lane * columns + c)];
        const int own =
            static_cast<int>(std::bit_cast<std::uint32_t>(code) >> kFloatMantissa & 0xff) -
            kFloatBias;
        codes[lane] = code;
        exponents[lane] =
            static_cast<std::int8_t>(code == 0 ? kZeroExponent : std::max(own, kLeastExponent));
      }
    }
  }
  return worst <= 0;
}

void multiply_e4m3(const E4m3Rows& left, std::int64_t first, std::int64_t count,
                   const E4m3Rows& right, float* product) {
  if (left.columns_ != right.columns_) {
    fail(ErrorKind::kShape, "e4m3 products: {} columns and {}", left.columns_, right.columns_);
  }
  const float scale = left.scale_ * right.scale_;
  for (std::int64_t row = first; row < first + count; ++row, product += right.rows_) {
    const bool row_has_nan = left.has_nan_[static_cast<std::size_t>(row)] != 0;
    for (std::int64_t key = 0; key < right.rows_; key += kLanes) {
      Floats sums{};
      for (std::int64_t begin = 0; begin < left.columns_; begin += E4m3Rows::kStepColumns) {
        const std::int64_t from_left = left.place(row, begin);
        const std::int64_t from_right = right.place(key, begin);
        sums = add_step(sums, left.codes_.data() + from_left, left.exponents_.data() + from_left,
                        right.codes_.data() + from_right, right.exponents_.data() + from_right,
                        std::min(E4m3Rows::kStepColumns, left.columns_ - begin));
      }
      std::array<float, kLanes> of_keys;
      std::memcpy(of_keys.data(), &sums, sizeof(sums));
      for (std::int64_t j = key; j < std::min(key + kLanes, right.rows_); ++j) {
        const bool is_nan = row_has_nan || right.has_nan_[static_cast<std::size_t>(j)] != 0;
        product[j] = is_nan ? std::numeric_limits<float>::quiet_NaN()
                            : of_keys[static_cast<std::size_t>(j - key)] * scale;
      }
    }
  }
}

}  // namespace attnbench
