#include "metadata/batch_metadata.h"

#include "metadata/test_support.h"

namespace attnbench {
namespace {

struct Batch {
  std::vector<int32_t> starts = {0, 1, 2, 5, 9};
  std::vector<int32_t> seq_lens = {40, 20, 3, 30};
  std::vector<int32_t> table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};  // [4, 3]
  std::vector<int64_t> slots = std::vector<int64_t>(9, -1);
  BatchArrays arrays() const { return {starts, seq_lens, table, 3, slots, 6}; }
};

std::vector<int32_t> copy(std::span<const int32_t> values) {
  return {values.begin(), values.end()};
}

TEST_CASE("slices hold the rows of their requests, prefills re-based to 0") {
  const Batch batch;
  const BatchMetadata meta = build_batch_metadata(batch.arrays(), {2, 2, 2, 7});
  REQUIRE(meta.decode);
  CHECK(copy(meta.decode->query_start_loc) == std::vector<int32_t>{0, 1, 2});
  CHECK(copy(meta.decode->seq_lens) == std::vector<int32_t>{40, 20});
  CHECK(copy(meta.decode->block_table) == std::vector<int32_t>{0, 1, 2, 3, 4, 5});
  CHECK(meta.decode->max_query_len == 1);
  CHECK(meta.decode->max_decode_seq_len == 40);
  CHECK_FALSE(meta.decode->use_graph);
  REQUIRE(meta.prefill);
  CHECK(*meta.prefill->query_start_loc == std::vector<int32_t>{0, 3, 7});
  CHECK(*meta.prefill->key_start_loc == std::vector<int32_t>{0, 3, 33});
  CHECK(copy(meta.prefill->block_table) == std::vector<int32_t>{6, 7, 8, 9, 10, 11});
  CHECK(meta.prefill->max_query_len == 6);
}

TEST_CASE("a batch of decodes alone may use a graph and has no prefill slice") {
  const Batch batch;
  const BatchMetadata meta = build_batch_metadata(batch.arrays(), {4, 0, 9, 0});
  CHECK(meta.decode->use_graph);
  CHECK(meta.decode->max_query_len == 4);
  CHECK_FALSE(meta.prefill);
}

TEST_CASE("a new block table reaches both slices and leaves the original unchanged") {
  const Batch batch;
  const BatchMetadata meta = build_batch_metadata(batch.arrays(), {2, 2, 2, 7});
  const std::vector<int32_t> table = {20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
  const std::vector<int64_t> slots(9, 7);
  const BatchMetadata updated = update_block_table(meta, table, slots);
  CHECK(copy(updated.arrays.block_table) == table);
  CHECK(updated.arrays.slot_mapping[0] == 7);
  CHECK(copy(updated.decode->block_table) == std::vector<int32_t>{20, 21, 22, 23, 24, 25});
  CHECK(copy(updated.prefill->block_table) == std::vector<int32_t>{26, 27, 28, 29, 30, 31});
  CHECK(updated.prefill->query_start_loc == meta.prefill->query_start_loc);
  CHECK(copy(meta.arrays.block_table) == batch.table);
  CHECK(meta.arrays.slot_mapping[0] == -1);
  CHECK(meta.decode->block_table[0] == 0);
  CHECK(meta.prefill->block_table[0] == 6);
  CHECK(error_of([&] { update_block_table(meta, std::span(table).first(9), slots); }) == "E-SHAPE");
  CHECK(error_of([&] { update_block_table(meta, table, std::span(slots).first(8)); }) == "E-SHAPE");
}

}  // namespace
}  // namespace attnbench
