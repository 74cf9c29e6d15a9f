#include <doctest/doctest.h>

#include <cmath>

#include "bench/judge/op_judge.h"
#include "core/error.h"

namespace attnbench::op_judge_test {
namespace {

constexpr std::int64_t kElements = 200'000;  // in several parts

/// One output of e4m3 codes that must equal the expected ones.
struct Example {
  OpExpectations expected;
  PipelineOutput output;

  Example() {
    Tensor codes(Dtype::kE4M3, {kElements});
    for (std::int64_t i = 0; i < kElements; ++i) {
      codes.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i % 0x70);
    }
    output.output = codes;
    expected.outputs.emplace_back();
    expected.outputs[0].name = "output";
    expected.outputs[0].exact = std::move(codes);
  }
  std::uint8_t& code(std::int64_t i) { return output.output.data<std::uint8_t>()[i]; }
};

}  // namespace

TEST_CASE("equal codes have no error and a cosine of 1") {
  Example example;
  example.expected.outputs[0].exact.data<std::uint8_t>()[150'000] = 0x7F;
  example.code(150'000) = 0x7F;
  const Judgement judgement = judge_op(example.expected, example.output);
  CHECK(judgement.reasons.empty());
  CHECK(judgement.error.max_abs == 0);
  CHECK(judgement.error.rms_rel == 0);
  CHECK(judgement.error.cosine == doctest::Approx(1));
  CHECK(judgement.error.matched_pct == 100);
  CHECK(judgement.error.nan_count == 1);
}

TEST_CASE("codes that differ are counted over the whole output and the first one is named") {
  Example example;
  double expected2 = 0;
  for (std::int64_t i = 0; i < kElements; ++i) {
    expected2 += std::pow(example.output.output.at(i), 2);
  }
  // 0x38 is 1 and 0x40 is 2; 56 and 64 are such places, and so are those of later rounds of codes.
  example.code(112 * 1700 + 56) = 0x40;
  example.code(112 * 900 + 56) = 0x40;
  example.code(112 * 900 + 64) = 0x38;
  const Judgement judgement = judge_op(example.expected, example.output);
  REQUIRE(judgement.reasons.size() == 1);
  CHECK(judgement.reasons[0] ==
        "output[100856] is 0x40, expected 0x38; 3 of 200000 elements differ");
  CHECK(judgement.error.worst_index == std::vector<std::int64_t>{112 * 900 + 56});
  CHECK(judgement.error.max_abs == 1);
  CHECK(judgement.error.mean_abs == doctest::Approx(3.0 / kElements));
  CHECK(judgement.error.rms_rel == doctest::Approx(std::sqrt(3 / expected2)));
  CHECK(judgement.error.matched_pct == doctest::Approx(100.0 * (kElements - 3) / kElements));
}

TEST_CASE("e2m1 codes may be a step apart in a thousandth of the nibbles of all parts") {
  Example example;
  example.expected.outputs[0].e2m1_steps = true;
  example.expected.outputs[0].exact = Tensor(Dtype::kU8, {kElements});
  example.output.output = Tensor(Dtype::kU8, {kElements});
  for (std::int64_t i = 0; i < kElements; i += 500) example.code(i) = 0x10;  // 400 of 400,000
  CHECK(judge_op(example.expected, example.output).reasons.empty());
  example.code(kElements - 1) = 0x10;
  CHECK(judge_op(example.expected, example.output).reasons.size() == 1);
  example.code(kElements - 1) = 0;
  example.code(0) = 0x02;
  CHECK(judge_op(example.expected, example.output).reasons.size() == 1);
}

TEST_CASE("an LSE may be missing of a kernel that says that it writes none, and of no other") {
  Example example;
  example.expected.outputs.emplace_back();
  example.expected.outputs[1].name = "lse";
  example.expected.outputs[1].is_lse = true;
  CHECK_THROWS_WITH_AS(judge_op(example.expected, example.output),
                       doctest::Contains("the operation left no 'lse'"), Error);
  CHECK(judge_op(example.expected, example.output, true).reasons.empty());
}

}  // namespace attnbench::op_judge_test
