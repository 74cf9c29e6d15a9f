#include "bench/mla_case.h"

#include <doctest/doctest.h>

#include "core/error.h"

namespace attnbench {
namespace {

Problem example_problem() {
  Problem problem;
  AttentionSpec& a = problem.attention;
  a.type = AttentionType::kMla;
  a.num_heads = 2;
  a.num_kv_heads = 1;
  a.head_size = 24;
  a.v_head_size = 16;
  a.scale = 0.2;
  problem.mla.kv_lora_rank = 32;
  problem.mla.qk_nope_head_dim = 16;
  problem.mla.qk_rope_head_dim = 8;
  problem.mla.v_head_dim = 16;
  problem.kv_cache.num_blocks = 8;
  problem.batch = {{1, 20}, {1, 7}};
  return problem;
}

/// Of decode rows, whose latent outputs ranks combine.
MlaReferenceKey decode_key() {
  MlaReferenceKey key;
  key.num_decode_tokens = 2;
  return key;
}

}  // namespace

TEST_CASE("the next MLA case keeps inputs, caches and references when it differs in ranks") {
  Problem problem = example_problem();
  problem.dcp.world_size = 2;
  MlaCase mla(problem, {1, {}});
  const MlaInputs* inputs = &mla.inputs();
  const StoredMlaCache* stored = &mla.stored(KvCacheDtype::kFp8E4M3);
  const ReferenceOutput* reference = mla.reference(decode_key());
  const std::vector<double> striped = mla.rank_reference(decode_key(), 1)->output;
  problem.kv_cache.num_blocks = 12;
  problem.dcp.comm = DcpComm::kA2a;
  problem.case_name = "other";
  REQUIRE(mla.move_on(problem));
  CHECK(mla.problem().kv_cache.num_blocks == 12);
  CHECK(&mla.inputs() == inputs);
  CHECK(&mla.stored(KvCacheDtype::kFp8E4M3) == stored);
  CHECK(mla.reference(decode_key()) == reference);
  CHECK(mla.rank_reference(decode_key(), 1)->output == striped);

  SUBCASE("what a rank computes is another thing for other ranks") {
    problem.dcp.interleave_size = 4;
    REQUIRE(mla.move_on(problem));
    const std::vector<double> wider = mla.rank_reference(decode_key(), 1)->output;
    CHECK(wider != striped);
    MlaCase fresh(problem, {1, {}});
    CHECK(fresh.rank_reference(decode_key(), 1)->output == wider);
  }
  SUBCASE("anything else makes another case") {
    Problem other = problem;
    SUBCASE("seed") { other.inputs.seed = 9; }
    SUBCASE("lengths") { other.batch[1].seq_len = 8; }
    SUBCASE("stored latents") { other.kv_cache.dtype = KvCacheDtype::kFp8E4M3; }
    SUBCASE("form of the reference") { other.mla.ref_form = MlaRefForm::kMqa; }
    SUBCASE("listed keys") { other.mla.sparse_topk = 128; }
    CHECK_FALSE(mla.move_on(other));
    CHECK(&mla.inputs() == inputs);
    CHECK(mla.problem().inputs.seed == problem.inputs.seed);
  }
  SUBCASE("it must fit into memory, with the cache of every rank") {
    Problem large = problem;
    large.kv_cache.num_blocks = 2'000'000;
    large.dcp.world_size = 1000;
    REQUIRE_THROWS_WITH_AS(mla.move_on(large), doctest::Contains("of host memory"), Error);
    CHECK(mla.problem().dcp.world_size == 2);
    CHECK(&mla.inputs() == inputs);
  }
}

}  // namespace attnbench
