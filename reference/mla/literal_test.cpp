#include "reference/mla/literal.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "metadata/mla/prefill.h"
#include "metadata/parts/decode_plan.h"
#include "reference/mla/cache_entry.h"
#include "reference/mla/mla_reference.h"
#include "reference/mla/naive_mla.h"
#include "reference/mla/partial_states.h"

namespace attnbench {
namespace {

std::vector<std::int32_t> rows_between(std::int64_t begin, std::int64_t end) {
  std::vector<std::int32_t> rows;
  for (std::int64_t row = begin; row < end; ++row) rows.push_back(static_cast<std::int32_t>(row));
  return rows;
}
std::vector<std::int32_t> decode_rows(const NaiveMlaCase& c) {
  return rows_between(0, c.num_decode_tokens);
}
std::vector<std::int32_t> prefill_rows(const NaiveMlaCase& c) {
  return rows_between(c.num_decode_tokens, c.num_tokens());
}

TEST_CASE("prefill in chunks of context equals the direct form") {
  int in_chunks = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const NaiveMlaCase c = random_mla_case(seed, 150, Dtype::kF32);
    MlaRandom random(seed);
    const MlaChunking chunking{random.pick({64, 128, 1024}), random.pick({16, 32}), {}};
    const auto rows = prefill_rows(c);
    const auto chunked = mla_chunked_prefill(c.inputs(), rows, chunking);
    CHECK(worst_difference(*chunked, *mla_reference_mha(c.inputs(), rows)) < 1);
    in_chunks += !rows.empty() && c.seq_lens.back() > 64 ? 1 : 0;
  }
  CHECK(in_chunks > 20);
}

TEST_CASE("prefill on ranks, gathered padded and reordered, equals the direct form") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const NaiveMlaCase c = random_mla_case(seed, 150, Dtype::kF32);
    MlaRandom random(seed);
    MlaChunking chunking{random.pick({384, 768, 3072}), 16, {}};
    chunking.group = {random.pick({2, 3, 4, 8}), random.pick({1, 2, 8, 16})};
    const auto rows = prefill_rows(c);
    const auto chunked = mla_chunked_prefill(c.inputs(), rows, chunking);
    CHECK(worst_difference(*chunked, *mla_reference_mha(c.inputs(), rows)) < 1);
  }
}

TEST_CASE("chunked prefill reads context from a quantised cache and new tokens from before it") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const NaiveMlaCase c = random_mla_case(seed, 150, Dtype::kBF16);
    const StoredMlaCache stored = store_mla_cache(c.kv_c, c.k_pe, KvCacheDtype::kFp8, 0.03f);
    MlaReferenceInputs inputs = c.inputs();
    inputs.kv_c = &stored.kv_c_dequantized;
    inputs.k_pe = &stored.k_pe_dequantized;
    inputs.kv_c_unquantized = &c.kv_c;
    inputs.k_pe_unquantized = &c.k_pe;
    const auto rows = prefill_rows(c);
    const auto direct = mla_reference(inputs, rows);
    CHECK(worst_difference(*mla_chunked_prefill(inputs, rows, {64, 16, {}}), *direct) < 1);
  }
}

TEST_CASE("some rows of a chunked prefill are computed without the others") {
  MlaRandom random(1);
  NaiveMlaCase c;
  c.dims = {2, 16, 8, 4, 8};
  c.add_request(6, 100);
  c.add_request(5, 21);
  c.add_request(3, 3);
  c.fill(Dtype::kF32, random);
  const std::vector<std::int32_t> rows{0, 5, 7, 13};
  const auto direct = mla_reference(c.inputs(), rows);
  CHECK(worst_difference(*mla_chunked_prefill(c.inputs(), rows, {64, 16, {}}), *direct) < 1);
}

TEST_CASE("a workspace that holds less than a block of each request is refused") {
  MlaRandom random(1);
  NaiveMlaCase c;
  c.add_request(1, 40);
  c.add_request(1, 40);
  c.fill(Dtype::kF32, random);
  CHECK_THROWS_AS(mla_chunked_prefill(c.inputs(), c.all_rows(), {31, 16, {}}), Error);
}

TEST_CASE("decode dealt out by the split plan equals the direct form") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const NaiveMlaCase c = random_mla_case(seed, 700, Dtype::kF32);
    MlaRandom random(seed);
    const int num_parts = random.pick({1, 2, 3, 7, 20});
    const int overhead = random.pick({0, 1, 5});
    const auto rows = decode_rows(c);
    const auto split = mla_split_decode(c.inputs(), rows, num_parts, overhead);
    CHECK(worst_difference(*split, *mla_reference_mqa(c.inputs(), rows)) < 1);
  }
}

/// The top-k list of every row with only the entries [begin, end) of it.
Tensor cut_lists(const Tensor& lists, std::int64_t begin, std::int64_t end) {
  Tensor cut = lists;
  for (std::int64_t row = 0; row < lists.dim(0); ++row) {
    for (std::int64_t n = 0; n < lists.dim(1); ++n) {
      if (n < begin || n >= end) cut.data<std::int32_t>()[row * lists.dim(1) + n] = -1;
    }
  }
  return cut;
}

