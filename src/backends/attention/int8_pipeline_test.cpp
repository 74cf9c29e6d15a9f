// Int8 attention from inputs to results (semantics §11).
#include <doctest/doctest.h>

#include "backends/attention/pipeline_testing.h"

namespace attnbench::int8_pipeline_test {

TEST_CASE("every supported random int8 problem agrees with the reference") {
  int runs = 0;
  for (std::uint64_t seed = 1000; seed < 1200; ++seed) {
    Problem p = random_problem(seed);
    p.attention.sinks = SinksKind::kNone;
    p.attention.mm_prefix_ranges.clear();
    p.kv_cache.dtype = KvCacheDtype::kAuto;
    p.kv_cache.int8_level = 1 + static_cast<int>(seed % 2);
    p.attention.num_speculative_tokens = seed % 3 == 0 ? 3 : 0;
    if (!find_backend("FLASH_ATTN_IX")->refusals(p, DeviceFacts{}).empty()) continue;
    expect_agreement(p, "FLASH_ATTN_IX");
    ++runs;
  }
  CHECK(runs > 50);
}

TEST_CASE("int8 decodes save their own keys, batches with a prefill write the cache before") {
  Problem p = base_problem();
  for (const int level : {1, 2}) {
    p.kv_cache.int8_level = level;
    p.batch = {{1, 900}, {1, 40}};
    CHECK(has_step(p, "FLASH_ATTN_IX", "quantise_int8"));
    CHECK(has_step(p, "FLASH_ATTN_IX", "save_and_attend"));
    CHECK(has_step(p, "FLASH_ATTN_IX", "combine"));
    CHECK_FALSE(has_step(p, "FLASH_ATTN_IX", "write_cache"));
    p.batch = {{1, 900}, {1, 40}, {5, 5}};
    CHECK(has_step(p, "FLASH_ATTN_IX", "write_cache"));
    CHECK(has_step(p, "FLASH_ATTN_IX", "combine"));
    CHECK_FALSE(has_step(p, "FLASH_ATTN_IX", "save_and_attend"));
  }
}

TEST_CASE("int8 decode gives the same bytes whether it saves the keys itself or not") {
  for (const std::int64_t seq_len : {60, 900}) {  // whole keys, and split ones
    Problem alone = base_problem();
    alone.kv_cache.int8_level = 2;
    alone.attention.num_speculative_tokens = 2;
    alone.batch = {{1, seq_len}, {3, 33}, {2, 2}};
    Problem mixed = alone;
    mixed.batch.push_back({7, 20});  // a prefill: written by slot mapping, scales transposed
    finish(alone);
    finish(mixed);
    const Run saved(alone, "FLASH_ATTN_IX");
    const Run written(mixed, "FLASH_ATTN_IX");
    CHECK(std::memcmp(saved.output.output.bytes(), written.output.output.bytes(),
                      saved.output.output.size_bytes()) == 0);
  }
}

TEST_CASE("quantising is no part of the median, saving inside decode is") {
  Problem p = base_problem();
  p.kv_cache.int8_level = 1;
  p.batch = {{1, 40}};
  finish(p);
  const Run run(p, "FLASH_ATTN_IX");
  for (const Step& step : run.pipeline->steps()) {
    CHECK(step.in_median == (step.name != "quantise_int8"));
    CHECK((step.bytes > 0) == (step.name != "combine"));
  }
}

TEST_CASE("a shared prefix is no cascade at int8 levels when the heuristic decides") {
  Problem p = base_problem();
  p.cascade.common_prefix_len = 256;
  p.batch.assign(8, {2, 300});
  CHECK(has_step(p, "FLASH_ATTN_IX", "merge"));
  p.kv_cache.int8_level = 1;
  CHECK_FALSE(has_step(p, "FLASH_ATTN_IX", "merge"));
  expect_agreement(p, "FLASH_ATTN_IX");
}

TEST_CASE("int8 cross attention writes every encoder key before it attends") {
  Problem p = base_problem();
  p.attention.type = AttentionType::kEncoderDecoder;
  p.attention.causal = false;
  p.kv_cache.int8_level = 2;
  p.attention.num_speculative_tokens = 3;  // all requests count as decodes
  p.batch = {{2, 70}, {4, 33}};
  CHECK(find_backend("FLASH_ATTN_IX")->refusals(p, DeviceFacts{}).empty());
  expect_agreement(p, "FLASH_ATTN_IX");
}

TEST_CASE("inputs of zeros are int8 codes of zero with scale zero") {
  Problem p = base_problem();
  p.attention.dtype = Dtype::kF16;
  p.inputs.std = 1e-8;  // most vectors are rounded to zeros, some are not
  for (const int level : {1, 2}) {
    p.kv_cache.int8_level = level;
    expect_agreement(p, "FLASH_ATTN_IX");
  }
}

}  // namespace attnbench::int8_pipeline_test
