// The pure functions of the Hopper kernel that say which keys a row tile goes through, and where
// they lie in shared memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "ops/cuda/attention/hopper_prefill.h"

namespace attnbench::cuda {

TEST_CASE("bounds of the first and last row of a window are those of all rows") {
  for (const int left : {-1, 0, 3, 20}) {
    for (const int right : {-1, 0, 5}) {
      for (const int seq_len : {0, 1, 9, 40}) {
        for (int first = -6; first < seq_len; ++first) {
          for (int last = first; last < seq_len; last += 3) {
            attn::TileBounds expected = attn::no_rows();
            for (int p = first; p <= last; ++p) {
              expected = attn::add_row(expected, attn::window_interval(p, seq_len, left, right));
            }
            const attn::TileBounds found = attn::window_bounds(first, last, seq_len, left, right);
            const bool is_empty = expected.hull.begin >= expected.hull.end;
            CHECK(is_empty == (found.hull.begin >= found.hull.end));
            if (!is_empty) {
              CHECK(found.hull.begin == expected.hull.begin);
              CHECK(found.hull.end == expected.hull.end);
            }
            CHECK(found.core.begin == expected.core.begin);
            CHECK(found.core.end == expected.core.end);
          }
        }
      }
    }
  }
}

TEST_CASE("tiles of keys cover the hull, and only those inside the core go without a mask") {
  constexpr int kTile = 16;
  for (const int step : {1, 4, kTile}) {
    for (int begin = 0; begin < 70; begin += 7) {
      for (int end = begin + 1; end < 90; end += 5) {
        const attn::KeyTiles tiles = attn::key_tiles({begin, end}, kTile, step);
        CHECK(tiles.origin + tiles.first * kTile <= begin);
        CHECK(tiles.origin + (tiles.first + 1) * kTile > begin);
        CHECK(tiles.origin + tiles.end * kTile >= end);
        CHECK(tiles.origin + (tiles.end - 1) * kTile < end);
        // Of ragged keys no box reaches past the last key; of pages all start on a box, or a tile.
        CHECK(tiles.origin + tiles.end * kTile == (end + step - 1) / step * step);
        if (step == kTile) CHECK(tiles.origin == 0);
        for (int core_begin = 0; core_begin < end; core_begin += 11) {
          for (const int core_end : {0, end / 2, end, 0x7FFFFFFF}) {
            const attn::KeyInterval free =
                attn::unmasked_tiles(tiles, {core_begin, core_end}, kTile);
            CHECK(free.begin <= free.end);
            CHECK(free.begin >= tiles.first);
            for (int n = tiles.first; n < tiles.end; ++n) {
              const int first = tiles.origin + n * kTile;
              const bool is_inside = first >= core_begin && first + kTile <= core_end;
              CHECK(is_inside == (n >= free.begin && n < free.end));
            }
          }
        }
        const attn::KeyInterval seen =
            attn::seen_tiles(tiles, {begin, (begin + end + 1) / 2}, kTile);
        CHECK(seen.begin >= tiles.first);
        CHECK(seen.end <= tiles.end);
        CHECK(attn::seen_tiles(tiles, {5, 5}, kTile).begin == tiles.end);
      }
    }
  }
  CHECK(attn::key_tiles({0, 0}, kTile, 1).end == 0);
}

TEST_CASE("lines of every span are exchanged one to one, and pieces of a column meet in no bank") {
  const auto check = [](auto swizzle, std::uint32_t span) {
    std::set<std::uint32_t> places;
    for (std::uint32_t offset = 0; offset < 16 * span; offset += 16) {
      const std::uint32_t place = swizzle(offset);
      CHECK(place / (8 * span) == offset / (8 * span));
      CHECK(places.insert(place).second);
      CHECK(swizzle(offset + 6) == place + 6);
    }
    // Piece 0 of eight rows: 16 bytes of 128 each, so that all 32 banks are busy once.
    std::set<std::uint32_t> banks;
    for (std::uint32_t row = 0; row < 8; ++row) banks.insert(swizzle(row * span) % 128);
    CHECK(banks.size() == 8);
  };
  check([](std::uint32_t offset) { return attn::swizzled<128>(offset); }, 128);
  check([](std::uint32_t offset) { return attn::swizzled<64>(offset); }, 64);
  check([](std::uint32_t offset) { return attn::swizzled<32>(offset); }, 32);
}

TEST_CASE("descriptors have their fields where the tensor cores look for them") {
  const attn::OperandLayout keys = attn::chunked_layout(128, 80);
  CHECK(attn::k_major_form(keys) == (std::uint64_t{1} << 62 | std::uint64_t{64} << 32 | 1u << 16));
  CHECK(attn::mn_major_form(keys) ==
        (std::uint64_t{1} << 62 | std::uint64_t{64} << 32 | std::uint64_t{80 * 128 / 16} << 16));
  // 32 bytes a step, then the next 64 columns, 80 lines behind.
  CHECK(attn::k_major_step(keys, 3) == 6);
  CHECK(attn::k_major_step(keys, 4) == 80 * 128 / 16);
  CHECK(attn::mn_major_step(keys, 2) == 2 * 2048 / 16);
  const attn::OperandLayout pages = attn::grouped_layout(128);
  CHECK(attn::k_major_form(pages) ==
        (std::uint64_t{1} << 62 | std::uint64_t{128} << 32 | 1u << 16));
  CHECK(attn::k_major_step(pages, 4) == 64);
  CHECK(attn::mn_major_step(pages, 1) == 2 * 2048 / 16);
  const attn::OperandLayout narrow = attn::chunked_layout(96, 96);
  CHECK(narrow.span == 64);
  CHECK((attn::k_major_form(narrow) >> 62) == 2);
  CHECK(attn::k_major_step(narrow, 2) == 96 * 64 / 16);
  CHECK(attn::operand_address(0xFF012340u) == 0x1234u);
}

}  // namespace attnbench::cuda
