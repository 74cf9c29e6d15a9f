#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <vector>

#include "metadata/parts/decode_plan.h"
#include "ops/cpu/attention/mla_decode_testing.h"
#include "ops/cpu/attention/random_attention_testing.h"
#include "ops/ops.h"
#include "ops/plan_rows.h"

namespace attnbench::cpu {
namespace {

/// A plan with room for its partials.
struct PlannedDecode {
  std::vector<std::int32_t> parts;
  std::vector<std::int32_t> num_splits;
  std::vector<attn::i64> start;
  std::vector<float> output, lse;
  attn::PlanParams params{};

  PlannedDecode(const DecodePlan& plan, const std::vector<int>& query_start_loc, int num_heads,
                int v_head_size)
      : num_splits(plan.num_splits),
        start(plan_partial_start_loc(num_splits, query_start_loc)),
        output(static_cast<std::size_t>(start.back() * num_heads * v_head_size), NAN),
        lse(static_cast<std::size_t>(start.back() * num_heads), NAN) {
    for (const DecodePart& part : plan.parts) {
      parts.insert(parts.end(),
                   {part.begin_req, part.end_req, part.begin_block, part.end_block,
                    part.begin_split, part.first_req_split, part.last_req_split, part.padding});
    }
    params = {static_cast<int>(plan.parts.size()),
              parts.data(),
              num_splits.data(),
              start.data(),
              output.data(),
              lse.data()};
  }
};

void expect_plan(MlaDecode& decode, int num_parts, int overhead, double tolerance) {
  PlannedDecode planned(plan_decode(decode.seq_lens, num_parts, overhead), decode.query_start_loc,
                        decode.num_heads, decode.latent);
  const auto ops = make_cpu_ops(2);
  ops->attend_plan(decode.params, planned.params);
  ops->combine_plan(decode.params, planned.params);
  INFO("parts ", num_parts, " overhead ", overhead);
  CHECK(decode.difference(decode.causal_slots(), 0.05f, 1.0, tolerance) == "");
}

}  // namespace

TEST_CASE("one latent head of 576 serves all query heads, its first 512 elements being the value") {
  for (const int heads : {1, 3, 16, 128}) {
    MlaDecode decode({1, 1, 1}, {40, 0, 300}, heads);
    make_cpu_ops(2)->attend(decode.params);
    CHECK(decode.difference(decode.causal_slots(), 0.05f, 1.0, 3e-5) == "");
  }
}

TEST_CASE("speculative queries of several tokens see one key more each") {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    MlaDecode decode({3, 1, 4}, {70, 5, 4}, 16, 512, 64, dtype);
    make_cpu_ops(2)->attend(decode.params);
    CHECK(decode.difference(decode.causal_slots(), 0.05f, 1.0, 3e-5) == "");
  }
}

TEST_CASE("fp8 queries and entries fold their scales into scores and output") {
  MlaDecode decode({1, 2}, {90, 33}, 8, 512, 64, Dtype::kE4M3);
  const float q_scale = 0.5f;
  const float k_scale = 0.75f;
  decode.params.score.softmax_scale = 0.05f * q_scale * k_scale;
  decode.params.kv.v_scale = &k_scale;
  make_cpu_ops(1)->attend(decode.params);
  CHECK(decode.difference(decode.causal_slots(), 0.05f * q_scale * k_scale, k_scale, 3e-5) == "");
}

TEST_CASE("a 16-bit query reads an fp8 cache through its scale") {
  MlaDecode decode({1, 1}, {90, 33}, 8, 512, 64, Dtype::kBF16);
  decode.fill_cache(Dtype::kE4M3);
  const float k_scale = 0.75f;
  decode.params.kv.k_scale = decode.params.kv.v_scale = &k_scale;
  make_cpu_ops(1)->attend(decode.params);
  CHECK(decode.difference(decode.causal_slots(), 0.05f * k_scale, k_scale, 3e-5) == "");
}

TEST_CASE("a planned decode gives the same attention for every number of parts and overhead") {
  MlaDecode decode({1, 1, 1, 1, 1}, {1000, 64, 0, 300, 1}, 4, 64, 16);
  for (const int parts : {1, 2, 3, 4, 7, 40}) {
    for (const int overhead : {0, 1, 5}) expect_plan(decode, parts, overhead, 3e-5);
  }
}

