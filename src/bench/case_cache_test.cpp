#include "bench/case_cache.h"

#include <doctest/doctest.h>

#include "bench/fake_backend.h"

namespace attnbench {
namespace {

Problem example_problem(KvCacheDtype dtype) {
  Problem problem;
  problem.attention.num_heads = 2;
  problem.attention.num_kv_heads = 1;
  problem.attention.head_size = problem.attention.v_head_size = 8;
  problem.attention.scale = 0.35;
  problem.kv_cache.dtype = dtype;
  problem.kv_cache.num_blocks = 8;
  problem.batch = {{3, 20}, {1, 7}};
  return problem;
}

FakeBackend named(const char* name) {
  FakeBackend backend;
  backend.backend_name = name;
  return backend;
}

}  // namespace

TEST_CASE("backends with the same maths on an unquantised cache share one reference") {
  const Problem problem = example_problem(KvCacheDtype::kAuto);
  CaseCache cache(problem, {1, {}});
  const FakeBackend first = named("FLASH_ATTN"), second = named("TRITON_ATTN");
  const ReferenceOutput* reference = cache.reference(cache.key_of(first));
  REQUIRE(reference != nullptr);
  CHECK(cache.reference(cache.key_of(second)) == reference);
  const EmulationRule rule{Dtype::kBF16, Dtype::kBF16};
  const ReferenceOutput* emulation = cache.emulation(cache.key_of(first), rule);
  CHECK(emulation != reference);
  CHECK(cache.emulation(cache.key_of(second), rule) == emulation);
  CHECK(cache.emulation(cache.key_of(second), {Dtype::kF32, Dtype::kF32}) != emulation);
}

TEST_CASE("backends whose maths or dequantised values differ have references of their own") {
  Problem problem = example_problem(KvCacheDtype::kFp8E4M3);
  problem.kv_cache.k_scale = {0.37};
  CaseCache cache(problem, {1, {}});
  const FakeBackend flash = named("FLASH_ATTN"), triton = named("TRITON_ATTN");
  cache.backend_inputs(flash);
  const ReferenceKey key = cache.key_of(flash);
  CHECK(key.quantised_query);
  CHECK(key.store_rule.has_value());
  const ReferenceOutput* reference = cache.reference(key);
  CHECK(cache.reference(cache.key_of(triton)) != reference);
  CHECK(cache.reference(CaseCache::unquantised(key)) != reference);
  ReferenceKey other_math = key;
  other_math.math.softmax_scale *= 2;
  CHECK(cache.reference(other_math) != reference);
  CHECK(cache.reference(key) == reference);
}

TEST_CASE("a stopped reference is not kept") {
  const Problem problem = example_problem(KvCacheDtype::kAuto);
  bool stop = true;
  CaseCache cache(problem, {1, [&] { return stop; }});
  const ReferenceKey key = cache.key_of(named("FLASH_ATTN"));
  CHECK(cache.reference(key) == nullptr);
  stop = false;
  CHECK(cache.reference(key) != nullptr);
}

TEST_CASE("encoder backends get neither stored keys nor a cache") {
  Problem problem = example_problem(KvCacheDtype::kAuto);
  problem.attention.type = AttentionType::kEncoderOnly;
  problem.attention.causal = false;
  problem.batch = {{5, 5}, {2, 2}};
  CaseCache cache(problem, {1, {}});
  const BackendInputs inputs = cache.backend_inputs(named("FLASH_ATTN"));
  CHECK(inputs.stored == nullptr);
  CHECK_FALSE(inputs.cache);
  CHECK(inputs.inputs == &cache.inputs());
}

}  // namespace attnbench
