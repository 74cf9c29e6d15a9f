#include "ops/cuda/attention/hopper_tiles.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/hopper_problem_testing.h"

namespace attnbench::cuda {

TEST_CASE("tiles beside others: which heads, in which plan, by how many CTAs") {
  HopperProblem problem(1, 128, 128, 16);
  CHECK(hopper_beside_use(problem.params) == TileUse::kWhereItPays);
  CHECK(hopper_beside_use(problem.params, "beside=0") == TileUse::kNever);
  CHECK(hopper_beside_use(problem.params, "beside=3") == TileUse::kAlways);
  CHECK(hopper_beside_use(problem.params, "few=0") == TileUse::kNever);
  CHECK(hopper_beside_use(problem.params, "persistent=1:beside=2") == TileUse::kAlways);
  CHECK(hopper_beside_use(problem.params, "stages=2") == TileUse::kWhereItPays);
  CHECK(hopper_beside_use(HopperProblem(1, 192, 128, 16).params) == TileUse::kNever);
  CHECK(hopper_beside_use(HopperProblem(1, 96, 96, 16).params) == TileUse::kNever);
  CHECK(hopper_beside_use(HopperProblem(1, 64, 64, 16).params) == TileUse::kWhereItPays);
  CHECK(beside_use(problem.params, "hopper_tiles:beside=2") == TileUse::kAlways);
  CHECK(beside_use(problem.params, "prefill") == TileUse::kWhereItPays);
  attn::TileListParams list{};
  list.tile_rows = 128;
  list.num_ctas = 132;
  list.num_tiles = 740;
  list.num_bundles = 100;
  list.num_beside = 640;
  list.parts.num_splits = 5;
  const Target target = target_of_sm(90);
  CHECK(hopper_tiles_misfit(target, problem.params, list) == "");
  const auto plan_of = [&](std::string_view options) {
    return hopper_tiles_plan(target, problem.params, list, options);
  };
  const HopperPlan plan = plan_of("");
  CHECK(plan.reason ==
        "100 tiles of 128 rows by 64 keys, 3 stages, drawn by CTAs, queries ahead; beside them 640 "
        "tiles of at most 8 rows, 2 stages of 16 keys, a tile a warp");
  const AttendKernel kernel = hopper_tiles_kernel(problem.params, list, plan);
  CHECK(kernel.threads == 512);
  CHECK(value_of(kernel.spec, "int kBeside") == "2");
  CHECK(value_of(kernel.spec, "int kSharing") == "1");
  CHECK(value_of(kernel.spec, "bool kFew") == "false");
  CHECK(hopper_tiles_shape(kernel, list, plan).grid_x == 132);
  CHECK(plan_of("shares=1").shares);
  CHECK(plan_of("beside=3:stages=2").tile.beside == 3);
  // Registers for wider tiles are not there.
  CHECK_THROWS_WITH_AS(plan_of("tile_n=144"),
                       "kernel hopper_tiles: tile_n=144: 128 keys at most with tiles beside",
                       Error);
  list.num_beside = 100;  // fewer than warps: four to each
  CHECK(plan_of("").shares);
  list.num_bundles = 7;
  CHECK(hopper_tiles_shape(kernel, list, plan_of("")).grid_x == 100);
  list.tile_rows = 192;
  CHECK(hopper_tiles_misfit(target, problem.params, list) ==
        "tiles of 192 rows, and others beside them: it takes 128");
  list.tile_rows = 128;
  CHECK(hopper_tiles_misfit(target, HopperProblem(1, 96, 96, 16).params, list) ==
        "head sizes 96 and 96: beside the consumers there is room for 64 and 128");
  // hopper_prefill has none, whatever the option says.
  CHECK(hopper_prefill_kernel(problem.params, hopper_plan(problem.params, "beside=3")).threads ==
        hopper_prefill_kernel(problem.params, hopper_plan(problem.params)).threads);
}

TEST_CASE("prompts of a list over many keys have the forms of long prompts") {
  const Target target = target_of_sm(90);
  attn::TileListParams list{};
  list.tile_rows = 192;
  list.num_ctas = 132;
  list.num_tiles = list.num_bundles = 400;
  list.parts.num_splits = 1;
  const HopperProblem problem(2048, 128, 128, 16);
  const auto is_long = [&](const std::string& options = "") {
    const HopperPlan plan = hopper_tiles_plan(target, problem.params, list, options);
    CHECK(plan.bounds == plan.unrolled);
    return plan.bounds;
  };
  list.most_keys = 4095;
  CHECK_FALSE(is_long());
  list.most_keys = 8192;
  CHECK(is_long());
  CHECK_FALSE(is_long("bounds=0:unroll=0"));
  CHECK_FALSE(is_long("persistent=1"));
  // Where there are tiles beside, of prompts or of a cascade, maxima alone.
  list.tile_rows = 128;
  list.num_beside = 100;
  for (const int parts : {1, 3}) {
    list.parts.num_splits = parts;
    const HopperPlan beside = hopper_tiles_plan(target, problem.params, list);
    CHECK(beside.bounds);
    CHECK_FALSE(beside.unrolled);
  }
  list.num_beside = 0;
  CHECK_FALSE(hopper_tiles_plan(target, problem.params, list).bounds);
}

TEST_CASE("CTAs stay for a cascade's list where a group's heads divide a box of queries") {
  attn::TileListParams list{};
  list.tile_rows = 192;
  list.num_ctas = 132;
  list.num_tiles = list.num_bundles = 400;
  list.parts.num_splits = 3;
  const Target target = target_of_sm(90);
  HopperProblem problem(1, 128, 128, 16);
  CHECK(hopper_tiles_plan(target, problem.params, list).stays());
  problem.params.num_heads = 28;
  problem.params.num_kv_heads = 4;
  CHECK_FALSE(hopper_tiles_plan(target, problem.params, list).stays());
  CHECK_THROWS_WITH_AS(hopper_tiles_plan(target, problem.params, list, "persistent=1"),
                       "kernel hopper_tiles: persistent=1: groups of 7 heads, which do not divide "
                       "64 rows",
                       Error);
}

TEST_CASE("decodes may go apart where the Hopper kernel would do all, and go by an option") {
  const auto use = [](const HopperProblem& problem, std::string_view forced = {}, int sm = 90) {
    return apart_use(target_of_sm(sm), problem.params, forced);
  };
  const auto e4m3 = [](int query_len = 1024, int head_size = 128, int v_head_size = 128) {
    HopperProblem problem(query_len, head_size, v_head_size, 16);
    problem.params.query_element = problem.params.kv.element = attn::Element::kE4M3;
    return problem;
  };
  CHECK(use(e4m3()) == ApartUse::kWhereItPays);
  CHECK(use(e4m3(1024, 64, 64)) == ApartUse::kWhereItPays);
  HopperProblem decoded = e4m3();
  decoded.params.query_element = attn::Element::kBF16;
  CHECK(use(decoded) == ApartUse::kWhereItPays);
  CHECK(use(e4m3(16)) == ApartUse::kNever);  // 64 rows, which the decode kernel does
  CHECK(use(e4m3(1024, 256, 256)) == ApartUse::kWhereItPays);
  CHECK(use(HopperProblem(1024, 128, 128, 16)) == ApartUse::kWhereItPays);
  CHECK(use(e4m3(), {}, 89) == ApartUse::kNever);
  CHECK(use(HopperProblem(1024, 128, 128, 16), {}, 89) == ApartUse::kNever);
  // A kernel that is forced does all of it, unless its options say otherwise.
  for (const char* forced : {"hopper_prefill", "decode", "decode:few=1", "decode:own_call=0"}) {
    CAPTURE(forced);
    CHECK(use(e4m3(), forced) == ApartUse::kNever);
  }
  for (const char* forced : {"decode:own_call=1", "decode:few=1:own_call=1"}) {
    CAPTURE(forced);
    CHECK(forced_options_misfit(forced).empty());
    for (const int head_size : {128, 256}) {
      CHECK(use(HopperProblem(1024, head_size, head_size, 16), forced) == ApartUse::kAlways);
    }
    CHECK(use(e4m3(), forced, 80) == ApartUse::kAlways);
  }
}

}  // namespace attnbench::cuda
