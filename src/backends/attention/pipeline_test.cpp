#include <doctest/doctest.h>

#include "backends/attention/pipeline_testing.h"

namespace attnbench {

TEST_CASE("every supported random problem agrees with the reference on every backend") {
  int runs = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Problem p = random_problem(seed);
    for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"}) {
      if (!find_backend(name)->refusals(p, DeviceFacts{}).empty()) continue;
      expect_agreement(p, name);
      ++runs;
    }
  }
  CHECK(runs > 200);
}

TEST_CASE("a long decode is split over its keys by FLASH_ATTN and segmented by TRITON_ATTN") {
  Problem p = base_problem();
  p.batch = {{1, 1500}, {1, 513}, {1, 1}, {0, 0}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX"}) {
    CHECK(has_step(p, name, "combine"));
    expect_agreement(p, name);
  }
  CHECK(has_step(p, "TRITON_ATTN", "reduce_segments"));
  expect_agreement(p, "TRITON_ATTN");
  p.attention.sinks = SinksKind::kNormal;
  p.attention.sliding_window = 300;
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"}) expect_agreement(p, name);
}

TEST_CASE("layout IX splits the decodes of a mixed batch, layout FA has one call") {
  Problem p = base_problem();
  p.batch = {{1, 900}, {1, 600}, {40, 90}};
  CHECK_FALSE(has_step(p, "FLASH_ATTN_IX", "combine"));  // joined by clusters
  expect_agreement(p, "FLASH_ATTN_IX");
  p.attention.split_form = SplitForm::kSeparate;
  CHECK(has_step(p, "FLASH_ATTN_IX", "combine"));
  expect_agreement(p, "FLASH_ATTN_IX");
  p.attention.split_form = SplitForm::kAuto;
  CHECK_FALSE(has_step(p, "FLASH_ATTN", "combine"));
  expect_agreement(p, "FLASH_ATTN");
}

TEST_CASE("speculative decodes of uneven context are split too") {
  Problem p = base_problem();
  p.attention.num_speculative_tokens = 3;
  p.batch = {{4, 900}, {2, 517}, {3, 3}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX"}) {
    for (const SplitForm form : {SplitForm::kAuto, SplitForm::kSeparate}) {
      p.attention.split_form = form;
      CHECK(has_step(p, name, "combine") == (form == SplitForm::kSeparate));
      expect_agreement(p, name);
    }
  }
}

TEST_CASE("splits that are joined, and parts of a plan, give what splits give") {
  Problem p = base_problem();
  p.attention.sinks = SinksKind::kNormal;
  p.batch = {{1, 1500}, {1, 40}, {1, 1}, {0, 0}, {1, 513}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX"}) {
    p.attention.split_form = SplitForm::kJoined;
    CHECK_FALSE(has_step(p, name, "combine"));
    CHECK_FALSE(has_step(p, name, "plan"));
    expect_agreement(p, name);
    p.attention.split_form = SplitForm::kPlanned;
    CHECK(has_step(p, name, "plan"));
    CHECK(has_step(p, name, "combine"));
    expect_agreement(p, name);
    p.attention.split_form = SplitForm::kSeparate;
    CHECK(has_step(p, name, "combine"));
  }
  // Speculative decodes, and prefills behind them in layout IX.
  p.attention.num_speculative_tokens = 3;
  p.batch = {{4, 900}, {2, 517}, {3, 3}, {40, 90}};
  for (const SplitForm form : {SplitForm::kJoined, SplitForm::kPlanned}) {
    p.attention.split_form = form;
    expect_agreement(p, "FLASH_ATTN_IX");
  }
}

TEST_CASE("batch invariance turns splits and segments off") {
  Problem p = base_problem();
  p.attention.batch_invariant = true;
  p.batch = {{1, 1500}};
  CHECK_FALSE(has_step(p, "FLASH_ATTN", "combine"));
  CHECK_FALSE(has_step(p, "TRITON_ATTN", "reduce_segments"));
}

