#include "reference/ops/merge_states.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace attnbench::merge_states_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNaN = std::numeric_limits<float>::quiet_NaN();

/// One token, one head, one element.
struct Part {
  Tensor output, lse;
  Part(float value, float its_lse)
      : output(Tensor::from_f32(std::vector<float>{value}, {1, 1, 1})),
        lse(Tensor::from_f32(std::vector<float>{its_lse}, {1, 1})) {}
  PartialState state() const { return {&output, &lse, 0, 0, 1}; }
};

const std::vector<std::int32_t> kRow{0};
const StateRows kOne{kRow, 1, 1, 1};

MergedState merged(const Part& prefix, const Part& suffix, std::int64_t num_merged = 1) {
  return merge_states(prefix.state(), suffix.state(), num_merged, kOne, Arithmetic::kF64);
}

TEST_CASE("merge: the golden values of semantics 16") {
  const MergedState both = merged({1, 0}, {3, std::log(3.0f)});
  CHECK(both.output[0] == doctest::Approx(2.5).epsilon(1e-7));
  CHECK(both.lse[0] == doctest::Approx(std::log(4.0)).epsilon(1e-7));
  for (const float none : {kInf, -kInf}) {
    const MergedState one = merged({2, none}, {5, 0.25f});
    CHECK(one.output[0] == 5.0);
    CHECK(one.lse[0] == 0.25);
    const MergedState neither = merged({2, none}, {kNaN, none});
    CHECK(neither.output[0] == 0.0);
    CHECK(neither.lse[0] == -std::numeric_limits<double>::infinity());
  }
}

TEST_CASE("merge: data of weight 0 may be NaN, a NaN LSE propagates, later rows are the suffix") {
  CHECK(merged({kNaN, -kInf}, {5, 1}).output[0] == 5.0);
  CHECK(std::isnan(merged({1, kNaN}, {5, 1}).output[0]));
  CHECK(std::isnan(merged({1, 1}, {5, kNaN}).lse[0]));
  const MergedState copied = merged({kNaN, kNaN}, {5, 1}, 0);
  CHECK(copied.output[0] == 5.0);
  CHECK(copied.lse[0] == 1.0);
}

TEST_CASE("merge: many rows and heads are merged as each of them alone") {
  constexpr std::int64_t kTokens = 50, kHeads = 3, kSize = 2;
  Tensor prefix(Dtype::kF32, {kTokens, kHeads, kSize}), suffix(Dtype::kF32, prefix.shape());
  Tensor prefix_lse(Dtype::kF32, {kHeads, kTokens}), suffix_lse(Dtype::kF32, prefix_lse.shape());
  for (std::int64_t i = 0; i < prefix.num_elements(); ++i) {
    prefix.set(i, static_cast<float>(i));
    suffix.set(i, static_cast<float>(-i));
  }
  for (std::int64_t i = 0; i < prefix_lse.num_elements(); ++i) {
    prefix_lse.set(i, static_cast<float>(i % 7));
    suffix_lse.set(i, static_cast<float>(i % 5));
  }
  const PartialState p{&prefix, &prefix_lse, 0, 0, kSize}, s{&suffix, &suffix_lse, 0, 0, kSize};
  std::vector<std::int32_t> rows;
  for (std::int32_t row = 1; row < kTokens; row += 2) rows.push_back(row);
  const MergedState all =
      merge_states(p, s, kTokens, {rows, kTokens, kHeads, kSize}, Arithmetic::kF64);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const std::int64_t state = rows[i] * kHeads + h, lse = h * kTokens + rows[i];
      const double wp = std::exp(double{prefix_lse.at(lse)});
      const double ws = std::exp(double{suffix_lse.at(lse)});
      const auto line = i * kHeads + static_cast<std::size_t>(h);
      const double expected = 2 * static_cast<double>(state) * (wp - ws) / (wp + ws);
      wrong += std::abs(all.output[line * kSize] - expected) > 1e-9;
      const std::size_t at = static_cast<std::size_t>(h) * rows.size() + i;
      wrong += std::abs(all.lse[at] - std::log(wp + ws)) > 1e-12;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("ranks: weights by their base, NaN and +inf LSEs are empty") {
  const Part a(1, 0), b(3, std::log(3.0f)), nothing(kNaN, kNaN), infinite(kNaN, kInf);
  const std::vector<PartialState> ranks{a.state(), nothing.state(), b.state(), infinite.state()};
  const MergedState sum = combine_states(ranks, LseBase::kE, kOne, Arithmetic::kF64);
  CHECK(sum.output[0] == doctest::Approx(2.5).epsilon(1e-7));
  CHECK(sum.lse[0] == doctest::Approx(std::log(4.0)).epsilon(1e-7));
  const MergedState own = correct_state(ranks, 2, LseBase::kE, kOne, Arithmetic::kF64);
  CHECK(own.output[0] == doctest::Approx(2.25).epsilon(1e-7));
  CHECK(correct_state(ranks, 1, LseBase::kE, kOne, Arithmetic::kF64).output[0] == 0.0);

  const Part quarter(1, 0), three_quarters(3, std::log2(3.0f));
  const std::vector<PartialState> two{quarter.state(), three_quarters.state()};
  const MergedState in_two = combine_states(two, LseBase::kTwo, kOne, Arithmetic::kF64);
  CHECK(in_two.output[0] == doctest::Approx(2.5).epsilon(1e-7));
  CHECK(in_two.lse[0] == doctest::Approx(2.0).epsilon(1e-7));
}

TEST_CASE("ranks: nobody saw a key") {
  const Part a(kNaN, -kInf), b(1, kNaN);
  const std::vector<PartialState> ranks{a.state(), b.state()};
  const MergedState sum = combine_states(ranks, LseBase::kE, kOne, Arithmetic::kF32);
  CHECK(sum.output[0] == 0.0);
  CHECK(sum.lse[0] == -std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace attnbench::merge_states_test
