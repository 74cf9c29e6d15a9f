#include "bench/cases/mla_values.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "backends/backend.h"
#include "bench/cases/case.h"
#include "core/error.h"
#include "inputs/mla_problem_testing.h"
#include "ops/ops.h"

namespace attnbench::mla_values_test {
namespace {

Problem example_problem() {
  Problem problem = mla_test_problem();
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
  MlaValues mla(problem, {1, {}});
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
    MlaValues fresh(problem, {1, {}});
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

TEST_CASE("backends share what does not depend on which requests they decode") {
  Problem problem = example_problem();
  problem.batch = {{1, 20}, {2, 7}, {4, 9}};
  MlaValues mla(problem, {1, {}});
  const auto key_of = [](std::int64_t num_decode_tokens) {
    MlaReferenceKey key;
    key.num_decode_tokens = num_decode_tokens;
    return key;
  };
  const ReferenceOutput* reference = mla.reference(key_of(1));
  CHECK(mla.reference(key_of(3)) == reference);
  CHECK(mla.reference(key_of(0)) == reference);
  SUBCASE("storage precision rounds the entries of prefills only") {
    const EmulationRule rule;
    CHECK(mla.emulation(key_of(1), rule)->output != mla.emulation(key_of(7), rule)->output);
  }
  SUBCASE("prefills read their new tokens before they are quantised") {
    MlaReferenceKey one = key_of(1), all = key_of(7);
    one.stored = all.stored = KvCacheDtype::kFp8E4M3;
    CHECK(mla.reference(one)->output != mla.reference(all)->output);
    CHECK(mla.reference(one)->output != reference->output);
  }
  SUBCASE("a quantised query is made for the decodes alone") {
    CHECK(mla.latent_query(1).codes.dim(0) == 1);
    const std::uint8_t first = mla.latent_query(1).codes.data<std::uint8_t>()[0];
    CHECK(mla.latent_query(3).codes.dim(0) == 3);
    CHECK(mla.latent_query(3).codes.data<std::uint8_t>()[0] == first);
    CHECK(mla.latent_query(2).codes.dim(0) == 3);
  }
}

TEST_CASE("e4m3 latents and queries of MLA are known as codes, of decodes and of prefills") {
  Problem problem = example_problem();
  problem.batch = {{1, 20}, {1, 7}, {6, 9}};
  problem.kv_cache.q_scale = 0.21;
  problem.kv_cache.k_scale = {0.37};
  problem.dcp.world_size = 2;
  MlaValues mla(problem, {1, {}});
  const EmulationRule in_float32{Dtype::kBF16, Dtype::kBF16};
  const EmulationRule by_codes{Dtype::kBF16, Dtype::kBF16, true};
  MlaReferenceKey key = decode_key();
  key.stored = KvCacheDtype::kFp8E4M3;
  const auto differing_rows = [&] {
    const ReferenceOutput& exact = *mla.emulation(key, in_float32);
    const ReferenceOutput& cut = *mla.emulation(key, by_codes);
    std::vector<std::int32_t> rows;
    for (std::size_t i = 0; i < exact.rows.size(); ++i) {
      bool differs = false;
      for (std::size_t at = i; at < exact.lse.size(); at += exact.rows.size()) {
        differs = differs || exact.lse[at] != cut.lse[at];
      }
      if (differs) rows.push_back(exact.rows[i]);
    }
    return rows;
  };
  using Rows = std::vector<std::int32_t>;
  CHECK(differing_rows() == Rows{});  // the query has 16 bits
  key.quantised_query = true;
  CHECK(differing_rows() == Rows{0, 1});
  CHECK(mla.rank_emulation(key, 0, by_codes)->lse != mla.rank_emulation(key, 0, in_float32)->lse);
  key.fp8_prefill = true;
  CHECK(differing_rows() == Rows{0, 1, 2, 3, 4, 5, 6, 7});
  key.quantised_query = false;
  CHECK(differing_rows() == Rows{2, 3, 4, 5, 6, 7});
}

TEST_CASE("decodes of quantised queries have references by the codes of other orders of sums") {
  Problem problem = example_problem();
  problem.batch = {{1, 20}, {1, 7}, {3, 9}};
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  MlaReferenceKey key = decode_key();
  key.stored = KvCacheDtype::kFp8E4M3;
  const EmulationRule rule{Dtype::kBF16, Dtype::kBF16};
  const std::vector<std::int32_t> rows{0, 1, 2};
  const std::vector<int> heads{0, 1};
  std::size_t found = 0;
  for (int seed = 0; seed < 40; ++seed) {
    problem.inputs.seed = seed;
    MlaValues mla(problem, {1, {}});
    key.quantised_query = false;
    REQUIRE(mla.other_codes(key, rule, rows, heads)->empty());
    key.quantised_query = true;
    const auto others = mla.other_codes(key, rule, rows, heads);
    const auto of_rank = mla.rank_other_codes(key, 0, rule, rows, heads);
    REQUIRE(of_rank->size() == others->size());
    const ReferenceOutput reference = mla.yardsticks(key, rule, std::nullopt, {0, 1})->reference;
    for (const OwnedYardsticks& other : *others) {
      CHECK(other.reference.rows == std::vector<std::int32_t>{0, 1});
      CHECK(other.reference.output != reference.output);
      CHECK(other.reference.lse != reference.lse);
      CHECK(other.emulation.rows == other.reference.rows);
    }
    found += others->size();
  }
  CHECK(found > 0);
}

TEST_CASE("an output is judged by the row of fp8 queries when there is one") {
  Problem problem = example_problem();
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  problem.kv_cache.block_size = 64;
  const auto judgement_of = [&problem] {
    const std::unique_ptr<Case> the_case = make_case(problem, {1, {}});
    const std::unique_ptr<CaseRun> case_run = the_case->start(*find_backend("FLASHMLA"));
    const std::unique_ptr<Ops> ops = make_cpu_ops(1);
    const std::unique_ptr<Pipeline> pipeline = case_run->prepare(*ops);
    pipeline->poison_outputs();
    for (const Step& step : pipeline->steps()) step.run();
    return case_run->judge(pipeline->read_output());
  };
  const auto decodes = judgement_of();
  CHECK(decodes->reasons.empty());
  CHECK(decodes->error.rule == "semantics 14.2 rows, output bfloat16, P bfloat16, MLA, fp8 Q K V");
  problem.batch = {{130, 140}};  // longer than any decode of FLASHMLA
  const auto prefills = judgement_of();
  CHECK(prefills->reasons.empty());
  CHECK(prefills->error.rule ==
        "semantics 14.2 rows, output bfloat16, P bfloat16, MLA, quantised K and V");
}

TEST_CASE("the reference makes of a quantised kv_b_proj the weights that backends get") {
  Problem problem = example_problem();
  MlaValues plain(problem, {1, {}});
  problem.mla.kv_b_proj = WeightFormat::kFp8;
  for (const std::optional<int> block : {std::optional<int>{}, {8}, {24}}) {
    CAPTURE(block.value_or(0));
    problem.mla.kv_b_proj_block = block;
    MlaValues values(problem, {1, {}});
    const MlaInputs& in = values.inputs();
    const MlaReferenceInputs sources = values.sources(decode_key());
    CHECK(sources.w_uk != &in.w_uk);
    for (const auto& [own, given] : {std::pair{sources.w_uk, &in.w_uk}, {sources.w_uv, &in.w_uv}}) {
      REQUIRE(own->shape() == given->shape());
      CHECK(std::equal(own->bytes(), own->bytes() + own->size_bytes(), given->bytes()));
    }
    CHECK(values.reference(decode_key())->output != plain.reference(decode_key())->output);
    // The largest element of a block is a code of 448, or with its sign.
    std::int64_t largest = 0;
    for (std::int64_t i = 0; i < in.kv_b_proj.num_elements(); ++i) {
      largest += std::abs(in.kv_b_proj.at(i)) == 448 ? 1 : 0;
    }
    CHECK(largest >= in.kv_b_proj_scale.num_elements());
    double worst = 0;
    for (std::int64_t i = 0; i < in.w_uk.num_elements(); ++i) {
      const float exact = plain.inputs().w_uk.at(i);
      worst = std::max<double>(worst, std::abs(in.w_uk.at(i) - exact) / (std::abs(exact) + 1e-3));
    }
    CHECK(worst > 0);
    CHECK(worst < 0.08);
  }
}

}  // namespace attnbench::mla_values_test