TEST_CASE("a planned decode serves several query tokens of uneven requests") {
  MlaDecode decode({3, 0, 2, 1}, {500, 0, 130, 64}, 16, 64, 16);
  for (const int parts : {1, 3, 11}) expect_plan(decode, parts, 5, 3e-5);
}

TEST_CASE("queries of more rows than a tile are planned tile by tile") {
  MlaDecode decode({3, 2}, {200, 129}, 70, 32, 8);
  for (const int parts : {2, 5}) expect_plan(decode, parts, 1, 3e-5);
}

TEST_CASE("the golden plan deals out these blocks and leaves these partials") {
  // lens [1000, 64, 0, 300], 3 parts: request 0 takes blocks 0-15 in part 0 and 15-16 in part 1.
  MlaDecode decode({1, 1, 1, 1}, {1000, 64, 0, 300}, 2, 32, 8);
  PlannedDecode planned(plan_decode(decode.seq_lens, 3, 5), decode.query_start_loc, 2, 32);
  CHECK(planned.start == std::vector<attn::i64>{0, 2, 2, 2, 2});
  make_cpu_ops(2)->attend_plan(decode.params, planned.params);
  // Keys [0, 960) and [960, 1000) of request 0: attention over fewer keys, their LSEs.
  for (const auto& [split, first, past] : {std::array{0, 0, 960}, std::array{1, 960, 1000}}) {
    for (int head = 0; head < 2; ++head) {
      double sum = 0;
      for (int j = first; j < past; ++j) {
        double dot = 0;
        for (int d = 0; d < 40; ++d) {
          dot += double{decode.query.at(head * 40 + d)} *
                 double{decode.cache.at(decode.slot(0, j) * 40 + d)};
        }
        sum += std::exp(0.05 * dot);
      }
      const float actual = planned.lse[static_cast<std::size_t>(split * 2 + head)];
      CHECK(double{actual} == doctest::Approx(std::log(sum)).epsilon(1e-5));
    }
  }
  // Requests with one split are finished, the split one is not.
  CHECK(std::isnan(decode.output.at(0)));
  CHECK_FALSE(std::isnan(decode.output.at(1 * 2 * 32)));
  CHECK(decode.output.at(2 * 2 * 32) == 0.0f);
  CHECK(decode.lse.at(2) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("a plan over a slice of the batch writes that slice only") {
  MlaDecode decode({1, 1, 1}, {100, 400, 90}, 2, 32, 8);
  decode.params.first_request = 1;
  decode.params.num_requests = 1;
  const std::vector<int> lens{400};
  const std::vector<int> query_start_loc{0, 1};
  PlannedDecode planned(plan_decode(lens, 3, 0), query_start_loc, 2, 32);
  const auto ops = make_cpu_ops(1);
  ops->attend_plan(decode.params, planned.params);
  ops->combine_plan(decode.params, planned.params);
  CHECK(std::isnan(decode.output.at(0)));
  CHECK_FALSE(std::isnan(decode.output.at(64)));
  CHECK(std::isnan(decode.output.at(128)));
}

TEST_CASE("an empty batch has an empty plan") {
  MlaDecode decode({1}, {20}, 2, 32, 8);
  decode.params.num_requests = 0;
  PlannedDecode planned(plan_decode({}, 2, 5), {0}, 2, 32);
  const auto ops = make_cpu_ops(2);
  ops->attend_plan(decode.params, planned.params);
  ops->combine_plan(decode.params, planned.params);
  CHECK(std::isnan(decode.output.at(0)));
}

TEST_CASE("a plan works for several KV heads and a sink, which counts once") {
  AttentionCase c;
  c.query_lens = {1, 1};
  c.seq_lens = {700, 130};
  c.num_heads = 8;
  c.num_kv_heads = 2;
  c.sinks = true;
  AttentionSetup setup(c);
  PlannedDecode planned(plan_decode(setup.seq_lens, 4, 1), setup.query_start_loc, 8, 32);
  const auto ops = make_cpu_ops(2);
  ops->attend_plan(setup.params, planned.params);
  ops->combine_plan(setup.params, planned.params);
  CHECK(setup.difference(2e-5) == "");
}

}  // namespace attnbench::cpu
