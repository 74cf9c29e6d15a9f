// Which tile, boxes and grid a problem gets from the Hopper kernel's launcher, and how the grid
// divides the work among CTAs.
#include "ops/cuda/attention/hopper_prefill.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/hopper_problem_testing.h"
#include "ops/cuda/recording_ops.h"

namespace attnbench::cuda {
namespace {

/// What problems that are returned point to: one of their own would move with them.
alignas(128) std::array<char, 128> kRows{};

using Problem = HopperProblem;

/// Queries, keys, values and probabilities in e4m3; contiguous unless there are blocks.
Problem codes(int head_size = 128, int v_head_size = 128, int block_size = 0) {
  Problem problem(8192, head_size, v_head_size, block_size);
  problem.params.query_element = problem.params.kv.element = attn::Element::kE4M3;
  problem.params.query = problem.params.kv.key = problem.params.kv.value = kRows.data();
  problem.params.output = kRows.data();
  problem.params.e4m3_probability = 1;
  return problem;
}
/// bf16 queries over e4m3.
Problem converted(int head_size = 128, int v_head_size = 128, int block_size = 0) {
  Problem problem = codes(head_size, v_head_size, block_size);
  problem.params.query_element = attn::Element::kBF16;
  problem.params.e4m3_probability = 0;
  return problem;
}

std::string plan_text(const Problem& problem, std::string_view options = {}) {
  const HopperPlan plan = hopper_plan(problem.params, options);
  return fmt::format("{}x{}", plan.tile_rows(), plan.tile.tile_n);
}

}  // namespace

TEST_CASE(
    "the Hopper kernel takes heads of multiples of 8, over pages of 16, on compute capability 9.0, "
    "and says why not") {
  for (const int size : {40, 72, 88, 120, 248}) {
    CAPTURE(size);
    CHECK(Problem(8192, size, size).misfit() == "");
    CHECK(Problem(8192, size, size, 16).misfit() ==
          fmt::format("head size {} over pages is not a multiple of 16", size));
  }
  for (const int size : {32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256}) {
    CAPTURE(size);
    CHECK(Problem(8192, size, size).misfit() == "");
    CHECK(Problem(8192, size, size, 16).misfit() == "");
    CHECK(Problem(100, size, size, 48).misfit() == "");
  }
  CHECK(Problem(8192, 192, 128).misfit() == "");
  CHECK(Problem().misfit(80) == "compute capability 8.0: its instructions are those of 9.0");
  CHECK(Problem().misfit(100) == "compute capability 10.0: its instructions are those of 9.0");
  CHECK(Problem(64, 76, 76).misfit() == "head size 76 of values is not a multiple of 8");
  CHECK(Problem(64, 272, 272).misfit() == "head size 272 is more than 256");
  CHECK(Problem(64, 24, 24).misfit() == "head size 24 is less than 32");
  CHECK(Problem(64, 128, 128, 8).misfit() == "blocks of 8 keys: it takes multiples of 16");
  Problem codes;
  codes.params.kv.element = attn::Element::kE5M2;
  CHECK(codes.misfit() ==
        "bf16 queries over e5m2 keys: it multiplies 16 bits of one type, or e4m3, or decodes e4m3");
  Problem rows;
  rows.params.kv.token_stride_value += 4;
  CHECK(rows.misfit() == "rows of keys and values lie on multiples of 8 bytes, 16 are needed");
  Problem queries;
  queries.params.query_head_stride += 2;
  CHECK(queries.misfit() == "rows of queries lie on multiples of 4 bytes, 16 are needed");
  Problem shared_keys;
  shared_keys.params.kv.head_stride_key = 0;
  CHECK(shared_keys.misfit() == "heads of keys or values lie 0 apart");
  Problem padded(8192, 128, 128, 16);
  padded.params.kv.head_stride_key += 8;
  CHECK(padded.misfit() == "heads of a page lie 136 elements apart, a multiple of 64 is needed");
}

TEST_CASE("the Hopper kernel's tile goes by head size and length") {
  CHECK(plan_text(Problem(8192, 64, 64)) == "192x128");
  CHECK(plan_text(Problem(8192, 80, 80)) == "192x112");
  CHECK(plan_text(Problem(8192, 96, 96)) == "192x96");
  CHECK(plan_text(Problem(8192, 128, 128)) == "192x80");
  CHECK(plan_text(Problem(8192, 192, 128)) == "192x80");
  CHECK(plan_text(Problem(8192, 192, 192)) == "128x64");
  CHECK(plan_text(Problem(8192, 256, 256)) == "128x64");
  // Of 4 heads that share one: 128, 256, 384 and 1024 rows.
  CHECK(plan_text(Problem(32)) == "128x128");
  CHECK(plan_text(Problem(64)) == "128x128");
  CHECK(plan_text(Problem(96)) == "192x80");
  CHECK(plan_text(Problem(256)) == "192x80");
  Problem invariant(64);
  invariant.params.batch_invariant = 1;
  CHECK(plan_text(invariant) == "192x80");
  // Windows and small images: rows that no mask hides keys from, of contiguous keys.
  Problem window(64, 80, 80);
  window.params.score.window_right = -1;
  CHECK(plan_text(window) == "64x64");
  CHECK(hopper_plan(window.params).persistent);
  CHECK(hopper_plan(window.params).tile.line == 64);
  window.params.max_query_len = 256;  // 1024 rows of 8 units: 128 tiles of 64 rows
  CHECK(plan_text(window) == "64x64");
  window.params.num_requests = 17;  // 1088 tiles
  CHECK(plan_text(window) == "192x112");
  window.params.max_query_len = 64;
  CHECK(plan_text(window) == "64x64");
  window.params.batch_invariant = 1;
  CHECK(plan_text(window) == "192x112");
  CHECK(plan_text(Problem(64, 80, 80, 16)) == "128x128");
  Problem capped(8192, 64, 64);
  capped.params.score.soft_cap = 30.0f;
  CHECK(plan_text(capped) == "192x96");
  CHECK(hopper_plan(capped.params).cap == 3);
  CHECK(hopper_plan(capped.params, "cap=0").cap == 0);
  Problem wide_cap(8192, 256, 256);
  wide_cap.params.score.soft_cap = 30.0f;
  CHECK(hopper_plan(wide_cap.params).cap == 3);
  CHECK(hopper_plan(wide_cap.params, "cap=1").cap == 1);
  Problem high_cap(8192, 64, 64);
  high_cap.params.score.soft_cap = 40.0f;
  CHECK(hopper_plan(high_cap.params).cap == 3);
  high_cap.params.score.soft_cap = 41.0f;  // four that share a reciprocal are not exact enough
  CHECK(hopper_plan(high_cap.params).cap == 4);
  high_cap.params.score.soft_cap = 101.0f;
  CHECK(hopper_plan(high_cap.params).cap == 0);
  capped.params.batch_invariant = 1;
  CHECK(hopper_plan(capped.params).cap == 0);
  CHECK(hopper_plan(capped.params, "cap=3").cap == 3);
  capped.params.score.softmax_scale = -0.1f;  // the largest score becomes the least exponent
  CHECK(hopper_plan(capped.params, "cap=3").cap == 0);
  CHECK(hopper_plan(capped.params, "cap=3").scales_first);
  CHECK(hopper_plan(Problem().params).reason.find("192 rows by 80 keys, 2 stages: ") == 0);
  const Problem paged(8192, 128, 128, 16);
  CHECK(hopper_plan(paged.params)
            .reason.find("192 rows by 80 keys, 2 stages, maxima by "
                         "integers, a step for every stage: ") == 0);
}

TEST_CASE("the Hopper kernel takes e4m3 queries, keys, values and probabilities, or decodes keys") {
  CHECK(codes().misfit() == "");
  for (const int size : {64, 96, 128, 160, 192, 224, 256}) {
    CHECK(codes(size, size).misfit() == "");
    CHECK(codes(size, size, 16).misfit() == "");
    CHECK(converted(size, size).misfit() == "");
    CHECK(converted(size, size, 64).misfit() == "");
  }
  CHECK(codes(80, 80).misfit() == "");
  CHECK(codes(80, 80, 16).misfit() == "head size 80 over pages is not a multiple of 32");
  CHECK(codes(72, 72).misfit() == "head size 72 is not a multiple of 16");
  Problem wide = codes();
  wide.params.e4m3_probability = 0;
  CHECK(wide.misfit() == "");
  CHECK(plan_text(wide) == "192x80");  // ragged
  Problem narrow = converted();
  narrow.params.e4m3_probability = 1;
  CHECK(narrow.misfit() == "probabilities in e4m3: it keeps them in 16 bits");
  Problem scaled = converted();
  static constexpr float kScale = 1.0f;
  scaled.params.kv.key_scales = &kScale;
  CHECK(scaled.misfit() == "scales of every token and head: it has those of tensors and heads");
}

TEST_CASE("the Hopper kernel's tile over e4m3 leaves room for sums, unless they may be fast") {
  CHECK(plan_text(codes(64, 64)) == "192x96");
  CHECK(plan_text(codes(80, 80)) == "192x160");
  CHECK(plan_text(codes(96, 96)) == "192x128");
  CHECK(plan_text(codes()) == "128x96");
  CHECK(plan_text(codes(256, 256)) == "128x64");
  CHECK(plan_text(codes(64, 64, 16)) == "192x192");
  CHECK(plan_text(codes(96, 96, 16)) == "192x128");
  CHECK(plan_text(codes(128, 128, 16)) == "192x128");
  CHECK(plan_text(codes(192, 128, 16)) == "128x96");
  CHECK(plan_text(codes(256, 256, 16)) == "128x96");
  // Each tile's sums start anew, in the registers of scores or by pieces beside weights.
  for (const int columns : {64, 96, 128, 256}) {
    CAPTURE(columns);
    Problem problem = codes(columns, columns, 16);
    const HopperPlan plan = hopper_plan(problem.params);
    CHECK(plan.apart == (columns <= 128));
    CHECK(plan.sums == (columns <= 128 ? 0 : 32));
    CHECK(plan.ping_pong == plan.apart);
    CHECK(plan.promote == 1);
    CHECK(plan.fixed_base);
    CHECK(plan.unrolled == (columns == 128));
    problem.params.score.window_left = 1023;
    const HopperPlan window = hopper_plan(problem.params);
    CHECK_FALSE(window.apart);
    CHECK(window.sums == 32);
  }
  CHECK(hopper_plan(codes(80, 80).params).apart);
  CHECK_FALSE(hopper_plan(codes(80, 80).params).unrolled);
  Problem images = codes(80, 80);  // windows of an encoder
  images.params.score.window_right = -1;
  images.params.max_query_len = 64;
  CHECK_FALSE(hopper_plan(images.params).apart);
  CHECK(hopper_plan(images.params).sums == 32);
  CHECK(hopper_plan(images.params).unrolled);
  CHECK_FALSE(hopper_plan(codes().params).apart);
  CHECK_FALSE(hopper_plan(codes().params).unrolled);
  CHECK(hopper_plan(codes(128, 128, 16).params, "promote=4").promote == 1);
  // What is asked for leads to the tile of its kind.
  for (const char* options : {"sums=32", "apart=0"}) {
    CAPTURE(options);
    CHECK(plan_text(codes(64, 64, 16), options) == "192x128");
    CHECK(plan_text(codes(128, 128, 16), options) == "192x96");
    const HopperPlan by_pieces = hopper_plan(codes(64, 64, 16).params, options);
    CHECK_FALSE(by_pieces.apart);
    CHECK(by_pieces.sums == 32);
    CHECK(by_pieces.unrolled);
    CHECK_FALSE(by_pieces.ping_pong);
  }
  CHECK_FALSE(hopper_plan(codes(128, 128, 16).params, "apart=1:sums=64").apart);
  CHECK(hopper_plan(codes(256, 256, 16).params, "apart=1").apart);
  CHECK(hopper_plan(codes(256, 256, 16).params, "apart=1").sums == 0);
  CHECK_FALSE(hopper_plan(Problem().params, "apart=1").apart);
  // 32 columns are no several pieces of 32, and no wider ones.
  CHECK(plan_text(codes(32, 32, 16)) == "192x96");
  for (const Problem& problem : {codes(32, 32, 16), codes(192, 128, 16), codes()}) {
    CHECK(hopper_plan(problem.params).sums == 0);
    CHECK(hopper_plan(problem.params).promote == 2);
    CHECK(hopper_plan(problem.params, "promote=4").promote == 4);
  }
  CHECK(hopper_plan(codes(128, 128, 16).params, "apart=0:sums=0:promote=4").promote == 4);
  const HopperPlan pieces =
      hopper_plan(codes(128, 128, 16).params, "consumers=2:tile_n=160:sums=64");
  CHECK(pieces.sums == 64);
  CHECK(pieces.promote == 1);
  CHECK(pieces.reason.find(", sums of 160 keys promoted to f32, 64 columns at a time beside") !=
        std::string::npos);
  CHECK(
      hopper_plan(codes(192, 128, 16).params).reason.find(", sums of 192 keys promoted to f32: ") !=
      std::string::npos);
  Problem fast = codes();
  fast.params.fast_fp8_sums = 1;
  CHECK(plan_text(fast) == "192x96");
  CHECK(hopper_plan(fast.params).unrolled);
  CHECK_FALSE(hopper_plan(fast.params, "apart=1").apart);
  CHECK(hopper_plan(fast.params).promote == 0);
  CHECK(hopper_plan(fast.params, "sums=64").sums == 0);
  CHECK(hopper_plan(fast.params).reason.find(", fast sums of 13 bits: ") != std::string::npos);
  Problem capped = codes(64, 64);
  capped.params.score.soft_cap = 30.0f;
  CHECK(plan_text(capped) == "128x96");
  for (const int columns : {64, 128, 256}) {
    Problem problem = codes(columns, columns, 16);
    problem.params.score.soft_cap = 30.0f;
    CHECK(plan_text(problem) == (columns == 256 ? "128x64" : "128x96"));
    CHECK(hopper_plan(problem.params).sums == 0);
  }
  CHECK_THROWS_WITH_AS(hopper_plan(codes().params, "tile_n=80"),
                       "kernel hopper_prefill: tile_n=80: e4m3 products take multiples of 32 keys",
                       Error);
  CHECK_THROWS_WITH_AS(
      hopper_plan(codes(64, 64).params, "sums=64"),
      "kernel hopper_prefill: sums=64: the 64 columns of values are not several times as many",
      Error);
  CHECK_THROWS_AS(hopper_plan(codes(96, 96).params, "sums=64"), Error);
  CHECK_THROWS_AS(hopper_plan(converted().params, "ahead=1"), Error);
  CHECK(plan_text(converted()) == "192x80");
  CHECK(hopper_plan(converted().params, "promote=4").promote == 0);  // nothing to promote
  CHECK(hopper_plan(converted().params, "sums=64").sums == 0);
}

TEST_CASE("boxes of e4m3 have lines of twice the elements") {
  const auto box = [](const Problem& problem) {
    const TensorMap map = hopper_value_map(problem.params, hopper_plan(problem.params));
    CHECK(tensor_map_misfit(map) == "");
    CHECK(map.dtype == Dtype::kE4M3);
    std::string text;
    for (int i = 0; i < map.rank; ++i) {
      text += fmt::format("{}{}", i == 0 ? "" : " ", map.box[static_cast<std::size_t>(i)]);
    }
    return text;
  };
  CHECK(box(codes()) == "128 96 1 1");
  CHECK(box(codes(64, 64)) == "64 96 1 1");
  CHECK(box(codes(96, 96)) == "32 128 3 1");
  CHECK(box(codes(80, 80)) == "32 160 1");
  CHECK(box(codes(256, 256)) == "128 64 2 1");
  CHECK(box(codes(128, 128, 16)) == "128 8 1 2 1");
  CHECK(box(converted(128, 128, 16)) == "128 8 1 2 1");
}

TEST_CASE("rings of codes lie behind those of the products, and hold what boxes bring") {
  const auto layout_of = [](const Problem& problem) {
    return attn::hopper_layout(hopper_plan(problem.params).tile);
  };
  const attn::HopperLayout e4m3 = layout_of(codes(64, 128));
  CHECK(e4m3.key_bytes == 96 * 64);
  CHECK(e4m3.value_bytes == 96 * 128);
  CHECK(e4m3.code_key_bytes == 0);
  CHECK(e4m3.code_value_bytes == 96 * 128);
  CHECK(e4m3.query_bytes == 64 * 128 * 2);  // of the output, which has 16 bits
  const attn::HopperLayout decoded = layout_of(converted());
  CHECK(decoded.key_bytes == 80 * 128 * 2);
  CHECK(decoded.code_key_bytes == 80 * 128);
  CHECK(decoded.code_value == decoded.code_key + 2 * decoded.code_key_bytes);
  CHECK(decoded.rows == decoded.code_value + 2 * decoded.code_value_bytes);
}

TEST_CASE("the Hopper kernel stores outputs late where it works ahead over pages") {
  const auto is_late = [](const Problem& problem, std::string_view options = {}) {
    return hopper_plan(problem.params, options).late_output;
  };
  CHECK(is_late(Problem(512, 128, 128, 16)));
  CHECK(is_late(Problem(4096, 96, 96, 16)));
  CHECK_FALSE(is_late(Problem(4097, 128, 128, 16)));
  CHECK_FALSE(is_late(Problem(256, 128, 128, 16)));
  for (const int size : {64, 112, 256}) CHECK_FALSE(is_late(Problem(512, size, size, 16)));
  CHECK_FALSE(is_late(Problem(512)));  // contiguous
  for (const char* options : {"late_output=0", "ahead=0", "consumers=2"}) {
    CHECK_FALSE(is_late(Problem(512, 128, 128, 16), options));
  }
  CHECK(hopper_plan(Problem(512, 128, 128, 16).params).bounds);
}

TEST_CASE("the Hopper kernel works ahead for short requests where queries come by boxes") {
  const auto is_ahead = [](const Problem& problem, std::string_view options = {}) {
    return hopper_plan(problem.params, options).tile.ahead;
  };
  CHECK(is_ahead(Problem(4096)));
  CHECK_FALSE(is_ahead(Problem(4097)));
  CHECK_FALSE(is_ahead(Problem(4096), "ahead=0"));
  CHECK(is_ahead(Problem(4097), "ahead=1"));
  CHECK_FALSE(is_ahead(Problem(512, 72, 72)));
  Problem invariant(512);
  invariant.params.batch_invariant = 1;
  CHECK_FALSE(is_ahead(invariant));
  Problem sevens(512);
  sevens.params.num_heads = 7 * sevens.params.num_kv_heads;
  CHECK_FALSE(is_ahead(sevens));
  CHECK_THROWS_AS(hopper_plan(sevens.params, "ahead=1"), Error);
  CHECK(plan_text(Problem(4096, 64, 64)) == "192x96");
  CHECK(plan_text(Problem(4096, 64, 64), "ahead=0") == "192x128");
  // Where queries of two tiles do not fit, one is brought at a time.
  const auto stages = [](const Problem& problem) {
    return attn::hopper_layout(hopper_plan(problem.params).tile).query_stages;
  };
  CHECK(stages(Problem(512)) == 2);
  CHECK(stages(Problem(512, 256, 256)) == 1);
  CHECK(stages(Problem(8192)) == 1);
  // Their place is then left early, and outputs go by way of 16 rows of 128 bytes a warp.
  const auto staging = [](const Problem& problem) {
    return attn::hopper_layout(hopper_plan(problem.params).tile).staging_bytes;
  };
  CHECK(staging(Problem(512, 256, 256)) == 16 * 128);
  CHECK(staging(Problem(512)) == 0);
  CHECK(staging(Problem(8192, 256, 256)) == 0);
}

TEST_CASE("wide heads are done unit by unit where there are many row tiles") {
  const auto group_of = [](int requests, int columns, std::string_view options = {}) {
    Problem problem(512, columns, columns, 16);
    problem.params.num_requests = requests;
    return hopper_plan(problem.params, options).group;
  };
  CHECK(group_of(64, 256) == 1);
  CHECK(group_of(2, 256) > 1);
  CHECK(group_of(64, 128) > 1);
  CHECK(group_of(64, 256, "ahead=0") > 1);
  CHECK(group_of(64, 256, "group=4") == 4);
}

TEST_CASE("heads of 64 columns work ahead for longer requests, with constant places") {
  const auto plan_of = [](int tokens, int columns, std::string_view options = {}) {
    return hopper_plan(Problem(tokens, columns, columns, 16).params, options);
  };
  CHECK(plan_of(8192, 64).tile.ahead);
  CHECK_FALSE(plan_of(8193, 64).tile.ahead);
  for (const int columns : {32, 128}) CHECK_FALSE(plan_of(8192, columns).tile.ahead);
  CHECK_FALSE(hopper_plan(Problem(8192, 64, 64).params).tile.ahead);  // contiguous
  CHECK(plan_of(2048, 64).fixed_base);
  CHECK_FALSE(plan_of(2048, 64).unrolled);
  CHECK(plan_of(2049, 64).unrolled);
  CHECK_FALSE(plan_of(2049, 64).fixed_base);
  CHECK_FALSE(plan_of(2048, 64, "ahead=0").fixed_base);
  CHECK_FALSE(plan_of(4096, 96).unrolled);
  // In a window maxima are found by integers where a CTA stays.
  Problem window(16384, 64, 64, 16);
  window.params.score.window_left = 1023;
  CHECK(hopper_plan(window.params).bounds);
  CHECK(hopper_plan(window.params).fixed_base);
  CHECK_FALSE(hopper_plan(window.params, "ahead=0").bounds);
}

TEST_CASE("persistent CTAs do every item once, and none of them has only the heavy ones") {
  for (const int num_ctas : {1, 3, 132}) {
    for (const int items : {0, 1, 5, 131, 132, 133, 1000}) {
      CAPTURE(num_ctas);
      CAPTURE(items);
      std::vector<int> times(static_cast<std::size_t>(items));
      int least = std::numeric_limits<int>::max();
      int most = 0;
      for (int cta = 0; cta < num_ctas; ++cta) {
        int cost = 0;
        for (int round = 0; round * num_ctas < items; ++round) {
          const int item = attn::item_of_round(cta, num_ctas, round);
          if (item >= items) continue;
          ++times[static_cast<std::size_t>(item)];
          cost += items - item;
        }
        least = std::min(least, cost);
        most = std::max(most, cost);
      }
      CHECK(times == std::vector<int>(static_cast<std::size_t>(items), 1));
      // Two rounds there and back cost all the same; what is left over is one item at most.
      CHECK(most - least <= items);
    }
  }
}

TEST_CASE("the Hopper kernel runs where it fits, and with options where it is forced") {
  const Problem problem;
  std::vector<KernelSpec> specs;
  std::vector<AttendDecision> decisions;
  const std::unique_ptr<Ops> ops = make_recording_ops(target_of_sm(90), specs, &decisions);
  ops->attend(problem.params);
  ops->force_kernel("hopper_prefill:tile_n=64:stages=3");
  ops->attend(problem.params);
  REQUIRE(specs.size() == 2);
  CHECK(specs[0].function == "attn::hopper_prefill");
  CHECK(value_of(specs[0], "int kTileN") == "80");
  CHECK(specs[1].function == "attn::hopper_prefill");
  CHECK(value_of(specs[1], "int kTileN") == "64");
  CHECK(value_of(specs[1], "int kStages") == "3");
  REQUIRE(!decisions.empty());
  const auto hopper = std::find_if(
      decisions.back().candidates.begin(), decisions.back().candidates.end(),
      [](const CandidateVerdict& verdict) { return verdict.name == "hopper_prefill"; });
  REQUIRE(hopper != decisions.back().candidates.end());
  CHECK(hopper->is_chosen);
  ops->force_kernel("hopper_prefill:tile_n=256:stages=4");
  CHECK_THROWS_AS(ops->attend(problem.params), Error);  // shared memory
}

TEST_CASE(
    "the Hopper kernel leaves every ALiBi by global positions, and lists of tiles, to others") {
  for (const attn::Alibi form :
       {attn::Alibi::kGlobalKeyIndex, attn::Alibi::kGlobalDistance, attn::Alibi::kGlobalSqrt}) {
    Problem problem(8192, 128, 128, 16);
    problem.params.score.alibi = form;
    CHECK(problem.misfit() ==
          "ALiBi by global positions: it knows rows by their positions in the request");
    CHECK(tile_use(target_of_sm(90), problem.params, "") == TileUse::kNever);
    problem.params.score.alibi = attn::Alibi::kKeyIndex;
    CHECK(problem.misfit().empty());
    CHECK(tile_use(target_of_sm(90), problem.params, "") == TileUse::kWhereItPays);
    CHECK(tile_use(target_of_sm(80), problem.params, "") == TileUse::kNever);
    CHECK(tile_use(target_of_sm(90), problem.params, "prefill") == TileUse::kNever);
    CHECK(tile_use(target_of_sm(90), problem.params, "hopper_tiles:stages=2") == TileUse::kAlways);
  }
}

TEST_CASE("the Hopper kernel takes encoders, in tiles of their own") {
  for (const int query_len : {64, 8192}) {
    Problem problem(query_len, 80, 80);
    problem.params.score.window_right = -1;
    std::vector<KernelSpec> specs;
    const std::unique_ptr<Ops> ops = make_recording_ops(target_of_sm(90), specs);
    ops->attend(problem.params);
    REQUIRE(specs.size() == 1);
    CHECK(specs[0].function == "attn::hopper_prefill");
    CHECK(value_of(specs[0], "int kConsumers") == (query_len == 64 ? "1" : "3"));
    CHECK(value_of(specs[0], "int kLine") == (query_len == 64 ? "64" : "128"));
  }
}

TEST_CASE("windows of an encoder are the Hopper kernel's, fewer rows and other devices decode's") {
  const auto chosen = [](int query_len, int sm) {
    Problem problem(query_len, 80, 80);
    problem.params.num_heads = problem.params.num_kv_heads;
    AttendCall call;
    call.params = &problem.params;
    return std::string(choose_attend(target_of_sm(sm), call, {}).name);
  };
  CHECK(chosen(64, 90) == "hopper_prefill");
  CHECK(chosen(17, 90) == "hopper_prefill");
  CHECK(chosen(16, 90) == "decode");
  CHECK(chosen(64, 80) == "decode");
}

TEST_CASE("over e4m3 the Hopper kernel is chosen, and its options are taken") {
  for (const Problem& problem : {codes(), converted(128, 128, 16)}) {
    std::vector<KernelSpec> specs;
    const std::unique_ptr<Ops> ops = make_recording_ops(target_of_sm(90), specs);
    ops->attend(problem.params);
    ops->force_kernel("hopper_prefill:stages=2");
    ops->attend(problem.params);
    REQUIRE(!specs.empty());
    for (const KernelSpec& spec : specs) {
      CHECK(spec.function == "attn::hopper_prefill");
      CHECK(value_of(spec, "attn::Element kKeyValue") == "attn::Element::kE4M3");
    }
    CHECK(value_of(specs.back(), "int kStages") == "2");
  }
}

TEST_CASE("what the Hopper kernel's constants depend on is found in the parameters") {
  Problem problem(8192, 128, 128, 16);
  const auto constant = [&](const std::string& name) {
    return value_of(hopper_prefill_kernel(problem.params, hopper_plan(problem.params)).spec, name);
  };
  CHECK(constant("bool kLeft") == "false");
  CHECK(constant("bool kScaleFirst") == "false");
  CHECK(constant("bool kWideStores") == "true");
  problem.params.score.window_left = 100;
  CHECK(constant("bool kLeft") == "true");
  problem.params.score.softmax_scale = -1.0f;
  CHECK(constant("bool kScaleFirst") == "true");
  problem.params.output_element = attn::Element::kF32;
  CHECK(constant("bool kWideStores") == "false");
  CHECK(value_of(hopper_prefill_kernel(Problem().params, hopper_plan(Problem().params)).spec,
                 "bool kLeft") == "true");  // ragged
}

TEST_CASE("the boxes of the Hopper kernel hold a tile, or of a page what divides both") {
  const auto box = [](const Problem& problem, std::string_view options = {}) {
    const TensorMap map = hopper_key_map(problem.params, hopper_plan(problem.params, options));
    CHECK(tensor_map_misfit(map) == "");
    std::string text;
    for (int i = 0; i < map.rank; ++i) {
      text += fmt::format("{}{}", i == 0 ? "" : " ", map.box[static_cast<std::size_t>(i)]);
    }
    return text;
  };
  CHECK(box(Problem()) == "64 80 2 1");
  CHECK(box(Problem(8192, 96, 96)) == "32 96 3 1");
  // A box a line of 128 bytes, zeros behind the columns that there are.
  CHECK(box(Problem(8192, 80, 80)) == "64 112 1");
  CHECK(box(Problem(8192, 72, 72)) == "64 112 1");
  CHECK(box(Problem(8192, 72, 72), "line=64") == "32 112 1");
  CHECK(box(Problem(8192, 80, 80), "line=0:tile_n=96") == "16 96 5 1");
  CHECK(box(Problem(8192, 72, 72), "line=0:tile_n=96") == "16 96 1");
  CHECK(box(Problem(8192, 128, 128), "line=64") == "64 80 2 1");
  CHECK(box(Problem(8192, 80, 80, 16)) == "16 8 5 2 1");
  CHECK(box(Problem(8192, 120, 120)) == "64 80 1");
  CHECK(box(Problem(8192, 128, 128, 16)) == "64 8 2 2 1");
  CHECK(box(Problem(8192, 128, 128, 48)) == "64 8 2 2 1");
  CHECK(box(Problem(8192, 128, 128, 64), "tile_n=64") == "64 8 2 8 1");
  Problem heads_first(8192, 128, 128, 16);
  heads_first.params.kv.head_stride_key = 16 * 128;
  heads_first.params.kv.token_stride_key = 128;
  const TensorMap map = hopper_key_map(heads_first.params, hopper_plan(heads_first.params));
  CHECK(map.extents[2] == 3 * 32 + 2);  // lines up to the last of the fourth head
  CHECK(tensor_map_misfit(map) == "");
}

}  // namespace attnbench::cuda
