// The indexer's operations against its definition in the reference, and the rule of equal logits.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "ops/ops.h"
#include "reference/mla/indexer.h"

namespace attnbench {
namespace {

constexpr int kBlockSize = 16;
constexpr attn::i64 kBlockBytes = attn::i64{kBlockSize} * attn::kIndexEntryBytes;

Tensor random_keys(Dtype dtype, std::int64_t rows) {
  Tensor keys(dtype, {rows, attn::kIndexKey});
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < keys.num_elements(); ++i) keys.set(i, normal(random));
  for (int d = 0; d < attn::kIndexKey; ++d) keys.set(d, 0.0f);  // a key of zeros
  keys.set(attn::kIndexKey, 448.0f);                            // a scale that is a power of two
  return keys;
}

Tensor poisoned_cache(std::int64_t blocks) {
  Tensor cache(Dtype::kU8, {blocks, kBlockBytes});
  std::fill_n(cache.data<std::uint8_t>(), cache.num_elements(), std::uint8_t{0xFF});
  return cache;
}

struct Chosen {
  std::vector<int> indices;
  std::vector<int> slots;
};

/// The choice of one token that sees all logits but those of a second token's place.
Chosen choose(const std::vector<float>& logits, int topk, int workspace_start = -1) {
  const std::vector<int> query_start_loc{0, 1};
  const std::vector<int> seq_lens{static_cast<int>(logits.size())};
  const std::vector<int> table{3, 0, 2};
  const std::vector<int> starts{workspace_start};
  Chosen chosen{std::vector<int>(static_cast<std::size_t>(topk), 99),
                std::vector<int>(static_cast<std::size_t>(topk), 99)};
  attn::IndexTopkParams p{};
  p.logits = logits.data();
  p.logits_stride = static_cast<attn::i64>(logits.size());
  p.query_start_loc = query_start_loc.data();
  p.seq_lens = seq_lens.data();
  p.num_requests = 1;
  p.num_tokens = 1;
  p.topk = topk;
  p.block_table = table.data();
  p.block_table_stride = 3;
  p.block_size = 2;
  p.workspace_starts = starts.data();
  p.indices = chosen.indices.data();
  p.slots = chosen.slots.data();
  make_cpu_ops(1)->index_topk(p);
  return chosen;
}

}  // namespace

TEST_CASE("keys are stored with the bytes of the definition, others stay as they are") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    for (const bool ue8m0 : {false, true}) {
      const Tensor keys = random_keys(dtype, 9);
      const std::vector<attn::i64> slots{5, -1, 17, 0, 31, -3, 16, 15, 2};
      Tensor cache = poisoned_cache(2), expected = poisoned_cache(2);
      attn::IndexCacheWriteParams p{};
      p.source_element = element_of(dtype);
      p.key = keys.bytes();
      p.key_token_stride = attn::kIndexKey;
      p.cache = cache.data<unsigned char>();
      p.block_stride = kBlockBytes;
      p.slot_mapping = slots.data();
      p.num_slots = 9;
      p.block_size = kBlockSize;
      p.ue8m0 = ue8m0 ? 1 : 0;
      make_cpu_ops(2)->write_index_cache(p);
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (slots[i] < 0) continue;
        store_index_key(keys, static_cast<std::int64_t>(i), ue8m0, kBlockSize, slots[i], expected);
      }
      CHECK(std::equal(cache.bytes(), cache.bytes() + cache.size_bytes(), expected.bytes()));
    }
  }
}

TEST_CASE("logits are those of the definition, and -inf behind the position of a token") {
  constexpr int kHeads = 5, kTokens = 7;
  const std::vector<int> query_start_loc{0, 4, 4, 7}, seq_lens{21, 6, 3}, table{1, 3, 0, -1, 2, -1};
  const Tensor keys = random_keys(Dtype::kBF16, 64);
  Tensor cache = poisoned_cache(4);
  for (std::int64_t i = 0; i < 64; ++i) store_index_key(keys, i, true, kBlockSize, i, cache);
  Tensor query(Dtype::kE4M3, {kTokens, kHeads, attn::kIndexKey});
  Tensor weights(Dtype::kF32, {kTokens, kHeads});
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < query.num_elements(); ++i) query.set(i, normal(random));
  for (std::int64_t i = 0; i < weights.num_elements(); ++i) weights.set(i, normal(random));
  constexpr std::int64_t kColumns = 21;
  std::vector<float> logits(kTokens * kColumns, 7.0f);
  attn::IndexLogitsParams p{};
  p.query = query.data<unsigned char>();
  p.query_token_stride = kHeads * attn::kIndexKey;
  p.query_head_stride = attn::kIndexKey;
  p.weights = weights.data<float>();
  p.weights_token_stride = kHeads;
  p.cache = cache.data<unsigned char>();
  p.block_stride = kBlockBytes;
  p.block_size = kBlockSize;
  p.block_table = table.data();
  p.block_table_stride = 2;
  p.query_start_loc = query_start_loc.data();
  p.seq_lens = seq_lens.data();
  p.num_requests = 3;
  p.num_heads = kHeads;
  p.num_tokens = kTokens;
  p.logits = logits.data();
  p.logits_stride = p.num_columns = kColumns;
  make_cpu_ops(3)->index_logits(p);
  const std::vector<std::pair<int, int>> seen{{0, 18}, {0, 19}, {0, 20}, {0, 21},
                                              {2, 1},  {2, 2},  {2, 3}};
  for (std::int64_t t = 0; t < kTokens; ++t) {
    CAPTURE(t);
    const auto [request, visible] = seen[static_cast<std::size_t>(t)];
    const std::vector<double> expected = index_logits_of(
        {query, weights, cache, std::span(table).subspan(2 * request, 2), kBlockSize, t, visible});
    for (std::int64_t j = 0; j < kColumns; ++j) {
      const float found = logits[static_cast<std::size_t>(t * kColumns + j)];
      if (j >= visible) {
        CHECK(found == -std::numeric_limits<float>::infinity());
      } else {
        CHECK(found == doctest::Approx(expected[static_cast<std::size_t>(j)]).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("of equal logits the first keys are chosen, in ascending order") {
  const Chosen chosen = choose({2.0f, 1.0f, 2.0f, 3.0f, 2.0f, 0.0f}, 3);
  CHECK(chosen.indices == std::vector<int>{0, 2, 3});
  CHECK(chosen.slots == std::vector<int>{6, 0, 1});
  CHECK(choose({0.0f, -0.0f, -0.0f}, 2).indices == std::vector<int>{0, 1});
}

TEST_CASE("where fewer keys are seen than chosen the rest is -1") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Chosen chosen = choose({nan, 1.0f, -1.0f}, 5);
  CHECK(chosen.indices == std::vector<int>{0, 1, 2, -1, -1});
  CHECK(chosen.slots == std::vector<int>{6, 7, 0, -1, -1});
  CHECK(choose({nan, 1.0f, -1.0f}, 2).indices == std::vector<int>{1, 2});
}

TEST_CASE("the keys of a request in a workspace are its rows") {
  CHECK(choose({1.0f, 5.0f, 4.0f}, 2, 40).slots == std::vector<int>{41, 42});
}

}  // namespace attnbench
