// Scores of e4m3 queries and keys as the tensor cores of a Hopper GPU sum them, which is far less
// exactly than float32: in one step of 32 columns all products, and what was summed before, are
// aligned to the largest of them and cut off 13 bits below its leading bit. No kernel can have it
// otherwise, so it belongs to the emulation that errors are measured by.
//
// That a step has 32 columns and 13 bits, and that a product counts by the sum of its factors'
// exponents (not by its own leading bit, which may be one higher), is concluded from an H200, where
// the largest LSE errors of three cases were 0.0078 to 0.0107: with these rules they are 0.00783,
// 0.00965 and 0.01075, with other numbers of bits or columns up to three times as large or a third
// (docs/verdicts.md).
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace attnbench {

/// Rows of e4m3 codes, ready to be multiplied. Codes are numbers here, without their scale.
class E4m3Rows {
 public:
  /// Columns that a tensor core sums in one step, and the bits that it keeps below the largest.
  static constexpr std::int64_t kStepColumns = 32;
  static constexpr int kKeptBits = 13;
  static constexpr int kLanes = 16;

  /// Takes `values` [rows, columns], f32 products of a code and `scale`, rounded. False where they
  /// are not: then nothing can be said of their sums, and the rows must not be multiplied.
  bool load(const float* values, std::int64_t rows, std::int64_t columns, float scale);

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  float scale() const { return scale_; }

 private:
  friend void multiply_e4m3(const E4m3Rows& left, std::int64_t first, std::int64_t count,
                            const E4m3Rows& right, float* product);

  std::int64_t place(std::int64_t row, std::int64_t column) const {
    return (row / kLanes * columns_ + column) * kLanes + row % kLanes;
  }

  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  float scale_ = 1;
  // In blocks of kLanes rows, within a block column by column, so that the products of one row with
  // a block are those of numbers with neighbours. The last block is filled up with zeros.
  std::vector<float, AlignedAllocator<float>> codes_;  // [blocks, columns, kLanes], 0 for NaN
  std::vector<std::int8_t, AlignedAllocator<std::int8_t>> exponents_;  // [blocks, columns, kLanes]
  std::vector<std::uint8_t> has_nan_;                                  // [rows]
};

/// product [count, right rows] = left * transpose(right) * both scales, of the left rows [first,
/// first + count), where each sum is made in steps of 32 columns from the first on. In a step every
/// term t, and the sum so far, counts as trunc(t / u) * u with u = 2^(e - 13), e the largest of the
/// exponents: of a product those of its two codes added (of a subnormal code -6), of the sum its
/// own. NaN where a row has a NaN. E-SHAPE when columns differ.
void multiply_e4m3(const E4m3Rows& left, std::int64_t first, std::int64_t count,
                   const E4m3Rows& right, float* product);

}  // namespace attnbench
