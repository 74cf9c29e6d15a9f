// The order of the Hopper prefill kernel's row tiles, and the divisions that find them.
#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "ops/cuda/attention/hopper_problem_testing.h"

#include "kernels/attention/hopper/schedule.cuh"

namespace attnbench::cuda {

TEST_CASE("a divisor divides every number that an int holds") {
  constexpr int kMost = std::numeric_limits<int>::max();
  for (const int number : {1, 2, 3, 5, 7, 8, 12, 64, 127, 128, 641, 65536, 1 << 30, kMost}) {
    CAPTURE(number);
    const attn::Divisor divisor = attn::divisor_of(number);
    for (const std::int64_t multiple :
         std::initializer_list<std::int64_t>{0, 1, 2, 1000, kMost / number}) {
      for (const std::int64_t off : {-1, 0, 1}) {
        const std::int64_t n = multiple * number + off;
        if (n < 0 || n > kMost) continue;
        CHECK(divisor.quotient(static_cast<int>(n)) == static_cast<int>(n) / number);
      }
    }
    CHECK(divisor.quotient(kMost) == kMost / number);
  }
}

TEST_CASE("the Hopper kernel's grid does every row tile of every unit once, last ones first") {
  for (const attn::HopperGrid& grid :
       {attn::hopper_grid_of(7, 5, 2, 0, 10, 5), attn::hopper_grid_of(1, 8, 8, 0, 4, 1),
        attn::hopper_grid_of(4, 6, 4, 1, 2, 2), attn::hopper_grid_of(3, 3, 1, 1, 3, 3)}) {
    std::set<std::pair<int, int>> done;
    for (int i = 0; i < attn::hopper_work_items(grid); ++i) {
      const attn::HopperWork work = attn::hopper_work(i, grid);
      CHECK(work.unit >= 0);
      CHECK(work.unit < grid.num_units);
      // Units of a group only, and row tiles from the last one back.
      CHECK(work.unit / grid.group == i / (grid.row_tiles * grid.group));
      const int tile = attn::row_tile_of(work, grid.row_tiles);
      CHECK(done.insert({work.unit, tile}).second);
      CHECK(work.from_first == (grid.reverse != 0 && work.unit % grid.group % 2 == 1));
      if (!work.from_first) CHECK(tile == grid.row_tiles - 1 - work.from_last);
      if (work.from_first) CHECK(tile == work.from_last);
    }
    CHECK(done.size() == static_cast<std::size_t>(grid.row_tiles * grid.num_units));
  }
  // A request with fewer rows leaves places idle: the last ones of its unit.
  const attn::HopperGrid grid = attn::hopper_grid_of(4, 1, 1, 0, 1, 1);
  CHECK(attn::row_tile_of(attn::hopper_work(0, grid), 3) == 2);
  CHECK(attn::row_tile_of(attn::hopper_work(2, grid), 3) == 0);
  CHECK(attn::row_tile_of(attn::hopper_work(3, grid), 3) == -1);
  CHECK(attn::row_tile_of(attn::hopper_work(0, grid), 0) == -1);
}

TEST_CASE("row tiles that are left over are cut where all of their pieces find a place") {
  CHECK(attn::whole_tiles(688, 132, 3) == 660);
  CHECK(attn::whole_tiles(660, 132, 3) == 660);  // none is left over
  CHECK(attn::whole_tiles(44, 132, 3) == 0);
  CHECK(attn::whole_tiles(45, 132, 3) == 45);  // 135 pieces
  CHECK(attn::whole_tiles(66, 132, 2) == 0);
  for (const int tiles : {1, 5, 20, 21, 23, 24}) {
    CAPTURE(tiles);
    const auto whole = static_cast<int>(attn::whole_tiles(tiles, 10, 3));
    std::set<std::pair<int, int>> done;
    for (int i = 0; i < whole + 3 * (tiles - whole); ++i) {
      const attn::HopperPiece at = attn::piece_of(i, whole, 3);
      CHECK(at.tile < tiles);
      CHECK((at.piece < 0) == (at.tile < whole));
      CHECK(at.piece < 3);
      CHECK(done.insert({at.tile, at.piece}).second);
    }
  }
}

TEST_CASE("the Hopper kernel cuts what is left over where row tiles take equally long") {
  const auto cuts = [](const HopperProblem& problem, const std::string& options = "") {
    return hopper_plan(problem.params, options).tail;
  };
  HopperProblem chunk(2048, 128, 128, 16);
  CHECK_FALSE(cuts(chunk));
  chunk.params.max_seq_len = 8191;
  CHECK_FALSE(cuts(chunk));
  chunk.params.max_seq_len = 16384;
  CHECK(cuts(chunk));
  CHECK_FALSE(cuts(chunk, "ahead=1"));
  CHECK_FALSE(cuts(chunk, "ping_pong=1"));
  CHECK_FALSE(cuts(chunk, "tail=0"));
  chunk.params.batch_invariant = 1;
  CHECK_FALSE(cuts(chunk));
  HopperProblem full(8192, 192, 128);
  full.params.score.window_right = -1;
  CHECK(cuts(full));
  full.params.score.window_left = 1023;
  CHECK_FALSE(cuts(full));
  CHECK_FALSE(cuts(HopperProblem(8192, 128, 128, 16)));  // the last row tiles are short

  HopperProblem codes(2048, 128, 128, 16);
  codes.params.kv.element = attn::Element::kE4M3;
  CHECK_FALSE(hopper_plan(codes.params, "ahead=0").ping_pong);
  CHECK_FALSE(cuts(codes, "ahead=0:tail=1"));

  // 2 requests of 4 KV heads and 2,048 tokens of 4 heads: 344 row tiles, 80 of them left over.
  chunk.params.batch_invariant = 0;
  const Target target = target_of_sm(90);
  const HopperPlan plan = hopper_plan(chunk.params);
  CHECK(hopper_grid(target, chunk.params, plan).num_whole == 344);
  CHECK(hopper_shape(target, chunk.params, plan).grid_x == 344);
  chunk.params.num_requests = 4;  // 688 and 28
  CHECK(hopper_grid(target, chunk.params, plan).num_whole == 660);
  CHECK(hopper_shape(target, chunk.params, plan).grid_x == 660 + 3 * 28);
  CHECK(value_of(hopper_prefill_kernel(chunk.params, plan).spec, "bool kTail") == "true");
  CHECK(value_of(hopper_prefill_kernel(chunk.params, hopper_plan(chunk.params, "tail=0")).spec,
                 "bool kTail") == "no such constant");
}

}  // namespace attnbench::cuda
