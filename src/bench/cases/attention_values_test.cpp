#include "bench/cases/attention_values.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "bench/loop/fake_backend.h"
#include "core/error.h"

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
  backend.rules = find_kernel_rules(name).value();
  return backend;
}

}  // namespace

TEST_CASE("backends with the same maths on an unquantised cache share one reference") {
  const Problem problem = example_problem(KvCacheDtype::kAuto);
  AttentionValues values(problem, {1, {}});
  const FakeBackend first = named("FLASH_ATTN"), second = named("TRITON_ATTN");
  const ReferenceOutput* reference = values.reference(values.key_of(first));
  REQUIRE(reference != nullptr);
  CHECK(values.reference(values.key_of(second)) == reference);
  const EmulationRule rule{Dtype::kBF16, Dtype::kBF16};
  const ReferenceOutput* emulation = values.emulation(values.key_of(first), rule);
  CHECK(emulation != reference);
  CHECK(values.emulation(values.key_of(second), rule) == emulation);
  CHECK(values.emulation(values.key_of(second), {Dtype::kF32, Dtype::kF32}) != emulation);
}

TEST_CASE("backends whose maths or dequantised values differ have references of their own") {
  Problem problem = example_problem(KvCacheDtype::kFp8E4M3);
  problem.kv_cache.k_scale = {0.37};
  AttentionValues values(problem, {1, {}});
  const FakeBackend flash = named("FLASH_ATTN"), triton = named("TRITON_ATTN");
  values.backend_inputs(flash);
  const ReferenceKey key = values.key_of(flash);
  CHECK(key.quantised_query);
  CHECK(key.store_rule.has_value());
  const ReferenceOutput* reference = values.reference(key);
  CHECK(values.reference(values.key_of(triton)) != reference);
  CHECK(values.reference(AttentionValues::unquantised(key)) != reference);
  ReferenceKey other_math = key;
  other_math.math.softmax_scale *= 2;
  CHECK(values.reference(other_math) != reference);
  CHECK(values.reference(key) == reference);
}

TEST_CASE("e4m3 queries and keys are known as codes of their scales, by heads and ranks too") {
  Problem problem = example_problem(KvCacheDtype::kFp8E4M3);
  problem.attention.num_heads = 4;
  problem.attention.num_kv_heads = 2;
  problem.kv_cache.q_scale = 0.21;
  problem.kv_cache.k_scale = {0.37, 0.53};
  problem.dcp.world_size = 2;
  AttentionValues values(problem, {1, {}});
  const FakeBackend flash = named("FLASH_ATTN"), triton = named("TRITON_ATTN");
  values.backend_inputs(flash);
  const EmulationRule in_float32{Dtype::kBF16, Dtype::kBF16};
  const EmulationRule by_codes{Dtype::kBF16, Dtype::kBF16, true};
  const ReferenceKey key = values.key_of(flash);
  const std::vector<double> exact = values.emulation(key, in_float32)->lse;
  const std::vector<double> cut = values.emulation(key, by_codes)->lse;
  // Rows of every head, two of each KV head.
  for (std::size_t head = 0; head < 4; ++head) {
    CHECK_FALSE(std::equal(exact.begin() + static_cast<int>(4 * head),
                           exact.begin() + static_cast<int>(4 * head + 4),
                           cut.begin() + static_cast<int>(4 * head)));
  }
  CHECK(values.rank_emulation(key, 1, by_codes)->lse !=
        values.rank_emulation(key, 1, in_float32)->lse);
  // A query of 16 bits is no code.
  const ReferenceKey other = values.key_of(triton);
  REQUIRE_FALSE(other.quantised_query);
  CHECK(values.emulation(other, by_codes)->lse == values.emulation(other, in_float32)->lse);
}

TEST_CASE("a stopped reference is not kept") {
  const Problem problem = example_problem(KvCacheDtype::kAuto);
  bool stop = true;
  AttentionValues values(problem, {1, [&] { return stop; }});
  const ReferenceKey key = values.key_of(named("FLASH_ATTN"));
  CHECK(values.reference(key) == nullptr);
  stop = false;
  CHECK(values.reference(key) != nullptr);
}

TEST_CASE("encoder backends get neither stored keys nor a cache") {
  Problem problem = example_problem(KvCacheDtype::kAuto);
  problem.attention.type = AttentionType::kEncoderOnly;
  problem.attention.causal = false;
  problem.batch = {{5, 5}, {2, 2}};
  AttentionValues values(problem, {1, {}});
  const BackendInputs inputs = values.backend_inputs(named("FLASH_ATTN"));
  CHECK(inputs.stored == nullptr);
  CHECK_FALSE(inputs.cache);
  CHECK(inputs.inputs == &values.inputs());
}

