#include "bench/judge/screened_judgement.h"

#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <vector>

namespace attnbench {
namespace {

/// Tokens of one request with two heads of two columns each; all rows are checked.
struct Tokens {
  int count;
  Problem problem;
  PipelineOutput output;
  ReferenceOutput reference;
  ReferenceOutput emulation;
  RowSample sample;
  std::optional<ReferenceOutput> as_run;        // what kernels' own form gives for all rows
  std::vector<ReferenceOutput> by_other_codes;  // of all rows, each as right as `reference`
  std::vector<std::int32_t> asked_rows;
  std::vector<int> asked_heads;

  explicit Tokens(int num_tokens) : count(num_tokens) {
    problem.attention.num_heads = problem.attention.num_kv_heads = 2;
    problem.attention.head_size = problem.attention.v_head_size = 2;
    problem.batch = {{count, count}};
    output.output = Tensor(Dtype::kBF16, {count, 2, 2});
    output.lse = Tensor(Dtype::kF32, {2, count});
    reference.num_heads = reference.v_head_size = 2;
    for (int i = 0; i < count; ++i) {
      reference.rows.push_back(i);
      for (int head = 0; head < 2; ++head) {
        reference.output.insert(reference.output.end(), {1.0, 2.0});
        reference.lse.push_back(0.5);
        reference.row_size.push_back(std::sqrt(5.0));
      }
    }
    for (int i = 0; i < count * 4; ++i) {
      output.output.set(i, static_cast<float>(reference.output[static_cast<std::size_t>(i)]));
    }
    for (int i = 0; i < count * 2; ++i) output.lse->set(i, 0.5f);
    emulation = reference;
    emulation.row_size.clear();
    sample = {reference.rows, reference.rows};
  }

