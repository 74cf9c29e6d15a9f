// Which forms of its main loop the Hopper kernel takes for a problem: copies of a step, maxima by
// integers, slopes of ALiBi.
#include "ops/cuda/attention/hopper_plan.h"

#include <doctest/doctest.h>

#include "ops/cuda/attention/hopper_problem_testing.h"

namespace attnbench::cuda {
namespace {

using Problem = HopperProblem;

TEST_CASE("the Hopper kernel has a step for every stage where it pays") {
  const auto unrolled = [](const Problem& problem, std::string_view options = {}) {
    return hopper_plan(problem.params, options).unrolled;
  };
  CHECK(unrolled(Problem(8192, 64, 64, 16)));
  CHECK(unrolled(Problem(8192, 128, 128, 16)));
  CHECK_FALSE(unrolled(Problem(8192, 128, 128, 16), "unroll=0"));
  CHECK_FALSE(unrolled(Problem(8192, 256, 256, 16)));
  CHECK_FALSE(unrolled(Problem(8192, 128, 128)));     // contiguous
  CHECK_FALSE(unrolled(Problem(512, 128, 128, 16)));  // a CTA stays for several row tiles
  CHECK_FALSE(unrolled(Problem(8192, 128, 128, 16), "ahead=1"));
  Problem full(8192, 128, 128, 16);
  full.params.score.window_right = -1;
  CHECK_FALSE(unrolled(full));
  Problem window(8192, 128, 128, 16);
  window.params.score.window_left = 1023;
  CHECK_FALSE(unrolled(window));
  Problem capped(8192, 128, 128, 16);
  capped.params.score.soft_cap = 30.0f;
  CHECK(unrolled(capped));
  CHECK_FALSE(unrolled(capped, "cap=0"));
  CHECK_FALSE(unrolled(capped, "cap=1"));
  CHECK(unrolled(capped, "cap=1:unroll=1"));
  Problem biased(8192, 256, 256, 16);
  biased.params.score.alibi = attn::Alibi::kKeyIndex;
  CHECK(unrolled(biased));
  CHECK_FALSE(unrolled(biased, "slopes=1"));
}

TEST_CASE("the Hopper kernel bounds maxima by integers where that was faster") {
  const auto bounds = [](const Problem& problem) { return hopper_plan(problem.params).bounds; };
  CHECK(bounds(Problem(8192, 64, 64, 16)));
  CHECK(!bounds(Problem(8192, 64, 64)));
  CHECK(!bounds(Problem(8192, 256, 256, 16)));
  CHECK(!bounds(Problem(8192, 192, 128, 16)));
  Problem window(8192, 128, 128, 16);
  window.params.score.window_left = 1023;
  CHECK(bounds(window));
  CHECK(hopper_plan(window.params).tile.ahead);
  window.params.score.window_left = 8191;
  CHECK(!bounds(window));
  CHECK(!hopper_plan(window.params).tile.ahead);
  Problem full(8192, 128, 128, 16);
  full.params.score.window_right = -1;
  CHECK(!bounds(full));
  Problem biased(8192, 256, 256, 16);
  biased.params.score.alibi = attn::Alibi::kContextRelative;
  CHECK(bounds(biased));
  CHECK(hopper_plan(biased.params).slopes > 0);
}

TEST_CASE("the Hopper kernel has linear ALiBi by products, where the scale keeps the order") {
  Problem biased(8192, 64, 64, 16);
  biased.params.score.alibi = attn::Alibi::kContextRelative;
  const HopperPlan plan = hopper_plan(biased.params);
  CHECK(plan.tile.slope_products);
  CHECK(plan.tile.tile_n == 112);
  CHECK(plan.reason.find("slopes by products") != std::string::npos);
  const HopperPlan by_distances = hopper_plan(biased.params, "slopes=1");
  CHECK_FALSE(by_distances.tile.slope_products);
  CHECK(by_distances.slopes > 0);
  CHECK(by_distances.tile.tile_n == 128);
  const HopperPlan without = hopper_plan(biased.params, "slopes=0");
  CHECK_FALSE(without.tile.slope_products);
  CHECK(without.scales_first);
  biased.params.score.softmax_scale = -0.1f;
  CHECK_FALSE(hopper_plan(biased.params).tile.slope_products);
  CHECK(hopper_plan(biased.params).slopes > 0);
  biased.params.score.softmax_scale = 0.1f;
  biased.params.score.alibi = attn::Alibi::kSqrt;
  CHECK_FALSE(hopper_plan(biased.params).tile.slope_products);
  CHECK_FALSE(hopper_plan(Problem(8192, 64, 64, 16).params).tile.slope_products);
}

}  // namespace
}  // namespace attnbench::cuda
