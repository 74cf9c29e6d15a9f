#include "metadata/slots.h"

#include <map>

#include "metadata/test_support.h"

namespace attnbench {
namespace {

using Ints = std::vector<int32_t>;
using Longs = std::vector<int64_t>;

TEST_CASE("DCP slots match the golden values") {
  const Ints row = {5, 9};
  SlotGeometry geometry = {.block_size = 4, .num_blocks = 10, .group = {2, 2}, .rank = 0};
  const auto slots = [&](int rank) {
    geometry.rank = rank;
    return compute_slot_mapping(Ints{0, 10}, Longs{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, row, 2, geometry,
                                10);
  };
  CHECK(slots(0) == Longs{20, 21, -1, -1, 22, 23, -1, -1, 36, 37});
  CHECK(slots(1) == Longs{-1, -1, 20, 21, -1, -1, 22, 23, -1, -1});
}

TEST_CASE("without DCP a slot is block times size plus offset, and padding rows are -1") {
  const Ints table = {7, 2, 4, -1};  // [2, 2]
  const SlotGeometry geometry = {.block_size = 16, .num_blocks = 8};
  CHECK(compute_slot_mapping(Ints{0, 2, 3}, Longs{15, 16, 3}, table, 2, geometry, 5) ==
        Longs{7 * 16 + 15, 2 * 16, 4 * 16 + 3, -1, -1});
}

TEST_CASE("new tokens stand behind their context") {
  CHECK(token_positions(Ints{0, 2, 2, 3}, Ints{5, 0, 1}) == Longs{3, 4, 0});
}

TEST_CASE("bad tables, positions and groups are refused") {
  const SlotGeometry geometry = {.block_size = 16, .num_blocks = 8};
  const auto map = [&](Ints table, Longs positions, SlotGeometry g) {
    return error_of([&] {
      compute_slot_mapping(Ints{0, static_cast<int32_t>(positions.size())}, positions, table,
                           static_cast<int64_t>(table.size()), g, 4);
    });
  };
  CHECK(map({7}, {15}, geometry) == "none");
  CHECK(map({8}, {15}, geometry) == "E-VALUE");
  CHECK(map({-1}, {15}, geometry) == "E-VALUE");
  CHECK(map({7}, {16}, geometry) == "E-VALUE");
  CHECK(map({7}, {-1}, geometry) == "E-VALUE");
  CHECK(map({7}, {1, 2, 3, 4, 5}, geometry) == "E-SHAPE");
  CHECK(map({7}, {1}, {.block_size = 16, .num_blocks = 8, .group = {2, 3}}) == "E-CONFIG");
  CHECK(map({7}, {1}, {.block_size = 16, .num_blocks = 8, .group = {2, 32}}) == "E-CONFIG");
}

TEST_CASE("over all ranks every position is stored exactly once, in its own slot") {
  Draw draw(2);
  for (int round = 0; round < 300; ++round) {
    const int block_size = 16;
    const int interleave = 1 << draw(0, 4);
    const int world = draw(1, 5);
    const int32_t seq_len = draw(1, 300);
    const int columns = (seq_len + block_size * world - 1) / (block_size * world);
    Ints row(static_cast<size_t>(columns));
    for (int c = 0; c < columns; ++c) row[static_cast<size_t>(c)] = columns - 1 - c;
    Longs stored(static_cast<size_t>(seq_len), 0);
    for (int rank = 0; rank < world; ++rank) {
      const SlotGeometry geometry = {block_size, columns, {world, interleave}, rank};
      std::map<int64_t, int64_t> position_of_slot;
      for (int64_t p = 0; p < seq_len; ++p) {
        const int64_t slot = slot_of_position(p, row, geometry);
        if (slot < 0) continue;
        ++stored[static_cast<size_t>(p)];
        REQUIRE(position_of_slot.emplace(slot, p).second);
        const int64_t local = dcp_local_index(p, geometry.group);
        REQUIRE(slot ==
                row[static_cast<size_t>(local / block_size)] * block_size + local % block_size);
      }
      REQUIRE(static_cast<int32_t>(position_of_slot.size()) ==
              dcp_local_seq_len(seq_len, rank, geometry.group));
    }
    REQUIRE(stored == Longs(static_cast<size_t>(seq_len), 1));
  }
}

}  // namespace
}  // namespace attnbench
