#include "metrics/row_rule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/error.h"

namespace attnbench {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

/// Rows of a batch, one token each request but the first, which has several.
struct Rows {
  std::int64_t heads = 2;
  std::int64_t width = 64;
  std::vector<std::int32_t> query_start_loc{0, 3, 4, 5};
  std::vector<std::int32_t> seq_lens{10, 4001, 20};
  std::vector<std::int32_t> rows{0, 1, 2, 3, 4};
  Dtype dtype = Dtype::kBF16;
  std::vector<double> expected;
  std::vector<double> emulated;
  std::vector<double> row_size;
  std::vector<double> loss;
  std::vector<double> actual;

  explicit Rows(double magnitude = 1) {
    std::mt19937_64 random(3);
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < num_rows() * width; ++i) {
      expected.push_back(magnitude * normal(random));
    }
    actual = emulated = expected;
    for (std::int64_t row = 0; row < num_rows(); ++row) row_size.push_back(norm(row));
  }
  std::int64_t num_rows() const { return static_cast<std::int64_t>(rows.size()) * heads; }
  double norm(std::int64_t row) const {
    double square = 0;
    for (std::int64_t i = 0; i < width; ++i) square += std::pow(expected[index(row, i)], 2);
    return std::sqrt(square);
  }
  std::size_t index(std::int64_t row, std::int64_t element = 0) const {
    return static_cast<std::size_t>(row * width + element);
  }
  /// Multiplies a row of a head.
  void scale(std::vector<double>& values, std::int64_t row, double factor) const {
    for (std::int64_t i = 0; i < width; ++i) values[index(row, i)] *= factor;
  }
  Tensor tensor() const {
    Tensor result(dtype, {static_cast<std::int64_t>(rows.size()), heads, width});
    for (std::size_t i = 0; i < actual.size(); ++i) {
      result.set(static_cast<std::int64_t>(i), static_cast<float>(actual[i]));
    }
    return result;
  }
  std::vector<std::string> judge(const RowLimits& limits, ErrorStats& stats) const {
    const Tensor values = tensor();
    return judge_rows(
        {&values, expected, emulated, row_size, loss, rows, {query_start_loc, seq_lens}}, limits,
        stats);
  }
  std::vector<std::string> judge(const RowLimits& limits) const {
    ErrorStats stats;
    return judge(limits, stats);
  }
};

RowLimits limits_of(double floor) {
  RowLimits limits;
  limits.floor = floor;
  return limits;
}