TEST_CASE("with batch invariance a request has the same bytes whatever stands beside it") {
  for (const char* name : {"FLASH_ATTN", "TRITON_ATTN"}) {
    Problem alone = base_problem();
    alone.attention.batch_invariant = true;
    alone.batch = {{1, 1500}};
    Problem together = alone;
    together.batch.push_back({1, 20});
    together.batch.push_back({60, 130});
    finish(alone);
    finish(together);
    const Run one(alone, name);
    const Run many(together, name);
    CHECK(std::memcmp(one.output.output.bytes(), many.output.output.bytes(),
                      one.output.output.size_bytes()) == 0);
  }
  Problem p = base_problem();
  p.attention.batch_invariant = true;
  CHECK(find_backend("FLASH_ATTN_IX")->refusals(p, DeviceFacts{}) ==
        std::vector<std::string>{"batch invariance not supported"});
}

TEST_CASE("TRITON_ATTN takes the path that is asked for") {
  Problem p = base_problem();
  p.batch = {{1, 1500}, {1, 40}};
  p.triton.path = TritonPath::k2d;
  CHECK_FALSE(has_step(p, "TRITON_ATTN", "reduce_segments"));
  p.triton.path = TritonPath::k3d;
  p.attention.num_kv_heads = 1;
  CHECK(has_step(p, "TRITON_ATTN", "reduce_segments"));
  p.triton.path = TritonPath::kAuto;
  p.batch.assign(129, {1, 20});  // the threshold of one KV head is 128
  CHECK_FALSE(has_step(p, "TRITON_ATTN", "reduce_segments"));
}

TEST_CASE("cascade equals plain attention, with sinks in the prefix only") {
  Problem p = base_problem();
  p.cascade.common_prefix_len = 64;
  p.cascade.mode = CascadeMode::kAlways;
  p.batch = {{1, 70}, {9, 100}, {40, 130}, {1, 65}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX"}) {
    CHECK(has_step(p, name, "merge"));
    expect_agreement(p, name);
  }
  p.attention.sinks = SinksKind::kNormal;
  p.attention.logits_soft_cap = 30;
  expect_agreement(p, "FLASH_ATTN");
  p.cascade.mode = CascadeMode::kNever;
  CHECK_FALSE(has_step(p, "FLASH_ATTN", "merge"));
}

TEST_CASE("several prefixes in one batch are attended apart, each for its own requests") {
  Problem p = base_problem();
  p.cascade.groups = {{3, 64}, {2, 32}, {1, 16}};
  p.cascade.mode = CascadeMode::kAlways;
  // The last two share nothing, and one of the second group is padding.
  p.batch = {{1, 70}, {9, 100}, {40, 130}, {0, 0}, {1, 65}, {2, 40}, {1, 30}, {5, 5}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX"}) {
    CHECK(has_step(p, name, "merge"));
    expect_agreement(p, name);
  }
  p.attention.sinks = SinksKind::kNormal;
  expect_agreement(p, "FLASH_ATTN");
  p.cascade.mode = CascadeMode::kNever;
  CHECK_FALSE(has_step(p, "FLASH_ATTN", "merge"));
  expect_agreement(p, "FLASH_ATTN");
}

TEST_CASE("padding rows take no part in a cascade") {
  Problem p = base_problem();
  p.cascade = {64, CascadeMode::kAlways};
  // First, so that the shared pages are not those of request 0.
  p.batch = {{0, 0}, {1, 100}, {0, 0}, {7, 90}};
  expect_agreement(p, "FLASH_ATTN");
  p.batch = {{0, 0}, {0, 0}};
  expect_agreement(p, "FLASH_ATTN");
}

