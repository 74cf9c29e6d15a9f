// What is chosen for prompts of few keys in codes of one byte.
#include "ops/cuda/attention/hopper_code_prompts.h"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include "ops/cuda/attention/hopper_problem_testing.h"

namespace attnbench::cuda {
namespace {

enum class Codes { kWide, kE4M3, kLevel1, kLevel2 };

HopperProblem prompt(Codes codes, int keys, int columns = 128) {
  static constexpr float kScale = 1.0f;
  HopperProblem problem(keys, columns, columns, 16);
  attn::AttendParams& params = problem.params;
  params.max_seq_len = keys;
  params.query_element = params.kv.element = attn::Element::kE4M3;
  params.e4m3_probability = codes == Codes::kE4M3 ? 1 : 0;
  if (codes == Codes::kLevel1 || codes == Codes::kLevel2) {
    params.query_element = params.kv.element = attn::Element::kI8;
    params.int8.query_scale = params.kv.key_scales = &kScale;
    params.int8.value_element = codes == Codes::kLevel1 ? attn::Element::kI8 : attn::Element::kBF16;
  }
  return problem;
}

/// "192x64, 2 stages, ahead, late": what it comes to.
std::string text(const HopperProblem& problem) {
  CHECK(problem.misfit() == "");
  const HopperPlan plan = hopper_plan(problem.params);
  return fmt::format("{}x{}, {} stages{}{}{}{}{}", plan.tile_rows(), plan.tile.tile_n,
                     plan.tile.stages, plan.ping_pong ? ", turns" : "",
                     plan.tile.ahead ? ", ahead" : "", plan.late_output ? ", late" : "",
                     plan.bounds ? ", bounds" : "", plan.apart ? ", apart" : "");
}
std::string text(Codes codes, int keys, int columns = 128) {
  return text(prompt(codes, keys, columns));
}

}  // namespace

TEST_CASE("prompts of few keys in e4m3 with P of 16 bits are done ahead") {
  CHECK(text(Codes::kWide, 256) == "192x64, 2 stages, ahead, late");
  CHECK(text(Codes::kWide, 512) == "192x64, 2 stages, ahead, late");
  CHECK(text(Codes::kWide, 1024) == "192x80, 3 stages, ahead, late, bounds");
  CHECK(text(Codes::kWide, 8192) == "192x80, 3 stages, ahead, late, bounds");
  CHECK(text(Codes::kWide, 8193) == "192x80, 3 stages, bounds");
  CHECK(text(Codes::kWide, 512, 64) == "192x96, 2 stages, turns, ahead");
  CHECK(text(Codes::kWide, 2048, 64) == "192x96, 2 stages, turns, ahead, bounds");
  CHECK(text(Codes::kWide, 4096, 256) == "128x64, 2 stages, turns, ahead");
  CHECK(text(Codes::kWide, 8192, 256) == "128x64, 2 stages, turns");
  CHECK(text(Codes::kWide, 512, 96) == "192x64, 3 stages");  // not measured
  HopperProblem window = prompt(Codes::kWide, 16384);
  window.params.score.window_left = 1023;
  CHECK(text(window) == "192x80, 2 stages, ahead, late");
}

TEST_CASE("prompts of few keys in e4m3 with P in e4m3 have sums by pieces") {
  CHECK(text(Codes::kE4M3, 1024) == "192x96, 2 stages, ahead");
  CHECK(text(Codes::kE4M3, 1025) == "192x128, 2 stages, turns, apart");
  CHECK(text(Codes::kE4M3, 1024, 64) == "192x96, 3 stages, ahead");
  CHECK(text(Codes::kE4M3, 1025, 64) == "192x192, 2 stages, turns, apart");
  CHECK(text(Codes::kE4M3, 2048, 256) == "128x64, 3 stages, ahead");
  CHECK(text(Codes::kE4M3, 2049, 256) == "128x96, 2 stages");
  CHECK(text(Codes::kE4M3, 512, 96) == "192x128, 2 stages, turns, apart");
  HopperProblem fast = prompt(Codes::kE4M3, 512);
  fast.params.fast_fp8_sums = 1;
  CHECK(text(fast) == "192x96, 3 stages");
  CHECK_THROWS_WITH(hopper_plan(prompt(Codes::kE4M3, 512).params, "late_output=1"),
                    "kernel hopper_prefill: late_output=1: columns of e4m3 products lie apart");
}

TEST_CASE("prompts of few keys by int8 scores are done ahead") {
  CHECK(text(Codes::kLevel1, 512) == "192x80, 2 stages, ahead");
  CHECK(text(Codes::kLevel2, 512) == "192x64, 2 stages, ahead, bounds");
  CHECK(text(Codes::kLevel2, 2048) == "192x80, 2 stages, ahead, bounds");
  CHECK(text(Codes::kLevel1, 4096) == "192x80, 2 stages");
  CHECK(text(Codes::kLevel1, 512, 64) == "192x64, 3 stages, ahead");
  CHECK(text(Codes::kLevel2, 4096, 64) == "192x96, 3 stages, ahead, bounds");
  CHECK(text(Codes::kLevel1, 8192, 64) == "192x128, 3 stages, bounds");
  CHECK(text(Codes::kLevel1, 4096, 256) == "128x64, 2 stages, ahead");
  CHECK(text(Codes::kLevel1, 8) == "64x64, 2 stages");  // a decode
}

TEST_CASE("what was not measured, and bytes that may not depend on the batch, keep a CTA each") {
  for (const Codes codes : {Codes::kWide, Codes::kE4M3, Codes::kLevel1, Codes::kLevel2}) {
    CAPTURE(static_cast<int>(codes));
    HopperProblem problem = prompt(codes, 512);
    CHECK(hopper_plan(problem.params).tile.ahead);
    CHECK_FALSE(hopper_plan(problem.params, "ahead=0").tile.ahead);
    problem.params.batch_invariant = 1;
    CHECK_FALSE(hopper_plan(problem.params).tile.ahead);
    problem = prompt(codes, 512);
    problem.params.score.window_right = -1;
    CHECK_FALSE(hopper_plan(problem.params).tile.ahead);
    problem = prompt(codes, 512);
    problem.params.score.soft_cap = 30.0f;
    CHECK_FALSE(hopper_plan(problem.params).tile.ahead);
    problem = prompt(codes, 512);
    problem.params.num_heads = 12;  // groups of 3 do not divide 64 rows
    CHECK_FALSE(hopper_plan(problem.params).tile.ahead);
  }
}

TEST_CASE("boxes of queries in e4m3 have lines of twice the elements") {
  const TensorMap map = hopper_query_map(prompt(Codes::kWide, 512).params);
  CHECK(map.dtype == Dtype::kE4M3);
  CHECK(map.box == TensorMap::PerDimension<int>{128, 4, 16, 1});
  CHECK(map.extents[0] == 128);
  CHECK(map.strides[2] == 16 * 128);
}

}  // namespace attnbench::cuda