bool mentions(const std::vector<std::string>& reasons, const std::string& text) {
  return std::ranges::any_of(
      reasons, [&](const std::string& reason) { return reason.find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("one wrong row among right ones is named with its request, position and head") {
  Rows rows;
  rows.dtype = Dtype::kF32;
  rows.scale(rows.actual, 3 * 2 + 1, 1.025);
  ErrorStats stats;
  const std::vector<std::string> reasons = rows.judge(limits_of(4e-3), stats);
  REQUIRE(reasons.size() == 1);
  const std::string expected =
      "output of request 1, row 0 (position 4000), head 1: error 0.025 of the row's size, limit "
      "0.004; 1 row of 1 request is outside; output[3, 1, ";
  CHECK(reasons[0].substr(0, expected.size()) == expected);
  CHECK(stats.row_error == doctest::Approx(0.025));
  CHECK(stats.row_limit == 4e-3);
  CHECK(stats.worst_row == RowPlace{1, 3, 4000, 1});
  CHECK(stats.rows_outside == 1);
  CHECK(stats.requests_outside == 1);
}

TEST_CASE("rows and requests outside are counted, and the worst is the furthest beyond its limit") {
  Rows rows;
  rows.dtype = Dtype::kF32;
  rows.scale(rows.actual, 0, 1.01);
  rows.scale(rows.actual, 1, 1.02);
  rows.scale(rows.emulated, 8, 1.04);  // so that 5 % there are nothing unusual
  rows.scale(rows.actual, 8, 1.05);
  rows.scale(rows.actual, 7, 1.03);
  ErrorStats stats;
  CHECK(mentions(rows.judge(limits_of(4e-3), stats), "3 rows of 2 requests are outside"));
  CHECK(stats.worst_row == RowPlace{1, 3, 4000, 1});
}

TEST_CASE("the verdict does not depend on how large the values are") {
  for (const double magnitude : {1e-6, 1e-3, 1.0, 1e6}) {
    Rows right(magnitude);
    CHECK(right.judge(limits_of(4e-3)).empty());
    Rows zero(magnitude);
    std::fill(zero.actual.begin(), zero.actual.end(), 0.0);
    ErrorStats stats;
    CHECK_FALSE(zero.judge(limits_of(4e-3), stats).empty());
    CHECK(stats.row_error == doctest::Approx(1.0));
    CHECK(stats.rows_outside == zero.num_rows());
    Rows gain(magnitude);
    gain.scale(gain.actual, 5, 1.01);
    CHECK_FALSE(gain.judge(limits_of(4e-3)).empty());
  }
}

TEST_CASE("a row may err by twice the emulation's error of it, and by twice the request's median") {
  Rows rows;
  rows.dtype = Dtype::kF32;
  rows.scale(rows.emulated, 6, 1.02);
  rows.scale(rows.actual, 6, 1.039);
  CHECK(rows.judge(limits_of(4e-3)).empty());
  rows.scale(rows.actual, 6, 1.0025);
  CHECK_FALSE(rows.judge(limits_of(4e-3)).empty());

  Rows median;
  median.dtype = Dtype::kF32;
  for (const int row : {0, 1, 2, 3}) median.scale(median.emulated, row, 1.02);
  median.scale(median.actual, 5, 1.039);  // of the same request, but exact in the emulation
  CHECK(median.judge(limits_of(4e-3)).empty());
  median.scale(median.actual, 6, 1.039);  // of another one
  ErrorStats stats;
  CHECK_FALSE(median.judge(limits_of(4e-3), stats).empty());
  CHECK(stats.worst_row.request == 1);
}

TEST_CASE("what float32 loses on a row is allowed there") {
  Rows rows;
  rows.dtype = Dtype::kF32;
  rows.loss.assign(rows.row_size.size(), 0.0);
  rows.scale(rows.actual, 2, 1 + 1e-4);
  CHECK_FALSE(rows.judge(limits_of(1e-6)).empty());
  rows.loss[2] = 1e-4 * rows.row_size[2];
  CHECK(rows.judge(limits_of(1e-6)).empty());
  rows.scale(rows.actual, 3, 1 + 1e-4);
  CHECK_FALSE(rows.judge(limits_of(1e-6)).empty());
}

TEST_CASE("one element far out fails a row that is within its limit as a whole") {
  Rows rows;
  rows.dtype = Dtype::kF32;
  const double share = 4e-3 * rows.row_size[4] / std::sqrt(64.0);
  rows.actual[rows.index(4, 7)] += 7.9 * share;
  CHECK(rows.judge(limits_of(4e-3)).empty());
  rows.actual[rows.index(4, 7)] += 0.2 * share;
  RowLimits loose = limits_of(4e-3);
  const std::vector<std::string> reasons = rows.judge(loose);
  CHECK(mentions(reasons, "row 2 (position 9), head 0: "));
  // 8.1 shares of an element are 1.01 limits of the row, so that both halves of the rule say so.
  CHECK(mentions(reasons, "1 row of 1 request is outside"));
  loose.element_factor = 2;
  rows.actual[rows.index(4, 7)] = rows.expected[rows.index(4, 7)] + 3 * share;
  CHECK(mentions(rows.judge(loose), "element 7 is off by "));
}

TEST_CASE("a unit in the last place of the output's type is allowed to an element at any limit") {
  Rows rows;
  rows.row_size.assign(rows.row_size.size(), 1e9);  // nothing but elements decides
  RowLimits limits = limits_of(1e-30);
  limits.element_factor = 0;
  rows.expected[0] = 1;
  for (double& value : rows.expected) value = round_to(Dtype::kBF16, static_cast<float>(value));
  rows.actual = rows.emulated = rows.expected;
  rows.actual[0] = 1 + 0x1p-7;
  limits.floor = 1e-6;
  CHECK(rows.judge(limits).empty());
  rows.actual[0] = 1 + 0x1p-6;
  CHECK(mentions(rows.judge(limits), "element 0 is off by 0.0156"));
}

TEST_CASE("a row whose summands cancel is measured by their size") {
  Rows rows;
  rows.dtype = Dtype::kF32;
  rows.scale(rows.expected, 3, 1e-3);
  rows.emulated = rows.actual = rows.expected;
  for (std::int64_t i = 0; i < rows.width; ++i) rows.actual[rows.index(3, i)] *= 1.5;
  CHECK(rows.judge(limits_of(4e-3)).empty());  // half of a thousandth of the size
  rows.row_size[3] *= 1e-3;
  CHECK_FALSE(rows.judge(limits_of(4e-3)).empty());
}

TEST_CASE("a row without keys must be exactly zero") {
  Rows rows;
  rows.scale(rows.expected, 5, 0);
  rows.emulated = rows.actual = rows.expected;
  rows.row_size[5] = 0;
  CHECK(rows.judge(limits_of(4e-3)).empty());
  rows.actual[rows.index(5, 1)] = 1e-20;
  ErrorStats stats;
  CHECK(mentions(rows.judge(limits_of(4e-3), stats), "error inf of the row's size"));
}

TEST_CASE("a size or a loss that is no number allows nothing") {
  for (const double no_number : {kInfinite, kNotANumber}) {
    CAPTURE(no_number);
    Rows rows;
    rows.dtype = Dtype::kF32;
    rows.scale(rows.actual, 7, 1.5);
    rows.row_size[7] = no_number;
    ErrorStats stats;
    CHECK(mentions(rows.judge(limits_of(4e-3), stats), "request 1, row 0 (position 4000), head 1"));
    CHECK(stats.rows_outside == 1);
    rows.row_size[7] = rows.norm(7);
    rows.loss.assign(rows.row_size.size(), 0.0);
    rows.loss[7] = no_number;
    CHECK(mentions(rows.judge(limits_of(4e-3)), "error 0.5 of the row's size, limit 0.004"));
  }
}

TEST_CASE("a row whose error is no number does not hide a worse one") {
  const std::vector<std::int32_t> starts{0, 2}, lens{4}, rows{0, 1};
  const std::vector<double> expected{1, 2};
  const Tensor lse = Tensor::from_f32(std::vector<float>{1, 2.5f}, {1, 2});
  LseLimits limits;  // nothing is allowed: 0 / 0 for the first row
  ErrorStats stats;
  CHECK(mentions(judge_lse_rows({&lse, expected, {}, {}, rows, {starts, lens}}, limits, stats),
                 "lse[0, 1] is 2.5, reference 2"));
  const std::vector<double> loss{kInfinite, kInfinite};
  limits.floor = 1e-5;
  CHECK(mentions(judge_lse_rows({&lse, expected, {}, loss, rows, {starts, lens}}, limits, stats),
                 "error 0.5, limit 1e-05; 1 row"));
}

TEST_CASE("rows to check that do not ascend, or are none, are named with their place") {
  const Rows rows;
  const Tensor values = rows.tensor();
  const RowBatch batch{rows.query_start_loc, rows.seq_lens};
  const auto said = [&](const std::vector<std::int32_t>& checked) {
    ErrorStats stats;
    try {
      judge_rows({&values, {}, {}, {}, {}, checked, batch}, limits_of(1), stats);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(said({1, 1}) == "rows[1] is 1 after 1: rows must ascend");
  CHECK(said({0, 9}) == "rows[1] is 9, but the output has 5 rows");
}

TEST_CASE("NaN and infinity out of place fail a row, in their places they do not count") {
  Rows rows;
  rows.dtype = Dtype::kF32;
  rows.actual[rows.index(9, 3)] = kNotANumber;
  ErrorStats stats;
  const std::vector<std::string> reasons = rows.judge(limits_of(4e-3), stats);
  CHECK(mentions(reasons,
                 "NaN or infinity in different places; 1 row of 1 request is outside; output[4, 1, "
                 "3] is nan"));
  CHECK(stats.worst_row == RowPlace{2, 4, 19, 1});
  rows.expected[rows.index(9, 3)] = kNotANumber;
  CHECK(rows.judge(limits_of(4e-3)).empty());
  rows.actual[rows.index(9, 4)] = -kInfinite;
  rows.expected[rows.index(9, 4)] = -kInfinite;
  rows.emulated[rows.index(9, 4)] = kNotANumber;
  CHECK(rows.judge(limits_of(4e-3)).empty());
  rows.expected[rows.index(9, 4)] = kInfinite;
  CHECK_FALSE(rows.judge(limits_of(4e-3)).empty());
  rows.dtype = Dtype::kF16;
  rows.actual[rows.index(9, 4)] = kInfinite;
  rows.expected[rows.index(9, 4)] = 70000;  // overflows float16
  CHECK(rows.judge(limits_of(4e-3)).empty());
}

TEST_CASE("e4m3 codes are held to the least error that their values can have had") {
  Rows rows;
  rows.dtype = Dtype::kE4M3;
  RowLimits limits = limits_of(4e-3);
  limits.e4m3_scale = 0.5;
  for (double& value : rows.actual) value = round_to(Dtype::kE4M3, static_cast<float>(2 * value));
  CHECK(rows.judge(limits).empty());
  // 3 % before quantisation move half of the codes and are within a step everywhere.
  for (std::int64_t i = 0; i < rows.width; ++i) {
    const double value = 1.03 * rows.expected[rows.index(6, i)];
    rows.actual[rows.index(6, i)] = round_to(Dtype::kE4M3, static_cast<float>(2 * value));
  }
  CHECK(mentions(rows.judge(limits), "request 1, row 0"));
  rows.actual = rows.expected;
  for (double& value : rows.actual) value = round_to(Dtype::kE4M3, static_cast<float>(2 * value));
  limits.floor = 10;  // rows pass, elements do not
  limits.element_factor = 1e-6;
  rows.actual[rows.index(0, 0)] *= 1.5;
  CHECK(mentions(rows.judge(limits), "e4m3 steps off"));
}

TEST_CASE("e4m3 codes saturate where the reference is beyond their range") {
  Rows rows;
  rows.dtype = Dtype::kE4M3;
  RowLimits limits = limits_of(4e-3);
  limits.e4m3_scale = 1;
  for (double& value : rows.expected) value = std::copysign(1000 * std::abs(value) + 500, value);
  rows.expected[0] = -kInfinite;
  for (std::size_t i = 0; i < rows.actual.size(); ++i) {
    rows.actual[i] = std::copysign(448.0, rows.expected[i]);
  }
  rows.emulated = rows.expected;
  CHECK(rows.judge(limits).empty());
  rows.actual[1] = -rows.actual[1];
  CHECK_FALSE(rows.judge(limits).empty());
}

TEST_CASE("an LSE is judged by rows, absolute, with four times what rounding costs there") {
  const std::vector<std::int32_t> starts{0, 1, 3}, lens{7, 9}, rows{0, 2};
  const std::vector<double> expected{3, -kInfinite, 5, 6};  // [H, rows]
  std::vector<double> emulated = expected;
  std::vector<double> loss(4, 0.0);
  std::vector<float> actual{3, 0, -std::numeric_limits<float>::infinity(), 5, 0, 6};  // [H, T]
  LseLimits limits;
  limits.floor = 1e-5;
  ErrorStats stats;
  const auto judge = [&] {
    const Tensor lse = Tensor::from_f32(actual, {2, 3});
    return judge_lse_rows({&lse, expected, emulated, loss, rows, {starts, lens}}, limits, stats);
  };
  CHECK(judge().empty());
  CHECK(stats.checked_rows == 0);  // of compare(), which was not called
  actual[5] = 6.0001f;
  CHECK(judge() == std::vector<std::string>{
                       "lse of request 1, row 1 (position 8), head 1: error 0.0001, limit 1e-05; 1 "
                       "row of 1 request is outside; lse[1, 2] is 6.0001, reference 6"});
  CHECK(stats.worst_row == RowPlace{1, 2, 8, 1});
  const Tensor lse = Tensor::from_f32(actual, {2, 3});
  CHECK(lse_rows_outside({&lse, expected, emulated, loss, rows, {starts, lens}}, limits) ==
        std::vector<std::int64_t>{3});
  emulated[3] = 6.00003;
  CHECK(judge().empty());
  emulated[3] = 6;
  loss[3] = 1e-4;  // [rows, H]
  CHECK(judge().empty());
  actual[2] = 0;
  CHECK(mentions(judge(), "lse[0, 2] is 0, reference -inf"));
}

TEST_CASE("limits follow what output and P are stored in") {
  const auto floor = [](const ToleranceQuery& query) { return output_row_limits(query).floor; };
  CHECK(floor({.output = Dtype::kF32}) < floor({.output = Dtype::kF16}));
  CHECK(floor({.output = Dtype::kF16}) < floor({.output = Dtype::kBF16}));
  CHECK(floor({.output = Dtype::kF16, .probability = Dtype::kBF16}) ==
        floor({.output = Dtype::kBF16}));
  CHECK(floor({.output = Dtype::kBF16, .probability = Dtype::kE4M3}) >
        floor({.output = Dtype::kBF16}));
  const RowLimits fused = output_row_limits({.static_fp8_scale = 0.5, .computed = Dtype::kF16});
  CHECK(fused.e4m3_scale == 0.5);
  CHECK(fused.floor == floor({.output = Dtype::kF16}));
  CHECK(lse_row_limits(Dtype::kF32).floor < lse_row_limits(Dtype::kBF16).floor);
  CHECK(lse_row_limits(Dtype::kBF16).floor < 1e-3);
}

TEST_CASE("no rows pass with nothing judged, tensors that do not fit are refused") {
  Rows rows;
  const Tensor values = rows.tensor();
  const RowBatch batch{rows.query_start_loc, rows.seq_lens};
  ErrorStats stats;
  CHECK(judge_rows({&values, {}, {}, {}, {}, {}, batch}, limits_of(1), stats).empty());
  CHECK(std::isnan(stats.row_error));
  CHECK(stats.worst_row == RowPlace{});
  const std::vector<double> few(4);
  CHECK_THROWS_AS(
      judge_rows({&values, few, {}, rows.row_size, {}, rows.rows, batch}, limits_of(1), stats),
      Error);
  const std::vector<std::int32_t> past{5};
  CHECK_THROWS_AS(judge_rows({&values, {}, {}, {}, {}, past, batch}, limits_of(1), stats), Error);
}

TEST_CASE("errors and limits of all rows are told besides the verdict") {
  Rows rows;
  rows.dtype = Dtype::kF32;
  rows.scale(rows.actual, 2, 1.01);
  rows.scale(rows.emulated, 1, 1.02);
  const Tensor values = rows.tensor();
  const RowComparison comparison{&values,
                                 rows.expected,
                                 rows.emulated,
                                 rows.row_size,
                                 {},
                                 rows.rows,
                                 {rows.query_start_loc, rows.seq_lens}};
  CHECK(rows_outside(comparison, limits_of(4e-3)) == std::vector<std::int64_t>{2});
  CHECK(rows_outside(comparison, limits_of(2e-2)).empty());
  const RowErrors found = row_errors(comparison, limits_of(4e-3));
  CHECK(found.errors[2] == doctest::Approx(0.01).epsilon(1e-3));
  CHECK(found.limits[1] == doctest::Approx(0.04));
  CHECK(found.limits[2] == 4e-3);
  CHECK(row_limits(comparison, limits_of(4e-3)) == found.limits);
  CHECK(request_medians(found.errors, rows.rows, comparison.batch, 2)[1] < 1e-6);
}

}  // namespace attnbench
