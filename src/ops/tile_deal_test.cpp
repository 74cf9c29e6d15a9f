#include "ops/tile_deal.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>

namespace attnbench {
namespace {

TileSequence sequence(int first_token, int num_tokens, int context_len, int table_row) {
  return {first_token, num_tokens, context_len, table_row, 0, context_len + num_tokens, 0};
}

/// 60 decodes of 4,096 keys and 4 prefills of 1,024 tokens with 3,072 keys.
std::vector<TileSequence> mixed_batch() {
  std::vector<TileSequence> sequences;
  for (int b = 0; b < 60; ++b) sequences.push_back(sequence(b, 1, 4095, b));
  for (int b = 0; b < 4; ++b) sequences.push_back(sequence(60 + b * 1024, 1024, 2048, 60 + b));
  return sequences;
}

TileForm form_32_8() {
  TileForm form;
  form.group = 4;
  form.num_kv_heads = 8;
  return form;
}

bool is_decode(const attn::AttendTile& tile) { return tile.num_rows <= 64; }

}  // namespace

TEST_CASE(
    "every packed row of every sequence and KV head is in one tile, and every tile in one bundle") {
  const std::vector<TileSequence> sequences = mixed_batch();
  const TileForm form = form_32_8();
  const TileDeal deal = deal_tiles(sequences, form, 132);
  std::map<std::tuple<int, int>, int> rows;  // of (table row, KV head)
  for (const attn::AttendTile& tile : deal.tiles) {
    CHECK(tile.num_rows <= form.tile_rows);
    CHECK(tile.first_row % form.tile_rows == 0);
    rows[{tile.table_row, tile.kv_head}] += tile.num_rows;
  }
  CHECK(rows.size() == sequences.size() * 8);
  for (const TileSequence& s : sequences) {
    for (int head = 0; head < 8; ++head) {
      CHECK(rows[{s.table_row, head}] == s.num_tokens * form.group);
    }
  }
  CHECK(deal.bundles.front() == 0);
  CHECK(deal.bundles.back() == static_cast<int>(deal.tiles.size()));
  // None without tiles; and none of these takes so little that two make a bundle.
  CHECK(std::ranges::adjacent_find(deal.bundles, std::greater_equal<>()) == deal.bundles.end());
  CHECK(deal.bundles.size() == deal.tiles.size() + 1);
}

TEST_CASE("decodes and prefills are under way together, and the last tiles are short ones") {
  const TileDeal deal = deal_tiles(mixed_batch(), form_32_8(), 132);
  // Of every eighth of the list but the last, a fifth to two thirds decode; behind all prefills
  // there are only decodes, which are shorter.
  const std::size_t eighth = deal.tiles.size() / 8;
  for (std::size_t i = 0; i + 2 * eighth <= deal.tiles.size(); i += eighth) {
    const auto first = deal.tiles.begin() + static_cast<std::ptrdiff_t>(i);
    const auto decodes =
        std::count_if(first, first + static_cast<std::ptrdiff_t>(eighth), is_decode);
    CHECK(decodes * 5 > static_cast<std::ptrdiff_t>(eighth));
    CHECK(decodes * 3 < static_cast<std::ptrdiff_t>(eighth) * 2);
  }
  CHECK(is_decode(deal.tiles.back()));
  CHECK(deal.most_keys == 3056);  // of prompts: before the last 64 rows, a tile of their own
  CHECK(deal.longest_ns < deal.total_ns / 132 + tile_cost(1, 4096, form_32_8()).ns);
}

TEST_CASE("tiles that see more keys come first, also where a causal mask says so") {
  TileForm form = form_32_8();
  form.num_kv_heads = 1;
  const std::vector<TileSequence> one{sequence(0, 192, 0, 0)};
  const TileDeal causal = deal_tiles(one, form, 1);
  REQUIRE(causal.tiles.size() == 4);
  CHECK(causal.tiles.front().first_row == 576);
  CHECK(causal.tiles.back().first_row == 0);
  form.causal = false;
  CHECK(deal_tiles(one, form, 1).tiles.front().first_row == 0);
}

TEST_CASE("a sequence without tokens has no tile, one without keys has") {
  const TileForm form = form_32_8();
  CHECK(deal_tiles(std::vector{sequence(0, 0, 0, 0)}, form, 7).tiles.empty());
  TileSequence empty = sequence(0, 2, 0, 0);
  empty.key_end = 0;
  CHECK(deal_tiles(std::vector{empty}, form, 7).tiles.size() == 8);
  CHECK(deal_tiles({}, form, 7).bundles == std::vector<int>{0});
}

TEST_CASE("tiles of few keys come in bundles that take about as long as one of many") {
  std::vector<TileSequence> own;
  for (int b = 0; b < 128; ++b) own.push_back({b, 1, 127, b, 0, 128, 0});
  own.push_back(sequence(128, 1, 8191, 128));
  const TileDeal deal = deal_tiles(own, form_32_8(), 132);
  CHECK(deal.bundles.back() == 129 * 8);
  int most = 0;
  for (std::size_t b = 0; b + 1 < deal.bundles.size(); ++b) {
    const int size = deal.bundles[b + 1] - deal.bundles[b];
    CHECK(size >= 1);
    if (deal.tiles[static_cast<std::size_t>(deal.bundles[b])].key_end == 8192) CHECK(size == 1);
    most = std::max(most, size);
  }
  CHECK(most >= 2);
  CHECK(most <= 8);
  // With as many CTAs as tiles each takes one.
  CHECK(deal_tiles(own, form_32_8(), 1032).bundles.size() == 1 + 129 * 8);
}

TEST_CASE("tiles beside others come behind them, the longest first, and in no bundle") {
  std::vector<TileSequence> sequences = mixed_batch();
  sequences.push_back(sequence(4156, 2, 8190, 64));
  sequences.push_back(sequence(4158, 3, 100, 65));  // 12 rows are not few
  TileForm form = form_32_8();
  form.tile_rows = 128;
  form.has_beside = true;
  const TileDeal deal = deal_tiles(sequences, form, 132);
  CHECK(deal.num_beside == 61 * 8);
  const auto first = deal.tiles.end() - deal.num_beside;
  CHECK(std::all_of(first, deal.tiles.end(),
                    [](const attn::AttendTile& t) { return t.num_rows <= attn::kMostFewRows; }));
  CHECK(std::none_of(deal.tiles.begin(), first,
                     [](const attn::AttendTile& t) { return t.num_rows <= attn::kMostFewRows; }));
  CHECK(first->key_end == 8192);
  CHECK(deal.bundles.back() == first - deal.tiles.begin());
  form.has_beside = false;
  CHECK(deal_tiles(sequences, form, 132).num_beside == 0);
}

TEST_CASE("tiles go beside others where both take a good part of the time") {
  const auto pays = [](int decodes, int keys, int prefills, int tokens, int context) {
    std::vector<TileSequence> sequences;
    for (int b = 0; b < decodes; ++b) sequences.push_back(sequence(b, 1, keys - 1, b));
    for (int b = 0; b < prefills; ++b) {
      sequences.push_back(sequence(decodes + b * tokens, tokens, context, decodes + b));
    }
    return beside_pays(sequences, {}, form_32_8(), 132);
  };
  CHECK(pays(60, 4096, 4, 1024, 2048));
  CHECK(pays(32, 2048, 1, 2048, 0));
  CHECK_FALSE(pays(128, 1024, 2, 2048, 6144));
  CHECK_FALSE(pays(256, 512, 1, 8192, 0));
  CHECK_FALSE(pays(60, 4096, 0, 0, 0));
  CHECK_FALSE(pays(0, 0, 4, 1024, 2048));
  const auto of_cascade = [](int requests, int own_keys, TileForm form) {
    std::vector<TileSequence> own;
    for (int b = 0; b < requests; ++b) {
      own.push_back({b, 1, 4096 + own_keys - 1, b, 4096, 4096 + own_keys, 0});
    }
    const std::vector<SharedKeys> prefix{{0, requests, 0, 4096}};
    return beside_pays(own, prefix, form, 132);
  };
  CHECK(of_cascade(128, 128, form_32_8()));
  CHECK_FALSE(of_cascade(64, 128, form_32_8()));    // no more tiles than warps
  CHECK_FALSE(of_cascade(128, 4096, form_32_8()));  // little but own keys
  TileForm narrow = form_32_8();
  narrow.columns = 128;
  CHECK_FALSE(of_cascade(128, 128, narrow));  // not measured
}

TEST_CASE("with own keys beside, the parts of a prefix are as many as keep every CTA at work") {
  TileForm form = form_32_8();
  form.tile_rows = 128;
  form.has_beside = true;
  std::vector<TileSequence> own;
  for (int b = 0; b < 256; ++b) own.push_back({b, 1, 4096 + 127, b, 4096, 4096 + 128, 0});
  const auto parts = [&](int requests) {
    const std::vector<SharedKeys> prefix{{0, requests, 0, 4096}};
    return prefix_parts(prefix, std::span(own).first(static_cast<std::size_t>(requests)), form,
                        132);
  };
  CHECK(parts(128) == 4);  // 32 tiles of rows: 128 for 132 CTAs
  CHECK(parts(256) == 2);
}

TEST_CASE("what binds a tile goes by its rows") {
  const TileForm form = form_32_8();
  CHECK_FALSE(tile_cost(4, 4096, form).is_product_bound);
  CHECK(tile_cost(192, 4096, form).is_product_bound);
  CHECK(tile_cost(192, 4096, form).ns > tile_cost(128, 4096, form).ns);
  CHECK(tile_cost(4, 4096, form).ns == tile_cost(64, 4096, form).ns);
}

TEST_CASE("tiles have 192 rows where registers hold them and sequences are long") {
  CHECK(tile_rows_for(128, 128, 4096) == 192);
  CHECK(tile_rows_for(128, 128, 1024) == 128);
  CHECK(tile_rows_for(192, 128, 4096) == 192);
  CHECK(tile_rows_for(256, 256, 4096) == 128);
}

TEST_CASE("a prefix is cut into as many parts as keep its tiles short beside all the rest") {
  TileForm form = form_32_8();
  form.tile_rows = 128;
  std::vector<TileSequence> own;
  for (int b = 0; b < 128; ++b) own.push_back({b, 1, 4096 + 127, b, 4096, 4096 + 128, 0});
  const std::vector<SharedKeys> prefix{{0, 128, 0, 4096}};
  const int parts = prefix_parts(prefix, own, form, 132);
  CHECK(parts >= 2);
  CHECK(parts <= 6);
  // Eight tiles are far fewer than multiprocessors.
  const std::vector<SharedKeys> few{{0, 4, 0, 32768}};
  CHECK(prefix_parts(few, std::span(own).first(4), form, 132) >= 16);
  // No part of a few keys only.
  const std::vector<SharedKeys> brief{{0, 4, 0, 128}};
  CHECK(prefix_parts(brief, std::span(own).first(4), form, 132) == 1);
  CHECK(prefix_parts({}, {}, form, 132) == 1);
}

TEST_CASE("the runs of a prefix are whole blocks that cover it, and own keys are the last part") {
  const std::vector<SharedKeys> prefixes{{0, 3, 0, 336}, {3, 2, 3, 32}, {5, 1, 5, 0}};
  std::vector<TileSequence> own;
  for (int b = 0; b < 6; ++b) own.push_back(sequence(b, 1, 400, b));
  own.push_back(sequence(6, 0, 0, 6));
  const std::vector<TileSequence> all = cascade_sequences(prefixes, own, 4, 16);
  CHECK(all.size() == 3 * 4 + 6);
  for (const SharedKeys& prefix : prefixes) {
    int next = 0;
    for (const TileSequence& s : all) {
      if (s.part == 4 || s.first_token != prefix.first_token) continue;
      CHECK(s.key_begin == next);
      CHECK(s.key_begin % 16 == 0);
      CHECK(s.context_len >= s.key_end);
      next = s.key_end;
    }
    CHECK(next == prefix.num_keys);
  }
  CHECK(std::ranges::count(all, 4, &TileSequence::part) == 6);
}

}  // namespace attnbench
