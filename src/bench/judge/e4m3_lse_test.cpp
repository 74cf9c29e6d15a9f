// LSEs of e4m3 queries and keys: a kernel that sums as a Hopper tensor core does is right, however
// large its products are, and whatever is wrong beside that is still found.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "bench/judge/judge.h"
#include "bench/judge/screened_judgement.h"
#include "reference/naive_attention.h"

namespace attnbench {
namespace {

constexpr int kColumns = 80;
constexpr float kQueryScale = 0.171f;
constexpr float kKeyScale = 0.0471f;
constexpr double kFloor = 2.5e-3;

int exponent_of_code(double code) { return std::max(std::ilogb(code), -6); }

/// Sum of products as SM 9.0 makes it, independent of the reference's own.
double tensor_core_sum(const float* query, const float* key) {
  double sum = 0;
  for (int begin = 0; begin < kColumns; begin += 32) {
    const int end = std::min(begin + 32, kColumns);
    int largest = sum != 0 ? std::ilogb(sum) : -100;
    for (int c = begin; c < end; ++c) {
      if (query[c] == 0 || key[c] == 0) continue;
      largest = std::max(largest, exponent_of_code(query[c]) + exponent_of_code(key[c]));
    }
    const double unit = std::ldexp(1.0, largest - 13);
    double next = std::trunc(sum / unit) * unit;
    for (int c = begin; c < end; ++c) {
      next += std::trunc(double{query[c]} * double{key[c]} / unit) * unit;
    }
    sum = next;
  }
  return sum;
}

/// Two requests of one head in e4m3. The second one has a column of outliers, which gives it
/// products of some 60 beside those of the others, and LSEs to match.
struct Batch {
  NaiveCase c;
  std::vector<float> query_codes, key_codes;
  Problem problem;
  Numerics numerics;
  float key_scale = kKeyScale;
  ReferenceOutput reference, emulation;
  PipelineOutput output;  // a right kernel's, of CPUs at first: nothing is cut

  Batch() {
    c.head_size = kColumns;
    c.v_head_size = 8;
    c.math.softmax_scale = 1 / std::sqrt(static_cast<double>(kColumns));
    for (const int tokens : {40, 60}) {
      c.add_request(tokens, tokens);
      problem.batch.push_back({tokens, tokens});
    }
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    c.fill(Dtype::kF32, [&] { return normal(random); });
    quantise(c.query, kQueryScale, 9.0f, query_codes);
    quantise(c.key, kKeyScale, 6.0f, key_codes);
    problem.attention.num_heads = problem.attention.num_kv_heads = 1;
    problem.attention.head_size = kColumns;
    problem.attention.v_head_size = c.v_head_size;
    problem.attention.scale = c.math.softmax_scale;
    problem.attention.causal = false;
    numerics.quantised_query = numerics.quantised_kv = true;
    compute();
    output.output = Tensor(Dtype::kBF16, {c.num_tokens(), 1, c.v_head_size});
    for (std::size_t i = 0; i < reference.output.size(); ++i) {
      output.output.set(static_cast<std::int64_t>(i), static_cast<float>(reference.output[i]));
    }
    set_lse([&](int row) { return reference.lse[static_cast<std::size_t>(row)]; });
  }

  ReferenceInputs inputs() const {
    ReferenceInputs inputs = c.inputs();
    inputs.query_scale = kQueryScale;
    inputs.key_scales = {&key_scale, 1};
    return inputs;
  }
  void compute() {
    reference = reference_attention(c.math, inputs(), c.all_rows()).value();
    emulation = emulate(emulation_rule(problem, numerics));
  }
  ReferenceOutput emulate(const EmulationRule& rule) const {
    return emulate_attention(c.math, inputs(), rule, c.all_rows()).value();
  }

