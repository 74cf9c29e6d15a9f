// Which tiles prompts get by the number of their keys: forms that were measured on a GPU.
#include <doctest/doctest.h>

#include <string>

#include "ops/cuda/attention/hopper_problem_testing.h"

namespace attnbench::cuda {
namespace {

std::string tile_of(const HopperProblem& problem, const std::string& options = "") {
  const HopperPlan plan = hopper_plan(problem.params, options);
  return fmt::format("{}x{}, {} stages{}{}", plan.tile_rows(), plan.tile.tile_n, plan.tile.stages,
                     plan.ping_pong ? ", in turns" : "", plan.tile.ahead ? ", ahead" : "");
}

}  // namespace

TEST_CASE("causal prompts of 64 columns take no turns where they are long or short") {
  const auto of_tokens = [](int tokens) { return HopperProblem(tokens, 64, 64, 16); };
  CHECK(tile_of(of_tokens(512)) == "192x64, 3 stages, ahead");
  CHECK(tile_of(of_tokens(513)) == "192x96, 2 stages, in turns, ahead");
  CHECK(tile_of(of_tokens(8192)) == "192x96, 2 stages, in turns, ahead");
  CHECK(tile_of(of_tokens(8193)) == "192x128, 3 stages");
  CHECK(tile_of(of_tokens(8193), "ahead=1") == "192x96, 2 stages, in turns, ahead");
  CHECK(tile_of(of_tokens(512), "ahead=0") == "192x128, 3 stages");
  CHECK(tile_of(of_tokens(8193), "ping_pong=1:stages=2") == "192x128, 2 stages, in turns");
  HopperProblem window = of_tokens(16384);
  window.params.score.window_left = 1023;
  CHECK(tile_of(window) == "192x64, 3 stages, ahead");
  // Not measured: contiguous keys, and rows that see all of them.
  CHECK(tile_of(HopperProblem(16384, 64, 64)) == "192x128, 2 stages, in turns");
  HopperProblem full = of_tokens(16384);
  full.params.score.window_right = -1;
  CHECK(tile_of(full) == "192x128, 2 stages, in turns");
  // Chunks: what is left over can be cut where there are no turns.
  HopperProblem chunk = of_tokens(2048);
  chunk.params.max_seq_len = 16384;
  CHECK(tile_of(chunk) == "192x128, 3 stages");
  CHECK(hopper_plan(chunk.params).tail);
}

TEST_CASE("prompts of 128 columns that work ahead have a third stage from 1,024 keys on") {
  const auto of_tokens = [](int tokens) { return HopperProblem(tokens, 128, 128, 16); };
  CHECK(tile_of(of_tokens(1023)) == "192x80, 2 stages, ahead");
  CHECK(tile_of(of_tokens(1024)) == "192x80, 3 stages, ahead");
  CHECK(tile_of(of_tokens(8192)) == "192x80, 2 stages");
  CHECK(tile_of(HopperProblem(2048, 96, 96, 16)) == "192x96, 2 stages, ahead");
  HopperProblem capped = of_tokens(2048);
  capped.params.score.soft_cap = 30.0f;
  CHECK(hopper_plan(capped.params).tile.stages == 2);
  // Few rows over many keys, whose tile is another.
  HopperProblem few = of_tokens(64);
  few.params.max_seq_len = 2048;
  CHECK(tile_of(few) == "128x128, 2 stages, ahead");
}

TEST_CASE("prompts whose query heads have keys of their own have forms of their own") {
  const auto of_tokens = [](int tokens, int head_size) {
    HopperProblem problem(tokens, head_size, head_size, 16);
    problem.params.num_heads = problem.params.num_kv_heads;
    return problem;
  };
  CHECK(tile_of(of_tokens(2048, 64)) == "192x64, 3 stages, ahead");
  CHECK(tile_of(of_tokens(2049, 64)) == "192x96, 2 stages, in turns, ahead");
  CHECK(tile_of(of_tokens(4097, 64)) == "192x128, 3 stages");
  CHECK(tile_of(of_tokens(511, 128)) == "192x80, 2 stages, ahead");
  CHECK(tile_of(of_tokens(512, 128)) == "192x80, 3 stages, ahead");
  CHECK(tile_of(of_tokens(2049, 128)) == "192x80, 2 stages");
  CHECK(tile_of(of_tokens(4096, 256)) == "128x64, 2 stages, ahead");
  // Not measured: windows, contiguous keys, rows that see all of them, and keys of 192 columns.
  HopperProblem window = of_tokens(8192, 128);
  window.params.score.window_left = 4095;
  CHECK(hopper_plan(window.params).tile.ahead);
  HopperProblem contiguous(4096, 128, 128);
  HopperProblem latent(4096, 192, 128);
  HopperProblem full(4096, 128, 128);
  full.params.score.window_right = -1;
  for (HopperProblem* problem : {&contiguous, &latent, &full}) {
    problem->params.num_heads = problem->params.num_kv_heads;
    CHECK(hopper_plan(problem->params).tile.ahead);
  }
}

TEST_CASE("long full attention has maxima by integers and a step for every stage") {
  const auto of_columns = [](int columns, int block_size, int tokens = 8192) {
    HopperProblem problem(tokens, columns, columns, block_size);
    problem.params.score.window_right = -1;
    const HopperPlan plan = hopper_plan(problem.params);
    CHECK(plan.unrolled == plan.bounds);
    return plan.bounds;
  };
  CHECK(of_columns(64, 0));
  CHECK(of_columns(72, 0));
  CHECK(of_columns(80, 0));
  CHECK(of_columns(128, 0));
  CHECK_FALSE(of_columns(64, 16));
  CHECK_FALSE(of_columns(96, 0));
  CHECK_FALSE(of_columns(256, 0));
  for (const int tokens : {64, 256, 4096}) CHECK_FALSE(of_columns(64, 0, tokens));
}

TEST_CASE("images have tiles by how many rounds of the multiprocessors they take") {
  const auto of_images = [](int columns, int patches, int images) {
    HopperProblem problem(patches, columns, columns);
    problem.params.num_requests = images;
    problem.params.num_heads = problem.params.num_kv_heads = 16;
    problem.params.score.window_right = -1;
    return tile_of(problem);
  };
  CHECK(of_images(80, 1024, 1) == "64x64, 2 stages, ahead");
  CHECK(of_images(80, 1024, 4) == "128x128, 2 stages, in turns, ahead");
  CHECK(of_images(80, 1600, 1) == "128x128, 2 stages, in turns, ahead");
  CHECK(of_images(80, 2116, 1) == "192x112, 2 stages, in turns, ahead");
  CHECK(of_images(80, 3136, 1) == "192x112, 2 stages, in turns, ahead");
  // Without room for the next queries only windows have tiles of one consumer.
  CHECK(of_images(72, 64, 20) == "64x64, 2 stages");
  CHECK(of_images(72, 784, 1) == "128x128, 2 stages, in turns");
  CHECK(of_images(72, 784, 4) == "192x112, 2 stages, in turns");
  CHECK(of_images(72, 1024, 2) == "128x128, 2 stages, in turns");
  CHECK(of_images(72, 1296, 1) == "192x112, 2 stages, in turns");
  HopperProblem pair(1024, 80, 80);
  pair.params.num_requests = 8;  // two, and places of more
  pair.params.num_heads = pair.params.num_kv_heads = 16;
  pair.params.score.window_right = -1;
  CHECK(tile_of(pair) == "128x128, 2 stages, in turns, ahead");
  pair.params.num_query_tokens = 1024 + 384;
  CHECK(tile_of(pair) == "64x64, 2 stages, ahead");
  // Long ones can be cut.
  CHECK(of_images(80, 8112, 1) == "192x112, 3 stages");
  CHECK(of_images(72, 12288, 1) == "192x112, 3 stages");
  HopperProblem codes(64, 80, 80);
  codes.params.num_requests = 20;
  codes.params.num_heads = codes.params.num_kv_heads = 16;
  codes.params.score.window_right = -1;
  codes.params.query_element = codes.params.kv.element = attn::Element::kE4M3;
  CHECK(tile_of(codes) == "64x64, 2 stages");
  codes.params.max_query_len = codes.params.max_seq_len = 257;
  CHECK(tile_of(codes) == "192x96, 2 stages, in turns");
  // Not measured: 96 columns.
  CHECK(of_images(96, 1024, 4) == "64x64, 2 stages, ahead");
}

TEST_CASE("where bytes may not depend on the batch its longest request chooses nothing") {
  enum Mask { kPlain, kWindow, kCap };
  const auto of_tokens = [](int tokens, int columns, int block_size, bool codes, Mask mask) {
    HopperProblem problem(tokens, columns, columns, block_size);
    problem.params.batch_invariant = 1;
    if (mask == kWindow) problem.params.score.window_left = 299;
    if (mask == kCap) problem.params.score.soft_cap = 30.0f;
    problem.params.num_requests = 2;
    if (codes) problem.params.query_element = problem.params.kv.element = attn::Element::kE4M3;
    if (block_size == 0) {
      problem.params.score.window_right = -1;
      problem.params.num_heads = problem.params.num_kv_heads;
    }
    return hopper_plan(problem.params).reason;
  };
  for (const bool codes : {false, true}) {
    for (const int columns : {64, 80, 96, 128, 256}) {
      for (const int block_size : {0, 16}) {
        if (columns == 80 && block_size != 0) continue;
        for (const Mask mask : {kPlain, kWindow, kCap}) {
          CAPTURE(columns);
          CAPTURE(block_size);
          CAPTURE(mask);
          const std::string alone = of_tokens(60, columns, block_size, codes, mask);
          for (const int tokens : {300, 2000, 9000}) {
            CHECK(of_tokens(tokens, columns, block_size, codes, mask) == alone);
          }
        }
      }
    }
  }
}

TEST_CASE("short requests of 192 and 128 columns store late, from a second place of queries") {
  HopperProblem brief(512, 192, 128);
  brief.params.num_heads = brief.params.num_kv_heads;
  brief.params.score.window_right = -1;
  CHECK(tile_of(brief) == "128x64, 3 stages, ahead");
  CHECK(hopper_plan(brief.params).late_output);
  CHECK_FALSE(hopper_plan(brief.params, "ahead=0").late_output);
  brief.params.score.soft_cap = 30.0f;
  CHECK_FALSE(hopper_plan(brief.params, "cap=0").late_output);
}

TEST_CASE("chunks behind many keys are no short prompts for the Hopper kernel") {
  HopperProblem chunk(2048, 128, 128, 16);
  CHECK(hopper_plan(chunk.params).tile.ahead);
  const int group = hopper_plan(chunk.params).group;
  chunk.params.max_seq_len = 16384;
  const HopperPlan plan = hopper_plan(chunk.params);
  CHECK_FALSE(plan.tile.ahead);
  CHECK(plan.unrolled);
  CHECK(plan.bounds);
  CHECK(plan.group < group);
  chunk.params.max_seq_len = 2048;
  CHECK(hopper_plan(chunk.params).tile.ahead);
}

TEST_CASE("two consumers take requests whose last row tile three would leave nearly empty") {
  const auto rows = [](int tokens, int head_size, int v_head_size) {
    HopperProblem problem(tokens, head_size, v_head_size);
    problem.params.num_heads = problem.params.num_kv_heads;
    problem.params.score.window_right = -1;
    return hopper_plan(problem.params).tile_rows();
  };
  CHECK(rows(512, 192, 128) == 128);
  CHECK(rows(576, 192, 128) == 192);
  CHECK(rows(2048, 192, 128) == 192);
  CHECK(rows(512, 128, 128) == 192);  // where two consumers are slower than that
}

}  // namespace attnbench::cuda
