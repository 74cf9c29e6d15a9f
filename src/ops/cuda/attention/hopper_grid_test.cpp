// The order of the Hopper prefill kernel's row tiles, and the divisions that find them.
#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <set>
#include <utility>

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

}  // namespace attnbench::cuda