  /// The LSE of a row with scores by sums of tensor cores, times `factor`.
  double kernel_lse(int row, double factor = 1) const {
    const int first = row < 40 ? 0 : 40, last = row < 40 ? 40 : 100;
    std::vector<double> scores;
    for (int key = first; key < last; ++key) {
      const double sum =
          tensor_core_sum(query_codes.data() + row * kColumns, key_codes.data() + key * kColumns);
      scores.push_back(factor * c.math.softmax_scale * kQueryScale * kKeyScale * sum);
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double weights = 0;
    for (const double score : scores) weights += std::exp(score - largest);
    return largest + std::log(weights);
  }
  void set_lse(const std::function<double(int)>& lse_of) {
    output.lse = Tensor(Dtype::kF32, {1, c.num_tokens()});
    for (int row = 0; row < c.num_tokens(); ++row) {
      output.lse->set(row, static_cast<float>(lse_of(row)));
    }
  }
  Judgement judge_by(const ReferenceOutput& yardstick) const {
    return judge(problem, numerics, output, {&reference, &yardstick, nullptr});
  }
  Judgement judge_it() const { return judge_by(emulation); }

  /// Limits of all rows.
  std::vector<double> limits() const {
    const RowsOfBatch tokens(problem);
    const LseComparison rows{&*output.lse,       reference.lse,  emulation.lse,
                             reference.lse_loss, reference.rows, tokens.batch()};
    return lse_errors(rows, lse_row_limits(Dtype::kBF16, false, true)).limits;
  }

 private:
  /// Values become codes times `scale`; of the second request's, one column is `outlier` larger.
  static void quantise(Tensor& tensor, float scale, float outlier, std::vector<float>& codes) {
    for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
      const bool is_outlier = i >= 40 * kColumns && i % kColumns == 17;
      const float value = tensor.at(i) * (is_outlier ? outlier : 1.0f);
      codes.push_back(round_to(Dtype::kE4M3, value / scale));
      tensor.set(i, codes.back() * scale);
    }
  }
};

}  // namespace

TEST_CASE("sums of e4m3 products by a tensor core are right, also where products are large") {
  Batch batch;
  batch.set_lse([&](int row) { return batch.kernel_lse(row); });
  const Judgement judgement = batch.judge_it();
  CHECK(judgement.reasons == std::vector<std::string>{});
  CHECK(judgement.lse_error->row_error < judgement.lse_error->row_limit);
  // By sums in float32 it was wrong.
  const EmulationRule in_float32{Dtype::kBF16, Dtype::kBF16};
  CHECK(batch.judge_by(batch.emulate(in_float32)).lse_error->rows_outside > 5);
}

TEST_CASE("LSE limits grow with large e4m3 products, and with them alone") {
  const Batch batch;
  const std::vector<double> limits = batch.limits();
  CHECK(std::all_of(limits.begin(), limits.begin() + 40, [](double x) { return x == kFloor; }));
  CHECK(std::count_if(limits.begin() + 40, limits.end(), [](double x) { return x > kFloor; }) > 10);
  CHECK(*std::max_element(limits.begin(), limits.end()) > 2 * kFloor);
  const double largest_lse =
      *std::max_element(batch.reference.lse.begin(), batch.reference.lse.end());
  CHECK(largest_lse > 40);
  CHECK(*std::max_element(limits.begin(), limits.end()) < 2e-3 * largest_lse);
}

TEST_CASE("an LSE beyond what e4m3 products cost is wrong, of small and of large products") {
  Batch batch;
  const std::vector<double> limits = batch.limits();
  SUBCASE("scores a thousandth too large") {
    batch.set_lse([&](int row) { return batch.kernel_lse(row, 1.001); });
    const ErrorStats found = *batch.judge_it().lse_error;
    CHECK(found.rows_outside > 20);
    CHECK(found.worst_row.request == 1);  // where scores are about 1, it is within the floor
  }
  SUBCASE("one row off by twice its limit") {
    for (const int wrong : {7, 39, 40, 83}) {
      CAPTURE(wrong);
      batch.set_lse([&](int row) {
        const double off = row == wrong ? 2 * limits[static_cast<std::size_t>(row)] : 0;
        return batch.reference.lse[static_cast<std::size_t>(row)] + off;
      });
      const Judgement judgement = batch.judge_it();
      CHECK(judgement.lse_error->rows_outside == 1);
      CHECK(judgement.lse_error->worst_row.token == wrong);
    }
  }
}

TEST_CASE("only queries and keys that are e4m3 codes are summed as those") {
  const EmulationRule in_float32{Dtype::kBF16, Dtype::kBF16};
  Batch batch;
  CHECK(emulation_rule(batch.problem, batch.numerics).e4m3_products);
  CHECK(batch.emulation.lse != batch.emulate(in_float32).lse);
  batch.key_scale = 1.1f * kKeyScale;
  CHECK(batch.emulate(emulation_rule(batch.problem, batch.numerics)).lse ==
        batch.emulate(in_float32).lse);

  batch.problem.kv_cache.dtype = KvCacheDtype::kInt4PerTokenHead;
  CHECK_FALSE(emulation_rule(batch.problem, batch.numerics).e4m3_products);
  batch.problem.kv_cache.dtype = KvCacheDtype::kAuto;
  batch.numerics.quantised_query = false;
  CHECK_FALSE(emulation_rule(batch.problem, batch.numerics).e4m3_products);
}

TEST_CASE("screening takes no right LSE of large e4m3 products for suspicious, and wrong ones") {
  Batch batch;
  const ReferenceOutput all = batch.reference;
  const std::vector<std::int32_t> checked{0, 8, 16, 24, 32, 39, 40, 47, 53, 60, 67, 74, 81, 88, 99};
  const auto part_of = [&](const ReferenceOutput& whole, const std::vector<std::int32_t>& rows) {
    ReferenceOutput part{rows, 1, whole.v_head_size, {}, {}};
    const auto take = [&](std::vector<double> ReferenceOutput::*values, std::size_t width) {
      if ((whole.*values).empty()) return;
      for (const std::int32_t row : rows) {
        const auto first = (whole.*values).begin() + static_cast<std::ptrdiff_t>(row * width);
        (part.*values).insert((part.*values).end(), first, first + static_cast<int>(width));
      }
    };
    take(&ReferenceOutput::output, static_cast<std::size_t>(whole.v_head_size));
    for (const auto values : {&ReferenceOutput::lse, &ReferenceOutput::row_size,
                              &ReferenceOutput::output_loss, &ReferenceOutput::lse_loss}) {
      take(values, 1);
    }
    return part;
  };
  const ReferenceOutput reference = part_of(all, checked);
  const ReferenceOutput emulation = part_of(batch.emulation, checked);
  const RowSample sample{checked, checked};
  std::vector<std::int32_t> suspects;
  const auto suspicious = [&]() -> const std::vector<std::int32_t>& {
    suspects.clear();
    ScreenTable table = screen_by(all, {&batch.output.output});
    table.is_float64 = true;
    judge_screened(
        {batch.problem, batch.numerics, batch.output, sample, {&reference, &emulation, nullptr}},
        &table, [&](const std::vector<std::int32_t>& rows) {
          suspects = rows;
          return OwnedYardsticks{part_of(all, rows), part_of(batch.emulation, rows), std::nullopt};
        });
    return suspects;
  };
  const auto kernel_lse = [&](int row) { return batch.kernel_lse(row); };
  batch.set_lse(kernel_lse);
  int beyond_the_floor = 0;
  for (int row = 0; row < 100; ++row) {
    const double error = std::abs(kernel_lse(row) - all.lse[static_cast<std::size_t>(row)]);
    beyond_the_floor += error > kFloor ? 1 : 0;
  }
  CHECK(beyond_the_floor > 5);
  CHECK(suspicious().size() <= 1);
  batch.set_lse([&](int row) { return kernel_lse(row) + (row == 50 || row == 3 ? 0.08 : 0.0); });
  CHECK(std::count(suspicious().begin(), suspicious().end(), 50) == 1);
  CHECK(std::count(suspicious().begin(), suspicious().end(), 3) == 1);
}

}  // namespace attnbench