TEST_CASE("sparse lists in parts, by the split plan of their length, equal the direct form") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    NaiveMlaCase c = random_mla_case(seed, 300, Dtype::kF32);
    MlaRandom random(seed);
    constexpr std::int64_t kTopk = 256;
    const std::int64_t num_lists = c.num_tokens() + c.padding;
    c.topk_indices = Tensor(Dtype::kI32, {num_lists, kTopk});
    for (std::size_t b = 0; b < c.seq_lens.size(); ++b) {
      for (std::int64_t row = c.query_start_loc[b]; row < c.query_start_loc[b + 1]; ++row) {
        for (std::int64_t n = 0; n < kTopk; ++n) {
          // Repeats are many, -1 is one in three.
          c.topk_indices.data<std::int32_t>()[row * kTopk + n] =
              c.seq_lens[b] == 0 || random.integer(0, 2) == 0
                  ? -1
                  : random.integer(0, c.seq_lens[b] - 1);
        }
      }
    }
    c.num_decode_tokens = c.num_tokens();
    if (c.num_tokens() == 0) continue;
    const auto direct = mla_reference(c.inputs(), c.all_rows());
    const std::vector<std::int32_t> lens{static_cast<std::int32_t>(kTopk)};
    const DecodePlan plan = plan_decode(lens, random.pick({1, 2, 3, 7}), 0, true);
    std::vector<ReferenceOutput> parts;
    for (const DecodePart& part : plan.parts) {
      if (part.begin_req > part.end_req) continue;
      NaiveMlaCase of_part = c;
      of_part.topk_indices = cut_lists(c.topk_indices, part.begin_block * kDecodePlanBlock,
                                       part.end_block * kDecodePlanBlock);
      // The projection by W_UV is linear, so that parts may be combined behind it.
      parts.push_back(*mla_reference(of_part.inputs(), of_part.all_rows()));
    }
    CHECK(static_cast<std::int32_t>(parts.size()) == plan.num_splits.back());
    CHECK(worst_difference(combine_partials(parts), *direct) < 1);
  }
}

TEST_CASE("decode on ranks equals the direct form, several query tokens included") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    NaiveMlaCase c = random_mla_case(seed, 60, Dtype::kF32);
    MlaRandom random(seed);
    const int world_size = random.pick({1, 2, 3, 4, 8});
    c.dims.num_heads = world_size * random.integer(1, 2);
    c.fill(Dtype::kF32, random);
    const auto rows = decode_rows(c);
    const auto ranks = mla_dcp_decode(c.inputs(), rows, {world_size, 1});
    CHECK(worst_difference(*ranks, *mla_reference_mqa(c.inputs(), rows)) < 1);
  }
}

TEST_CASE("decode on ranks interleaved in runs takes single query tokens only") {
  MlaRandom random(1);
  NaiveMlaCase c;
  c.dims = {4, 16, 8, 4, 8};
  for (const int seq_len : {1, 15, 16, 17, 64, 100}) c.add_request(1, seq_len);
  c.num_decode_tokens = 6;
  c.fill(Dtype::kF32, random);
  const auto direct = mla_reference(c.inputs(), c.all_rows());
  for (const int interleave : {1, 4, 16}) {
    const auto ranks = mla_dcp_decode(c.inputs(), c.all_rows(), {4, interleave});
    CHECK(worst_difference(*ranks, *direct) < 1);
  }
  c.add_request(2, 9);
  c.num_decode_tokens = 8;
  c.fill(Dtype::kF32, random);
  CHECK_THROWS_AS(mla_dcp_decode(c.inputs(), c.all_rows(), {4, 4}), Error);
}

TEST_CASE("heads that the ranks cannot share evenly are refused") {
  MlaRandom random(1);
  NaiveMlaCase c;
  c.dims = {3, 16, 8, 4, 8};
  c.add_request(1, 9);
  c.num_decode_tokens = 1;
  c.fill(Dtype::kF32, random);
  CHECK_THROWS_AS(mla_dcp_decode(c.inputs(), c.all_rows(), {2, 1}), Error);
}

TEST_CASE("rows of the other phase are refused") {
  MlaRandom random(1);
  NaiveMlaCase c;
  c.add_request(1, 9);
  c.num_decode_tokens = 1;
  c.add_request(2, 9);
  c.fill(Dtype::kF32, random);
  CHECK_THROWS_AS(mla_chunked_prefill(c.inputs(), c.all_rows(), {64, 16, {}}), Error);
  CHECK_THROWS_AS(mla_split_decode(c.inputs(), c.all_rows(), 2, 0), Error);
  CHECK_THROWS_AS(mla_dcp_decode(c.inputs(), c.all_rows(), {2, 1}), Error);
}

}  // namespace
}  // namespace attnbench
