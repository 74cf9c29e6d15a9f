#include "ops/cuda/attention/hopper_options.h"

#include <doctest/doctest.h>

#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/hopper_problem_testing.h"

namespace attnbench::cuda {
namespace {

TEST_CASE("options behind the Hopper kernel's name override its plan, and wrong ones are told") {
  const HopperPlan plan =
      hopper_plan(HopperProblem().params,
                  "tile_n=64:consumers=2:stages=3:persistent=1:ping_pong=1:fixed_base=1:group=5");
  CHECK(plan.tile.tile_n == 64);
  CHECK(plan.tile.consumers == 2);
  CHECK(plan.tile.stages == 3);
  CHECK(plan.persistent);
  CHECK(plan.ping_pong);
  CHECK(plan.fixed_base);
  CHECK(plan.group == 5);
  CHECK(plan.reason.find("as asked for") != std::string::npos);
  CHECK(hopper_prefill_options_misfit("tile_n=80:stages=4") == "");
  CHECK(hopper_prefill_options_misfit("tile_n=70") ==
        "tile_n=70: 64 to 256 in steps of 16 is possible");
  CHECK(hopper_prefill_options_misfit("stages=5") == "stages=5: 2 to 4 is possible");
  CHECK(hopper_prefill_options_misfit("stages=3x") == "stages=3x: 2 to 4 is possible");
  CHECK(hopper_prefill_options_misfit("stage=3").find(
            "'stage=3' is no option=number of it (known: ") == 0);
  CHECK(hopper_prefill_options_misfit("reverse").find("'reverse' is no option=number of it") == 0);
  CHECK(forced_options_misfit("hopper_prefill") == "");
  CHECK(forced_options_misfit("hopper_prefill:reverse=1") == "");
  CHECK(forced_options_misfit("prefill:reverse=1") == "it has no options");
}

TEST_CASE("options that are of the other Hopper kernel alone are told") {
  for (const char* of_tiles : {"few=1", "beside=2", "shares=0"}) {
    CAPTURE(of_tiles);
    CHECK(hopper_tiles_options_misfit(of_tiles) == "");
    CHECK(hopper_prefill_options_misfit(of_tiles).find(
              fmt::format("'{}' is no option", of_tiles)) == 0);
  }
  for (const char* of_prefill :
       {"consumers=2", "line=64", "ping_pong=1", "late_output=1", "fixed_base=1", "reverse=1",
        "group=2", "cap=1", "fit=1", "apart=1", "wide=1"}) {
    CAPTURE(of_prefill);
    CHECK(hopper_prefill_options_misfit(of_prefill) == "");
    CHECK(forced_options_misfit(fmt::format("hopper_tiles:{}", of_prefill))
              .find(fmt::format("'{}' is no option", of_prefill)) == 0);
  }
  CHECK(hopper_tiles_options_misfit("cap=1").find("beside") != std::string::npos);
  CHECK(hopper_prefill_options_misfit("beside=1").find("beside,") == std::string::npos);
}

}  // namespace
}  // namespace attnbench::cuda