  /// By what `as_run` gives for the rows and heads that are asked for; without a second look where
  /// it is none.
  std::optional<Judgement> judge(bool stops = false) {
    asked_rows.clear();
    asked_heads.clear();
    const Numerics numerics;
    ScreenedTrial trial{problem, numerics, output, sample, {&reference, &emulation, nullptr}};
    if (as_run) {
      trial.emulate_as_run = [&](const std::vector<std::int32_t>& rows,
                                 const std::vector<int>& heads) -> std::optional<ReferenceOutput> {
        asked_rows = rows;
        asked_heads = heads;
        if (stops) return std::nullopt;
        ReferenceOutput part{rows, static_cast<int>(heads.size()), 2, {}, {}};
        for (const std::int32_t row : rows) {
          for (const int head : heads) {
            const auto first = as_run->output.begin() + (row * 2 + head) * 2;
            part.output.insert(part.output.end(), first, first + 2);
          }
        }
        for (const int head : heads) {
          for (const std::int32_t row : rows) {
            part.lse.push_back(as_run->lse[static_cast<std::size_t>(head * count + row)]);
          }
        }
        return part;
      };
    }
    if (!by_other_codes.empty()) {
      trial.other_codes =
          [&](const std::vector<std::int32_t>& rows,
              const std::vector<int>& heads) -> std::optional<std::vector<OwnedYardsticks>> {
        asked_rows = rows;
        asked_heads = heads;
        if (stops) return std::nullopt;
        std::vector<OwnedYardsticks> results;
        for (const ReferenceOutput& other : by_other_codes) {
          ReferenceOutput emulated = other;
          emulated.row_size.clear();
          results.push_back({other, emulated, std::nullopt});
        }
        return results;
      };
    }
    return judge_screened(trial, nullptr, {});
  }
};

}  // namespace

TEST_CASE("rows outside by an emulation in another form are judged by that of the kernel's") {
  Tokens tokens(5);
  CHECK(tokens.judge()->reasons.empty());
  tokens.output.output.set(2 * 4 + 2 + 1, 2.0625f);  // token 2, head 1
  tokens.output.lse->set(3, 0.51f);                  // head 0, token 3
  const std::vector<std::string> reasons = tokens.judge()->reasons;
  REQUIRE(reasons.size() == 2);
  tokens.as_run = tokens.emulation;  // the same again
  CHECK(tokens.judge()->reasons == reasons);
  CHECK(tokens.asked_rows == std::vector<std::int32_t>{2, 3});
  CHECK(tokens.asked_heads == std::vector<int>{0, 1});
  tokens.as_run->output[2 * 4 + 2 + 1] = 2.04;
  REQUIRE(tokens.judge()->reasons.size() == 1);
  CHECK(tokens.judge()->reasons[0] == reasons[1]);
  tokens.as_run->lse[3] = 0.506;
  CHECK(tokens.judge()->reasons.empty());
  CHECK(tokens.judge()->error.row_limit > 0.03);
  // What is inside by the first emulation stays so: the other head of the same token.
  tokens.emulation.output[2 * 4 + 1] = 2.04;
  tokens.output.output.set(2 * 4 + 1, 2.0625f);
  CHECK(tokens.judge()->reasons.empty());
  // An error that no rounding explains stays outside.
  tokens.output.output.set(2 * 4 + 2 + 1, 2.125f);
  CHECK(tokens.judge()->reasons.size() == 1);
  CHECK_FALSE(tokens.judge(true));
}

TEST_CASE("many rows outside are no accident of an emulation's form") {
  Tokens tokens(300);
  for (int row = 0; row < 257; ++row) tokens.output.output.set(row * 4, 1.125f);
  tokens.as_run = tokens.emulation;
  CHECK(tokens.judge()->reasons.size() == 1);
  CHECK(tokens.asked_rows.empty());
  tokens.output.output.set(0, 1);
  CHECK(tokens.judge()->reasons.size() == 1);
  CHECK(tokens.asked_rows.size() == 256);
}

TEST_CASE("a row that another order of the query's sum explains is inside, and nothing else") {
  Tokens tokens(20);
  ReferenceOutput other = tokens.reference;
  other.output[2 * 4 + 2 + 1] = 2.25;  // token 2, head 1
  other.lse[20 + 2] = 0.75;
  tokens.output.output.set(2 * 4 + 2 + 1, 2.25f);
  tokens.output.lse->set(20 + 2, 0.75f);
  CHECK(tokens.judge()->reasons.size() == 2);
  tokens.by_other_codes = {tokens.reference, other};
  CHECK(tokens.judge()->reasons.empty());
  CHECK(tokens.asked_rows == std::vector<std::int32_t>{2});
  CHECK(tokens.asked_heads == std::vector<int>{1});
  CHECK_FALSE(tokens.judge(true));
  // Output and LSE are those of the same codes.
  tokens.output.lse->set(20 + 2, 0.5f);
  CHECK(tokens.judge()->reasons.size() == 1);
  tokens.output.lse->set(20 + 2, 0.75f);
  tokens.output.output.set(2 * 4 + 2 + 1, 2.0f);
  CHECK(tokens.judge()->reasons.size() == 1);
  // Half of the way is explained by neither.
  tokens.output.output.set(2 * 4 + 2 + 1, 2.125f);
  CHECK_FALSE(tokens.judge()->reasons.empty());
  // A head of the same row that no codes explain stays outside.
  tokens.output.output.set(2 * 4 + 2 + 1, 2.25f);
  tokens.output.output.set(2 * 4 + 1, 2.25f);
  CHECK(tokens.judge()->reasons.size() == 1);
  CHECK(tokens.asked_heads == std::vector<int>{0, 1});
}

TEST_CASE("many rows outside are not explained by the order of sums") {
  Tokens tokens(20);
  ReferenceOutput other = tokens.reference;
  for (int row = 0; row < 17; ++row) {
    tokens.output.output.set(row * 4, 1.125f);
    other.output[static_cast<std::size_t>(row) * 4] = 1.125;
  }
  tokens.by_other_codes = {other};
  CHECK(tokens.judge()->reasons.size() == 1);
  CHECK(tokens.asked_rows.empty());
  tokens.output.output.set(0, 1);
  CHECK(tokens.judge()->reasons.empty());
}

}  // namespace attnbench
