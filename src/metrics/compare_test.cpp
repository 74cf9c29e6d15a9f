#include "metrics/compare.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/error.h"

namespace attnbench {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// One head, one row: elements of an output [1, 1, n].
struct Case {
  std::vector<float> actual;
  std::vector<double> expected;
  std::vector<double> emulated;
  Dtype dtype = Dtype::kF32;

  Verdict judge(const Tolerance& tolerance) const {
    Tensor tensor(dtype, {1, 1, static_cast<std::int64_t>(actual.size())});
    for (std::size_t i = 0; i < actual.size(); ++i) {
      tensor.set(static_cast<std::int64_t>(i), actual[i]);
    }
    const std::vector<std::int32_t> rows{0};
    return compare({&tensor, expected, emulated, rows, false}, tolerance);
  }
};

Tolerance limits(double atol, double rtol) {
  Tolerance tolerance;
  tolerance.atol = atol;
  tolerance.rtol = rtol;
  return tolerance;
}

bool mentions(const Verdict& verdict, const std::string& text) {
  for (const std::string& reason : verdict.reasons) {
    if (reason.find(text) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("every number of a comparison follows its definition") {
  // Errors 0.5, 0, 0; |a-r|^2 = 0.25, |r|^2 = 9 + 16 = 25, |a|^2 = 12.25 + 16, a.r = 10.5 + 16.
  const Case example{{3.5f, 4.0f, 0.0f}, {3, 4, 0}, {3, 4.25, 0}};
  const ErrorStats stats = example.judge(limits(0.125, 0)).stats;
  CHECK(stats.max_abs == 0.5);
  CHECK(stats.mean_abs == doctest::Approx(0.5 / 3));
  CHECK(stats.rms_rel == doctest::Approx(0.1));
  CHECK(stats.nmse == doctest::Approx(0.01));
  CHECK(stats.cosine == doctest::Approx(26.5 / (std::sqrt(28.25) * 5)));
  CHECK(stats.err_ratio == doctest::Approx(2.0));
  CHECK(stats.matched_pct == doctest::Approx(200.0 / 3));
  CHECK(stats.worst_index == std::vector<std::int64_t>{0, 0, 0});
  CHECK(stats.worst_actual == 3.5);
  CHECK(stats.worst_expected == 3);
  CHECK(stats.checked_rows == 1);
  CHECK(stats.total_rows == 1);
}

TEST_CASE("only the checked rows are compared and the worst index names the token") {
  Tensor actual(Dtype::kF32, {4, 2, 2});
  for (std::int64_t i = 0; i < 16; ++i) actual.set(i, static_cast<float>(i));
  // Tokens 1 and 3 hold 4..7 and 12..15; token 3, head 1, element 0 is 14.
  const std::vector<double> expected{4, 5, 6, 7, 12, 13, 14.5, 15};
  const std::vector<std::int32_t> rows{1, 3};
  const Verdict verdict = compare({&actual, expected, {}, rows, false}, limits(0.25, 0));
  CHECK_FALSE(verdict.passed);
  CHECK(verdict.stats.worst_index == std::vector<std::int64_t>{3, 1, 0});
  CHECK(verdict.stats.checked_rows == 2);
  CHECK(verdict.stats.total_rows == 4);
}

TEST_CASE("a comparison of many rows adds up to what its rows say, in their order") {
  constexpr std::int64_t kRows = 3000, kWidth = 1024;  // in several parts
  Tensor actual(Dtype::kF32, {kRows, 1, kWidth});
  std::vector<double> expected(static_cast<std::size_t>(kRows * kWidth), 2.0);
  std::vector<std::int32_t> rows(kRows);
  for (std::int64_t row = 0; row < kRows; ++row) {
    rows[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(row);
  }
  std::fill_n(actual.data<float>(), kRows * kWidth, 2.0f);
  const auto set = [&](std::int64_t row, std::int64_t element, float value) {
    actual.set(row * kWidth + element, value);
  };
  set(1500, 7, 2.5f);
  set(2900, 1, 2.5f);  // as far away, later
  set(400, 3, 2.25f);
  set(2000, 5, static_cast<float>(kNaN));
  set(1200, 9, static_cast<float>(kInf));
  const Verdict verdict = compare({&actual, expected, expected, rows, false}, limits(0.125, 0));
  const ErrorStats& stats = verdict.stats;
  CHECK(stats.max_abs == 0.5);
  CHECK(stats.nan_count == 1);
  CHECK(stats.inf_count == 1);
  const double finite = kRows * kWidth - 2;
  CHECK(stats.mean_abs == doctest::Approx(1.25 / finite));
  CHECK(stats.rms_rel == doctest::Approx(std::sqrt(0.5625 / (4 * finite))));
  CHECK(stats.matched_pct == doctest::Approx(100 - 500.0 / (kRows * kWidth)));
  REQUIRE(verdict.reasons.size() >= 2);
  CHECK(verdict.reasons[0].find("output[1200, 0, 9] is inf") != std::string::npos);
  CHECK(verdict.reasons[1].find("output[1500, 0, 7] is 2.5") != std::string::npos);
}

TEST_CASE("an LSE is indexed by head and token") {
  Tensor lse(Dtype::kF32, {2, 3});
  for (std::int64_t i = 0; i < 6; ++i) lse.set(i, static_cast<float>(i));
  const std::vector<double> expected{1, 2, 4, 5.5};
  const std::vector<std::int32_t> rows{1, 2};
  const Verdict verdict = compare({&lse, expected, {}, rows, true}, lse_tolerance(Dtype::kBF16));
  CHECK_FALSE(verdict.passed);
  CHECK(verdict.stats.max_abs == 0.5);
  CHECK(verdict.stats.worst_index == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("an element on the limit passes and one just outside fails") {
  const Tolerance tolerance = limits(0.25, 0.125);  // |r| = 2: limit 0.5
  CHECK(Case{{2.5f}, {2}, {2.5}}.judge(tolerance).passed);
  const Verdict outside = Case{{2.5000002f}, {2}, {2.5}}.judge(tolerance);
  CHECK_FALSE(outside.passed);
  CHECK(mentions(outside, "1 of 1 elements outside the limit"));
}

TEST_CASE("err_ratio may reach 2, with soft-cap 3, and decides nothing below a tenth of atol") {
  Tolerance plain = output_tolerance({.output = Dtype::kF16});
  plain.min_cosine = -1;
  Tolerance capped = output_tolerance({.output = Dtype::kF16, .soft_cap = true});
  capped.min_cosine = -1;
  const double step = std::ldexp(1.0, -12);  // over atol / 10 = 2e-4
  const auto with_error = [&](double error, double emulated_error) {
    return Case{{static_cast<float>(1 + error)}, {1}, {1 + emulated_error}};
  };
  CHECK(with_error(2 * step, step).judge(plain).passed);
  CHECK_FALSE(with_error(3 * step, step).judge(plain).passed);
  CHECK(with_error(3 * step, step).judge(capped).passed);
  CHECK_FALSE(with_error(4 * step, step).judge(capped).passed);
  const double small = std::ldexp(1.0, -13);  // 1.2e-4
  CHECK(with_error(small, small / 8).judge(plain).passed);
}

TEST_CASE("without an emulation error there is no err_ratio and only a tenth of atol is allowed") {
  const Tolerance tolerance = limits(0.5, 0);
  const Verdict within = Case{{1.03125f}, {1}, {1}}.judge(tolerance);
  CHECK(std::isnan(within.stats.err_ratio));
  CHECK(within.passed);
  const Verdict over = Case{{1.0625f}, {1}, {1}}.judge(tolerance);
  CHECK_FALSE(over.passed);
  CHECK(mentions(over, "storage precision has no error"));
}

TEST_CASE("a cosine below the limit fails although every element is within it") {
  Tolerance tolerance = limits(0.5, 0);
  tolerance.min_cosine = 1 - 1e-5;
  const Verdict verdict = Case{{0.25f, 0.0f}, {0.25, 0.25}, {0, 0}}.judge(tolerance);
  CHECK(verdict.stats.matched_pct == 100);
  CHECK_FALSE(verdict.passed);
  CHECK(mentions(verdict, "cosine"));
}

TEST_CASE("the cosine keeps enough digits for the float32 limit of 1e-9") {
  // Orthogonal errors of relative size e lower the cosine by e^2 / 2.
  std::vector<float> actual;
  std::vector<double> expected;
  for (int i = 0; i < 100000; ++i) {
    expected.push_back(1);
    actual.push_back(i % 2 == 0 ? 1.0f + 0x1p-13f : 1.0f - 0x1p-13f);
  }
  const double cosine = Case{actual, expected, {}}.judge(limits(1, 0)).stats.cosine;
  CHECK(1 - cosine == doctest::Approx(0x1p-27).epsilon(1e-6));
}

TEST_CASE("NaN and infinities must stand in the same places with the same sign") {
  const Tolerance tolerance = limits(0.25, 0);
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  const auto inf = std::numeric_limits<float>::infinity();
  const Verdict same = Case{{nan, inf, -inf, 1}, {kNaN, kInf, -kInf, 1}, {}}.judge(tolerance);
  CHECK(same.passed);
  CHECK(same.stats.nan_count == 1);
  CHECK(same.stats.inf_count == 2);
  CHECK(same.stats.matched_pct == 100);
  CHECK(same.stats.max_abs == 0);
  CHECK_FALSE(Case{{inf}, {-kInf}, {}}.judge(tolerance).passed);
  CHECK_FALSE(Case{{1}, {kNaN}, {}}.judge(tolerance).passed);
  CHECK_FALSE(Case{{inf}, {kNaN}, {}}.judge(tolerance).passed);
  const Verdict unwritten = Case{{1, nan}, {1, 2}, {}}.judge(tolerance);
  CHECK_FALSE(unwritten.passed);
  CHECK(unwritten.stats.worst_index == std::vector<std::int64_t>{0, 0, 1});
  CHECK(mentions(unwritten, "output[0, 0, 1] is nan, reference 2"));
}

TEST_CASE("float16 infinity is right where the reference overflows float16") {
  Case overflow{{std::numeric_limits<float>::infinity()}, {70000}, {}, Dtype::kF16};
  CHECK(overflow.judge(limits(1e-3, 1e-3)).passed);
  overflow.dtype = Dtype::kBF16;
  CHECK_FALSE(overflow.judge(limits(1e-3, 1e-3)).passed);
}

TEST_CASE("a zero reference has no relative error unless the output is zero too") {
  CHECK(Case{{0}, {0}, {}}.judge(limits(0.1, 0)).stats.rms_rel == 0);
  CHECK(Case{{0}, {0}, {}}.judge(limits(0.1, 0)).stats.cosine == 1);
  const Verdict nonzero = Case{{0.25f}, {0}, {}}.judge(limits(0.1, 0));
  CHECK(std::isnan(nonzero.stats.rms_rel));
  CHECK(std::isnan(nonzero.stats.cosine));
  CHECK_FALSE(nonzero.passed);
}

TEST_CASE("no rows at all pass with nothing compared") {
  const Tensor output(Dtype::kBF16, {0, 2, 8});
  const Verdict verdict = compare({&output, {}, {}, {}, false}, output_tolerance({}));
  CHECK(verdict.passed);
  CHECK(verdict.stats.checked_rows == 0);
  CHECK(verdict.stats.worst_index.empty());
  CHECK(std::isnan(verdict.stats.max_abs));
}

TEST_CASE("tensors that do not fit the reference are refused") {
  const Tensor output(Dtype::kBF16, {2, 1, 4});
  const std::vector<double> expected(4);
  const std::vector<std::int32_t> past_the_end{2};
  CHECK_THROWS_AS(compare({&output, expected, {}, past_the_end, false}, {}), Error);
  const std::vector<std::int32_t> both{0, 1};
  CHECK_THROWS_AS(compare({&output, expected, {}, both, false}, {}), Error);
}

TEST_CASE("a limit relative to the largest magnitude scales with the reference") {
  const Tolerance tolerance = output_tolerance({.fp8_query = true, .e4m3_probability = true});
  REQUIRE(tolerance.relative_to_max);
  Case example;  // one large value of 40, so that the RMS is small: 0.03 * 100 = 3
  example.expected.assign(40, 0);
  example.expected[0] = 100;
  example.emulated = example.expected;
  example.actual.assign(example.expected.begin(), example.expected.end());
  example.emulated[1] = example.actual[1] = 2.5f;
  CHECK(example.judge(tolerance).passed);
  example.emulated[1] = example.actual[1] = 3.5f;
  CHECK_FALSE(example.judge(tolerance).passed);
}

TEST_CASE("rounding P to e4m3 passes however few outputs are judged, a larger error does not") {
  const Tolerance tolerance = output_tolerance({.fp8_query = true, .e4m3_probability = true});
  constexpr int kDraws = 400;
  constexpr std::size_t kOutputs = 128;
  // Over long contexts output and rounding errors are sums of many terms: normal, 0.025 apart.
  constexpr double kRounding = 0.025;
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  Case example;
  example.expected.resize(kOutputs);
  example.emulated.resize(kOutputs);
  example.actual.resize(kOutputs);
  for (int draw = 0; draw < kDraws; ++draw) {
    for (std::size_t i = 0; i < kOutputs; ++i) {
      example.expected[i] = normal(random);
      example.emulated[i] = example.expected[i] + kRounding * normal(random);
      example.actual[i] = static_cast<float>(example.expected[i] + kRounding * normal(random));
    }
    // Of so few outputs the ratio of two largest errors scatters too, and is not the matter here.
    CHECK_FALSE(mentions(example.judge(tolerance), "outside the limit"));
  }
  const auto low =
      std::ranges::min_element(example.expected, {}, [](double value) { return std::abs(value); });
  example.actual[static_cast<std::size_t>(low - example.expected.begin())] = 0.15f;
  CHECK(mentions(example.judge(tolerance), "1 of 128 elements"));
}

TEST_CASE("static fp8 output may be one e4m3 step off in one element of a hundred") {
  const Tolerance tolerance = output_tolerance({.output = Dtype::kE4M3, .static_fp8_scale = 0.5});
  Case example;
  example.dtype = Dtype::kE4M3;
  example.expected.assign(100, 1.0);   // 1.0 / 0.5 = 2.0, a code of its own
  example.emulated.assign(100, 1.03);  // 2.06 / 1 rounds to 2.0
  example.actual.assign(100, 2.0f);
  CHECK(example.judge(tolerance).passed);
  example.actual[7] = 2.25f;  // the next code
  Verdict one_step = example.judge(tolerance);
  CHECK(one_step.stats.matched_pct == 99);
  CHECK(one_step.stats.max_abs == 0.125);
  // The emulation is exact here, so the ratio does not exist and the step must be explained by it.
  CHECK_FALSE(one_step.passed);
  example.emulated[0] = 1.13;  // 2.26 rounds to 2.25: the emulation is a step off somewhere too
  CHECK(example.judge(tolerance).passed);
  example.actual[8] = 2.25f;
  CHECK_FALSE(example.judge(tolerance).passed);
  example.actual[8] = 2.0f;
  example.actual[7] = 2.5f;
  CHECK(mentions(example.judge(tolerance), "2 e4m3 steps"));
}

TEST_CASE("static fp8 output may differ by what its type of computation may differ before") {
  Tolerance tolerance = output_tolerance(
      {.output = Dtype::kE4M3, .static_fp8_scale = 0.01, .computed = Dtype::kBF16});
  Case example;
  example.dtype = Dtype::kE4M3;
  example.expected.assign(100, 1e-4);  // a value near zero
  example.emulated.assign(100, -1e-2);
  example.actual.assign(100, 1.0f);  // 0.01: many codes away, inside the limit of bfloat16
  CHECK(example.judge(tolerance).passed);
  example.actual[3] = 1.125f;  // the next code
  CHECK(example.judge(tolerance).passed);
  example.actual[3] = 1.25f;
  CHECK(mentions(example.judge(tolerance), "2 e4m3 steps"));
  tolerance = output_tolerance({.output = Dtype::kE4M3, .static_fp8_scale = 0.01});
  example.actual[3] = 1.0f;
  CHECK_FALSE(example.judge(tolerance).passed);  // an exact value has one code
}

TEST_CASE("static fp8 output saturates where the reference is beyond its range") {
  const Tolerance tolerance = output_tolerance({.output = Dtype::kE4M3, .static_fp8_scale = 1});
  CHECK(
      Case{{448.0f, -448.0f}, {1000, -kInf}, {1000, -kInf}, Dtype::kE4M3}.judge(tolerance).passed);
}

TEST_CASE("the limits are those of semantics 14.2") {
  const auto check = [](const ToleranceQuery& query, double tolerance, double cosine_gap) {
    const Tolerance result = output_tolerance(query);
    CAPTURE(result.rule);
    CHECK(result.atol == doctest::Approx(tolerance));
    CHECK(result.rtol == doctest::Approx(tolerance));
    CHECK(1 - result.min_cosine == doctest::Approx(cosine_gap));
  };
  check({.output = Dtype::kF32}, 2e-5, 1e-9);
  check({.output = Dtype::kF16}, 2e-3, 1e-6);
  check({.output = Dtype::kBF16}, 1e-2, 1e-5);
  check({.output = Dtype::kF16, .quantised_kv = true}, 4e-3, 1e-5);
  check({.output = Dtype::kBF16, .quantised_kv = true}, 2e-2, 1e-5);
  check({.output = Dtype::kF32, .quantised_kv = true}, 2e-5, 1e-9);
  check({.output = Dtype::kBF16, .quantised_kv = true, .fp8_query = true}, 3e-2, 1e-4);
  check({.fp8_query = true, .e4m3_probability = true}, 3e-2, 1e-3);
  CHECK(lse_tolerance(Dtype::kF32).atol == 1e-5);
  CHECK(lse_tolerance(Dtype::kBF16).atol == 1e-3);
  CHECK(lse_tolerance(Dtype::kBF16).rtol == 1e-5);
}

TEST_CASE("a base-2 LSE and a positive empty row are named") {
  const std::vector<std::int32_t> rows{0, 1};
  const std::vector<double> natural{std::log(3.0), -kInf};
  const Tolerance tolerance = lse_tolerance(Dtype::kBF16);
  const auto diagnose = [&](double first, double second) {
    const std::vector<float> values{static_cast<float>(first), static_cast<float>(second)};
    const Tensor lse = Tensor::from_f32(values, {1, 2});
    const Comparison comparison{&lse, natural, {}, rows, true};
    return std::pair{compare(comparison, tolerance).passed, diagnose_lse(comparison, tolerance)};
  };
  CHECK(diagnose(std::log(3.0), -kInf) == std::pair<bool, std::string>{true, ""});
  CHECK(diagnose(std::log2(3.0), -kInf).second == "LSE is in base 2, expected natural");
  CHECK(diagnose(std::log(3.0), kInf).second ==
        "LSE of rows that see no key is +inf, expected -inf");
  CHECK(diagnose(7, -kInf) == std::pair<bool, std::string>{false, ""});
}

TEST_CASE("a base-2 LSE of MLA is named, whose error is held against that in storage precision") {
  const std::vector<std::int32_t> rows{0};
  const std::vector<double> natural{3}, emulated{3.001};
  const Tensor lse = Tensor::from_f32(std::vector<float>{3.002f / std::log(2.0f)}, {1, 1});
  const Comparison comparison{&lse, natural, emulated, rows, true};
  CHECK(diagnose_lse(comparison, lse_tolerance(Dtype::kBF16, true)) ==
        "LSE is in base 2, expected natural");
}

TEST_CASE("an LSE that is outside of its ratio to the emulation alone has no other convention") {
  const std::vector<std::int32_t> rows{0};
  const std::vector<double> natural{12.1565}, emulated{12.1569};
  const Tensor lse = Tensor::from_f32(std::vector<float>{12.1611f}, {1, 1});
  const Comparison comparison{&lse, natural, emulated, rows, true};
  const Tolerance tolerance = lse_tolerance(Dtype::kBF16, true);
  CHECK_FALSE(compare(comparison, tolerance).passed);
  CHECK(diagnose_lse(comparison, tolerance) == "");
}

TEST_CASE("an LSE that was converted from a wrong declaration is named by what was declared") {
  const std::vector<std::int32_t> rows{0, 1};
  const std::vector<double> natural{std::log(3.0), -kInf};
  const Tolerance tolerance = lse_tolerance(Dtype::kBF16);
  // Base of the first row and infinity of the second, as written and as declared.
  const auto diagnose = [&](bool base_two, bool plus_inf, const LseConvention& declared) {
    const std::vector<float> values{
        to_natural(static_cast<float>(base_two ? std::log2(3.0) : std::log(3.0)), declared),
        to_natural(static_cast<float>(plus_inf ? kInf : -kInf), declared)};
    const Tensor lse = Tensor::from_f32(values, {1, 2});
    return diagnose_lse({&lse, natural, {}, rows, true}, tolerance, declared);
  };
  for (const bool base_two : {false, true}) {
    for (const bool plus_inf : {false, true}) {
      const LseConvention declared{base_two, plus_inf};
      CHECK(diagnose(base_two, plus_inf, declared) == "");
      const std::string base =
          base_two ? "LSE is natural, declared base 2" : "LSE is in base 2, declared natural";
      const std::string infinity = plus_inf ? "LSE of rows that see no key is -inf, declared +inf"
                                            : "LSE of rows that see no key is +inf, declared -inf";
      CHECK(diagnose(!base_two, plus_inf, declared) == base);
      CHECK(diagnose(base_two, !plus_inf, declared) == infinity);
      CHECK(diagnose(!base_two, !plus_inf, declared) == base + "; " + infinity);
    }
  }
}

TEST_CASE("the limit text tells the whole rule") {
  const Verdict verdict = Case{{1}, {1}, {1}}.judge(output_tolerance({.output = Dtype::kBF16}));
  CHECK(verdict.stats.limit ==
        "|a-r| <= 0.01 + 0.01*|r|, cosine >= 1-1e-05, err_ratio <= 2 or max_abs <= 0.001");
  CHECK(verdict.stats.rule == "semantics 14.2 bfloat16");
}

}  // namespace attnbench
