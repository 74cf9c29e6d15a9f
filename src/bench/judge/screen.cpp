#include "bench/judge/screen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/system/parallel.h"

namespace attnbench {
namespace {

constexpr double kLargestF16 = 65504;
constexpr double kLargestBF16 = 0x1.FEp127;
constexpr double kLargestE4M3 = 448;

/// Half of the distance between the code of a value and the next one: a code stands for all values
/// that round to it.
double e4m3_half_step(double value, const ScreenedOutput& output) {
  constexpr int kLeastExponent = -6;
  constexpr int kMantissaBits = 3;
  const double code = std::abs(value / output.e4m3_scale);
  const int exponent = code > 0 ? std::max(std::ilogb(code), kLeastExponent) : kLeastExponent;
  return std::ldexp(output.e4m3_scale, exponent - kMantissaBits - 1);
}

/// Adds an element to a row. `expected` beyond `limit`, what the output can hold: see
/// ScreenedOutput.
void add_element(double actual, double expected, const ScreenedOutput& output, double limit,
                 ScreenedRow& row) {
  if (std::abs(expected) > limit) {
    if (output.e4m3_scale > 0) {
      expected = std::copysign(limit, expected);
    } else if (std::isfinite(expected) && std::isinf(actual) &&
               std::signbit(actual) == std::signbit(expected)) {
      return;
    }
  }
  if (!std::isfinite(actual) || !std::isfinite(expected)) {
    const bool both_nan = std::isnan(actual) && std::isnan(expected);
    if (!both_nan && actual != expected) ++row.misplaced;
    return;
  }
  double error = std::abs(actual - expected);
  if (output.e4m3_scale > 0) error = std::max(0.0, error - e4m3_half_step(actual, output));
  row.error += error * error;
  row.expected += expected * expected;
  row.largest = std::max(row.largest, error);
}

}  // namespace

double ScreenedOutput::limit() const {
  switch (output->dtype()) {
    case Dtype::kF16:
      return kLargestF16;
    case Dtype::kBF16:
      return kLargestBF16;
    case Dtype::kE4M3:
      return kLargestE4M3 * scale();
    default:
      return std::numeric_limits<float>::max();
  }
}

ScreenTable screen_by(const ReferenceOutput& expected, const ScreenedOutput& output) {
  ScreenTable table;
  table.rows = expected.rows;
  table.num_heads = expected.num_heads;
  const auto heads = static_cast<std::size_t>(expected.num_heads);
  const auto columns = static_cast<std::size_t>(expected.v_head_size);
  table.of.resize(expected.rows.size() * heads);
  const double limit = output.limit();
  const Dtype dtype = output.output->dtype();
  const auto fill = [&](std::size_t i, std::vector<float>& stored) {
    ScreenedRow& row = table.of[i];
    const auto token = static_cast<std::size_t>(expected.rows[i / heads]);
    const std::size_t first = (token * heads + i % heads) * columns;
    load_floats(dtype, output.output->bytes() + first * dtype_size(dtype),
                static_cast<std::int64_t>(columns), stored.data());
    for (std::size_t c = 0; c < columns; ++c) {
      add_element(output.scale() * double{stored[c]}, expected.output[i * columns + c], output,
                  limit, row);
    }
    row.error = std::sqrt(row.error);
    row.expected = std::sqrt(row.expected);
    row.size = expected.row_size.empty() ? row.expected : expected.row_size[i];
    row.lse = expected.lse[i % heads * expected.rows.size() + i / heads];
  };
  for_each_chunk(std::ssize(table.of), 64, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> stored(columns);
    for (std::int64_t i = begin; i < end; ++i) fill(static_cast<std::size_t>(i), stored);
  });
  return table;
}

}  // namespace attnbench