TEST_CASE("an infinite sink and a cascade do not go together") {
  Problem p = base_problem();
  p.cascade = {64, CascadeMode::kAlways};
  p.attention.sinks = SinksKind::kValues;
  const double infinity = std::numeric_limits<double>::infinity();
  p.attention.sink_values = {0, -infinity, 50, infinity};
  p.batch = {{1, 100}, {7, 90}};
  finish(p);
  CHECK(find_backend("FLASH_ATTN")->refusals(p, {}) ==
        std::vector<std::string>{"cascade attention with an infinite sink"});
  p.attention.sink_values[3] = 1;
  expect_agreement(p, "FLASH_ATTN");
}

TEST_CASE("the cascade heuristic decides when the mode is auto") {
  Problem p = base_problem();
  p.cascade.common_prefix_len = 256;
  p.batch.assign(8, {2, 300});  // no flash decoding, so the heuristic says yes
  CHECK(has_step(p, "FLASH_ATTN", "merge"));
  expect_agreement(p, "FLASH_ATTN");
  p.batch.assign(7, {2, 300});
  CHECK_FALSE(has_step(p, "FLASH_ATTN", "merge"));
}

TEST_CASE("per-head scales of an fp8 cache are honoured by FLASH_ATTN") {
  Problem p = base_problem();
  p.kv_cache.dtype = KvCacheDtype::kFp8;
  p.kv_cache.k_scale = {0.02, 0.1};
  p.kv_cache.v_scale = {0.07, 0.01};
  p.kv_cache.q_scale = 0.03;
  expect_agreement(p, "FLASH_ATTN");
}

TEST_CASE("sinks of every size agree, infinite ones included") {
  Problem p = base_problem();
  p.attention.sinks = SinksKind::kValues;
  const double inf = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& values :
       {std::vector<double>{0, 50, -inf, 1}, std::vector<double>{inf, 0, 0, inf}}) {
    p.attention.sink_values = values;
    for (const char* name : {"FLASH_ATTN", "TRITON_ATTN"}) {
      p.batch = {{1, 70}, {5, 40}, {33, 33}};
      expect_agreement(p, name);
      p.batch = {{1, 700}, {1, 40}};
      expect_agreement(p, name);
    }
  }
}

TEST_CASE("batches without work and head counts that are odd run through") {
  Problem p = base_problem();
  p.batch = {{0, 0}, {0, 0}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN", "REFERENCE"}) {
    Problem q = p;
    finish(q);
    CHECK(Run(q, name).output.output.num_elements() == 0);
  }
  p.attention.num_kv_heads = 5;
  p.attention.num_heads = 35;
  p.batch = {{0, 0}, {3, 48}, {0, 17}, {1, 1}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"}) expect_agreement(p, name);
}

TEST_CASE("TRITON_ATTN stores a static FP8 output within one code of the reference") {
  for (const std::int64_t query_len : {1, 7}) {
    Problem p = base_problem();
    p.output_quant.type = OutputQuantType::kFp8Static;
    p.output_quant.scale = 0.01;
    p.batch = {{query_len, 300}};
    finish(p);
    const Run run(p, "TRITON_ATTN");
    CHECK(run.output.output.dtype() == Dtype::kE4M3);
    ReferenceOutput reference = reference_of(p, "TRITON_ATTN", run);
    for (double& value : reference.output) value /= 0.01;
    CHECK(difference(run.output.output, reference.output, 0.01, 0.13) == "");
  }
}

TEST_CASE("the reference as a backend returns the reference rounded to the output type") {
  Problem p = base_problem();
  p.attention.sinks = SinksKind::kNormal;
  p.attention.alibi = AlibiKind::kSqrt;
  p.kv_cache.dtype = KvCacheDtype::kInt8PerTokenHead;
  expect_agreement(p, "REFERENCE");
  p.kv_cache.dtype = KvCacheDtype::kAuto;
  p.kv_cache.int8_level = 1;
  expect_agreement(p, "REFERENCE");
}

}  // namespace attnbench
