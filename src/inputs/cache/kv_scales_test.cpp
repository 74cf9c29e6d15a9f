// Scales made from a case's own data, against the definition.
#include "inputs/cache/kv_scales.h"

#include <doctest/doctest.h>

namespace attnbench {
namespace {

/// Two requests of 16 tokens, of which the last 4 and 1 are new.
Problem fp8_problem() {
  Problem problem;
  AttentionSpec& a = problem.attention;
  a.num_heads = a.num_kv_heads = 1;
  a.head_size = a.v_head_size = 16;
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  problem.kv_cache.calculate_kv_scales = true;
  problem.batch = {{4, 16}, {1, 16}};
  return problem;
}

TEST_CASE("scales are made of the queries and of the keys and values that the step writes") {
  Problem problem = fp8_problem();
  AttentionInputs inputs = make_inputs(problem);
  // The largest of the context counts for nothing, nor does the row of padding behind the queries.
  inputs.key.set(0, 1000.0f);
  inputs.key.set(12 * 16 + 3, -50.0f);
  inputs.value.set(31 * 16, 40.0f);
  inputs.query.set(4 * 16 + 15, -80.0f);
  adopt_calculated_scales(inputs, problem);
  CHECK(problem.kv_cache.q_scale == double(80.0f / 200.0f));
  CHECK(problem.kv_cache.k_scale == std::vector<double>{50.0f / 200.0f});
  CHECK(problem.kv_cache.v_scale == std::vector<double>{40.0f / 100.0f});
  CHECK(inputs.notices.empty());
}

TEST_CASE("scales are made with the constants of the problem") {
  Problem problem = fp8_problem();
  problem.kv_cache.q_scale_constant = 100;
  problem.kv_cache.k_scale_constant = 50;
  problem.kv_cache.v_scale_constant = 10;
  AttentionInputs inputs = make_inputs(problem);
  inputs.query.set(0, 80.0f);
  inputs.key.set(12 * 16, 50.0f);
  inputs.value.set(31 * 16, 40.0f);
  adopt_calculated_scales(inputs, problem);
  CHECK(problem.kv_cache.q_scale == double(80.0f / 100.0f));
  CHECK(problem.kv_cache.k_scale == std::vector<double>{1.0});
  CHECK(problem.kv_cache.v_scale == std::vector<double>{4.0});
}

TEST_CASE("a scale of nothing but zeros is 1, with a notice") {
  Problem problem = fp8_problem();
  problem.batch = {{0, 16}};
  AttentionInputs inputs = make_inputs(problem);
  adopt_calculated_scales(inputs, problem);
  CHECK(problem.kv_cache.k_scale == std::vector<double>{1.0});
  CHECK(inputs.notices.size() == 3);
}

TEST_CASE("latents make both scales of the cache, and k_pe none") {
  Problem problem = fp8_problem();
  problem.attention.type = AttentionType::kMla;
  problem.attention.head_size = 128 + 64;
  problem.attention.v_head_size = 128;
  problem.kv_cache.block_size = 64;
  MlaInputs inputs = make_mla_inputs(problem);
  inputs.kv_c.set(12 * 512, 60.0f);
  inputs.k_pe.set(12 * 64, 90.0f);
  adopt_calculated_scales(inputs, problem);
  CHECK(problem.kv_cache.k_scale == std::vector<double>{60.0f / 200.0f});
  CHECK(problem.kv_cache.v_scale == std::vector<double>{60.0f / 100.0f});
}

TEST_CASE("caches without a scale of the tensor calculate none") {
  Problem problem = fp8_problem();
  CHECK(calculates_kv_scales(problem));
  for (const KvCacheDtype dtype : {KvCacheDtype::kAuto, KvCacheDtype::kFp8PerTokenHead}) {
    problem.kv_cache.dtype = dtype;
    CHECK(!calculates_kv_scales(problem));
  }
}

}  // namespace
}  // namespace attnbench
