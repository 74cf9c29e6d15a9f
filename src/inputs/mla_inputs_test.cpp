#include "inputs/mla_inputs.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/cache/mla_cache.h"
#include "inputs/mla_problem_testing.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

namespace attnbench {
namespace {

Problem small_mla_problem() {
  Problem problem = mla_test_problem();
  problem.kv_cache.num_blocks = 24;
  problem.batch = {{1, 33}, {5, 48}, {0, 0}, {20, 20}};
  problem.inputs.seed = 7;
  return problem;
}

/// Rows that a copying cache stores.
Tensor entries_of(const MlaInputs& inputs) {
  const std::int64_t latent = inputs.kv_c.dim(1);
  const std::int64_t rope = inputs.k_pe.dim(1);
  Tensor entries(inputs.kv_c.dtype(), {inputs.kv_c.dim(0), latent + rope});
  for (std::int64_t row = 0; row < entries.dim(0); ++row) {
    for (std::int64_t i = 0; i < latent + rope; ++i) {
      const float value =
          i < latent ? inputs.kv_c.at(row * latent + i) : inputs.k_pe.at(row * rope + i - latent);
      entries.set(row * (latent + rope) + i, value);
    }
  }
  return entries;
}

std::span<const std::int32_t> listed(const MlaInputs& inputs, std::int64_t token) {
  const std::int64_t topk = inputs.topk_indices.dim(1);
  return {inputs.topk_indices.data<std::int32_t>() + token * topk, static_cast<std::size_t>(topk)};
}

}  // namespace

TEST_CASE("a mean is added to latents and to nothing else") {
  Problem problem = small_mla_problem();
  problem.attention.dtype = Dtype::kF32;
  const MlaInputs plain = make_mla_inputs(problem);
  problem.inputs.mean = 2;
  const MlaInputs moved = make_mla_inputs(problem);
  for (std::int64_t i = 0; i < plain.kv_c.num_elements(); ++i) {
    CHECK(moved.kv_c.at(i) == plain.kv_c.at(i) + 2.0f);
  }
  CHECK(moved.k_pe.at(0) == plain.k_pe.at(0));
  CHECK(moved.w_uv.at(0) == plain.w_uv.at(0));
}

TEST_CASE("MLA inputs have the shapes of the contract and the same bytes for a seed") {
  const Problem problem = small_mla_problem();
  const MlaInputs inputs = make_mla_inputs(problem);
  CHECK(inputs.query.shape() == std::vector<std::int64_t>{29, 2, 24});
  CHECK(inputs.kv_c.shape() == std::vector<std::int64_t>{101, 64});
  CHECK(inputs.k_pe.shape() == std::vector<std::int64_t>{101, 8});
  CHECK(inputs.w_uk.shape() == std::vector<std::int64_t>{2, 16, 64});
  CHECK(inputs.w_uv.shape() == std::vector<std::int64_t>{2, 64, 16});
  CHECK(std::isnan(inputs.query.at(26 * 2 * 24)));
  const MlaInputs again = make_mla_inputs(problem);
  CHECK(std::equal(inputs.kv_c.bytes(), inputs.kv_c.bytes() + inputs.kv_c.size_bytes(),
                   again.kv_c.bytes()));
}

TEST_CASE("expanded values stay below the magnitude that the tolerances ask for") {
  const Problem problem = small_mla_problem();
  const MlaInputs inputs = make_mla_inputs(problem);
  float largest = 0;
  for (std::int64_t s = 0; s < 101; ++s) {
    for (std::int64_t v = 0; v < 16; ++v) {
      float sum = 0;
      for (std::int64_t l = 0; l < 64; ++l) {
        sum += inputs.kv_c.at(s * 64 + l) * inputs.w_uv.at(l * 16 + v);
      }
      largest = std::max(largest, std::fabs(sum));
    }
  }
  CHECK(largest < 4);
  CHECK(largest > 1);
}

TEST_CASE("a row of top-k indices lists the asked share, with repeats, of what the token sees") {
  Problem problem = small_mla_problem();
  problem.batch = {{3, 400}, {2, 10}};
  problem.mla.sparse_topk = 128;
  problem.mla.sparse_valid = 0.5;
  problem.mla.sparse_duplicates = 0.25;
  problem.kv_cache.num_blocks = 40;
  const MlaInputs inputs = make_mla_inputs(problem);
  for (std::int64_t token = 0; token < 5; ++token) {
    const std::int64_t visible = token < 3 ? 398 + token : 9 + token - 3;
    std::multiset<std::int32_t> valid;
    for (const std::int32_t index : listed(inputs, token)) {
      CHECK(index >= -1);
      CHECK(index < visible);
      if (index >= 0) valid.insert(index);
    }
    const std::size_t expected = token < 3 ? 64 : static_cast<std::size_t>(visible);
    CHECK(valid.size() == expected);
    const std::set<std::int32_t> distinct(valid.begin(), valid.end());
    const auto repeats = static_cast<std::size_t>(std::llround(0.25 * double(expected)));
    CHECK(distinct.size() == expected - repeats);
  }
}

TEST_CASE("all that a token sees is listed when the list is long enough") {
  Problem problem = small_mla_problem();
  problem.mla.sparse_topk = 128;
  const MlaInputs inputs = make_mla_inputs(problem);
  const auto row = listed(inputs, 5);
  const std::set<std::int32_t> positions(row.begin(), row.end());
  CHECK(positions.size() == 48 + 1);  // positions 0..47 and -1
  CHECK(*positions.begin() == -1);
  CHECK(*positions.rbegin() == 47);
}

TEST_CASE("what is behind the length of a list is given to kernels only") {
  Problem problem = small_mla_problem();
  problem.batch = {{3, 400}, {2, 300}};
  problem.mla.sparse_topk = 128;
  problem.mla.sparse_topk_length = {100, 0};
  problem.kv_cache.num_blocks = 60;
  const MlaInputs inputs = make_mla_inputs(problem);
  CHECK(inputs.topk_lengths == std::vector<std::int32_t>{100, 100, 100, 0, 0});
  const auto* const all = inputs.given_topk().data<std::int32_t>();
  for (std::int64_t token = 0; token < 5; ++token) {
    const auto counted = listed(inputs, token);
    for (std::int64_t k = 0; k < 128; ++k) {
      const std::int32_t index = all[token * 128 + k];
      CHECK(index >= 0);  // a key that may not be seen, so that one who reads on is found
      const bool counts = k < inputs.topk_lengths[static_cast<std::size_t>(token)];
      CHECK(counted[static_cast<std::size_t>(k)] == (counts ? index : -1));
    }
  }
  CHECK(num_counted_keys(problem, 0, 400) == 100);
  CHECK(num_counted_keys(problem, 1, 300) == 0);
}

TEST_CASE("a second cache has keys, pages and lists of its own, joined behind those of a request") {
  Problem problem = small_mla_problem();
  problem.batch = {{2, 60}, {1, 40}};
  problem.mla.sparse_topk = 128;
  problem.mla.sparse_extra_topk = 128;
  problem.mla.sparse_extra_keys = 33;
  problem.mla.sparse_extra_block_size = 32;
  const MlaInputs inputs = make_mla_inputs(problem);
  CHECK(inputs.extra.kv_c.shape() == std::vector<std::int64_t>{66, 64});
  CHECK(inputs.extra.kv_c.at(0) != inputs.kv_c.at(0));
  const MlaExtraKeys& extra = inputs.extra;
  Tensor entries(extra.kv_c.dtype(), {66, 72});
  const MlaCache cache = make_extra_mla_cache(problem, inputs, entries);
  CHECK(cache.data.shape() == std::vector<std::int64_t>{6, 32, 72});
  CHECK(cache.data.at(std::int64_t{cache.block_table.data<std::int32_t>()[0]} * 32 * 72) == 0);

  const JoinedKeys joined =
      join_extra_keys(inputs, {inputs.kv_c, inputs.k_pe}, {extra.kv_c, extra.k_pe});
  CHECK(joined.seq_lens == std::vector<std::int32_t>{93, 73});
  CHECK(joined.kv_c.at(60 * 64) == extra.kv_c.at(0));
  CHECK(joined.kv_c.at(93 * 64) == inputs.kv_c.at(60 * 64));
  CHECK(joined.kv_c.at((93 + 40) * 64) == extra.kv_c.at(33 * 64));
  const auto* const lists = extra.lists.indices.data<std::int32_t>();
  for (std::int64_t token = 0; token < 3; ++token) {
    const std::int32_t own = token < 2 ? 60 : 40;
    for (std::int64_t k = 0; k < 128; ++k) {
      const std::int32_t index = lists[token * 128 + k];
      CHECK(joined.topk_indices.data<std::int32_t>()[token * 256 + 128 + k] ==
            (index < 0 ? -1 : own + index));
    }
  }
}

TEST_CASE("the cache holds the context, and poison where the step writes or nobody reads") {
  const Problem problem = small_mla_problem();
  const MlaInputs inputs = make_mla_inputs(problem);
  const Tensor entries = entries_of(inputs);
  const MlaCache cache = make_mla_cache(problem, inputs, entries);
  CHECK(cache.slot_mapping.num_elements() == 29);
  CHECK(cache.slot_mapping.data<std::int64_t>()[28] < 0);
  CHECK(std::isnan(cache.new_kv_c.at(26 * 64)));
  const std::int32_t* table = cache.block_table.data<std::int32_t>();
  const std::int64_t new_slot = cache.slot_mapping.data<std::int64_t>()[0];
  CHECK(std::isnan(cache.data.at(new_slot * 72)));
  const std::int64_t first_slot = std::int64_t{table[0]} * 16;
  CHECK(cache.data.at(first_slot * 72) == entries.at(0));
}

TEST_CASE("the cache check names a missing write, a wrong byte and a stray write") {
  const Problem problem = small_mla_problem();
  const MlaInputs inputs = make_mla_inputs(problem);
  const Tensor entries = entries_of(inputs);
  const MlaCache before = make_mla_cache(problem, inputs, entries);
  CHECK(check_mla_cache(problem, entries, before, before.data).find("request") == 0);

  Tensor after = before.data;
  const std::size_t bytes = 72 * 2;
  const auto* slots = before.slot_mapping.data<std::int64_t>();
  std::int64_t row = 0;
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const Request& request = problem.batch[b];
    for (std::int64_t i = 0; i < request.query_len; ++i, ++row) {
      const std::int64_t key = inputs.key_start_loc[b] + request.seq_len - request.query_len + i;
      std::copy_n(entries.bytes() + static_cast<std::size_t>(key) * bytes, bytes,
                  after.bytes() + static_cast<std::size_t>(slots[row]) * bytes);
    }
  }
  CHECK(check_mla_cache(problem, entries, before, after).empty());

  Tensor wrong = after;
  wrong.bytes()[static_cast<std::size_t>(slots[0]) * bytes + 5] ^= std::byte{1};
  CHECK(check_mla_cache(problem, entries, before, wrong).find("request 0, position 32, byte 5") ==
        0);

  const auto owners = block_owners(problem, before.block_table);
  std::size_t unused = 0;
  while (owners[unused].exists()) ++unused;
  Tensor stray = after;
  stray.bytes()[unused * 16 * bytes] ^= std::byte{1};
  CHECK(check_mla_cache(problem, entries, before, stray).find("must stay unchanged") !=
        std::string::npos);
}

}  // namespace attnbench