TEST_CASE("the next case goes on with the inputs alone when it stores them in another way") {
  Problem problem = example_problem(KvCacheDtype::kAuto);
  for (const Distribution distribution : {Distribution::kNormal, Distribution::kProbe}) {
    problem.inputs.distribution = distribution;
    problem.kv_cache.dtype = KvCacheDtype::kAuto;
    int draws = 0;
    JudgeTools tools;
    tools.draw_seed = [&] { return static_cast<std::uint64_t>(++draws); };
    AttentionValues values(problem, {1, {}}, tools);
    problem.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
    CHECK_FALSE(values.move_on(problem));  // there is nothing to go on with
    problem.kv_cache.dtype = KvCacheDtype::kAuto;
    const FakeBackend backend = named("FLASH_ATTN");
    const AttentionInputs* inputs = &values.inputs();
    const std::byte* key = inputs->key.bytes();
    values.backend_inputs(backend);
    const std::vector<double> plain = values.reference(values.key_of(backend))->output;

    problem.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
    problem.kv_cache.k_scale = {0.5};
    problem.kv_cache.num_blocks = 9;
    REQUIRE(values.move_on(problem));
    CHECK(&values.inputs() == inputs);
    CHECK(inputs->key.bytes() == key);
    values.backend_inputs(backend);
    const std::vector<double> stored = values.reference(values.key_of(backend))->output;
    CHECK(stored != plain);
    AttentionValues fresh(problem, {1, {}}, tools);
    fresh.backend_inputs(backend);
    const AttentionInputs& drawn = fresh.inputs();
    for (const auto& [a, b] :
         {std::pair{&inputs->query, &drawn.query}, std::pair{&inputs->key, &drawn.key},
          std::pair{&inputs->value, &drawn.value}}) {
      REQUIRE(a->size_bytes() == b->size_bytes());
      CHECK(std::equal(a->bytes(), a->bytes() + a->size_bytes(), b->bytes()));
    }
    CHECK(fresh.reference(fresh.key_of(backend))->output == stored);
    CHECK(draws == 3);  // of rows, once a case
  }
}

TEST_CASE("references of a case are of the rows that it has drawn, whatever the one before drew") {
  Problem problem = example_problem(KvCacheDtype::kAuto);
  problem.batch = {{60, 80}};
  problem.validation.max_rows = 8;
  int draws = 0;
  JudgeTools tools;
  tools.draw_seed = [&] { return static_cast<std::uint64_t>(++draws); };
  AttentionValues values(problem, {1, {}}, tools);
  values.inputs();
  const FakeBackend backend = named("FLASH_ATTN");
  const ReferenceKey plain = values.key_of(backend);
  const std::vector<std::int32_t> before = values.reference(plain)->rows;
  problem.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
  REQUIRE(values.move_on(problem));
  CHECK(values.rows() != before);
  CHECK(values.reference(plain)->rows == values.rows());
}

TEST_CASE("the next case goes on with inputs and references when it differs in ranks or passes") {
  Problem problem = example_problem(KvCacheDtype::kAuto);
  AttentionValues values(problem, {1, {}});
  const FakeBackend backend = named("FLASH_ATTN");
  const AttentionInputs* inputs = &values.inputs();
  const ReferenceOutput* reference = values.reference(values.key_of(backend));
  const AttentionMath math = values.key_of(backend).math;
  problem.dcp.world_size = 2;
  problem.kv_cache.num_blocks = 5;
  problem.cascade.mode = CascadeMode::kNever;
  problem.case_name = "other";
  REQUIRE(values.move_on(problem));
  CHECK(&values.inputs() == inputs);
  CHECK(values.reference(values.key_of(backend)) == reference);
  CHECK(values.problem().dcp.world_size == 2);

  SUBCASE("what a rank computes is kept for the same ranks only") {
    const std::vector<double> striped = values.rank_reference({math, false, {}}, 1)->output;
    problem.dcp.comm = DcpComm::kA2a;
    REQUIRE(values.move_on(problem));
    CHECK(values.rank_reference({math, false, {}}, 1)->output == striped);
    problem.dcp.interleave_size = 4;
    REQUIRE(values.move_on(problem));
    const std::vector<double> wider = values.rank_reference({math, false, {}}, 1)->output;
    CHECK(wider != striped);
    AttentionValues fresh(problem, {1, {}});
    CHECK(fresh.rank_reference({math, false, {}}, 1)->output == wider);
  }
  SUBCASE("anything else makes another case") {
    Problem other = problem;
    SUBCASE("seed") { other.inputs.seed = 9; }
    SUBCASE("prefix") { other.cascade.common_prefix_len = 4; }
    SUBCASE("lengths") { other.batch[1].seq_len = 8; }
    SUBCASE("scale of the softmax") { other.attention.scale = 0.3; }
    SUBCASE("int8 keys") { other.kv_cache.int8_level = 2; }
    SUBCASE("blocks, at whose edges there are needles") { other.kv_cache.block_size = 32; }
    SUBCASE("checked rows") { other.validation.max_rows = 2; }
    SUBCASE("calculated scales") { other.kv_cache.calculate_kv_scales = true; }
    SUBCASE("another draw") { other.inputs.distribution = Distribution::kOutlier; }
    CHECK_FALSE(values.move_on(other));
    CHECK(&values.inputs() == inputs);
    CHECK(values.problem().inputs.seed == problem.inputs.seed);
  }
}

TEST_CASE("the next case must fit into memory too, though its inputs are there") {
  const Problem problem = example_problem(KvCacheDtype::kAuto);
  AttentionValues values(problem, {1, {}});
  const AttentionInputs* inputs = &values.inputs();
  Problem large = problem;
  SUBCASE("blocks") { large.kv_cache.num_blocks = 2'000'000'000; }
  SUBCASE("ranks") {
    large.kv_cache.num_blocks = 2'000'000;
    large.dcp.world_size = 1000;
  }
  REQUIRE_THROWS_WITH_AS(values.move_on(large), doctest::Contains("of host memory"), Error);
  CHECK(values.problem().dcp.world_size == 1);
  Problem next = problem;
  next.kv_cache.num_blocks = 9;
  CHECK(values.move_on(next));
  CHECK(&values.inputs() == inputs);
}

}  // namespace attnbench
