#include "inputs/needles.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "inputs/make_inputs.h"
#include "inputs/mla_inputs.h"
#include "inputs/mla_problem_testing.h"
#include "inputs/place_needles.h"
#include "inputs/test_problem.h"
#include "metadata/mask/attention_math.h"

namespace attnbench {
namespace {

Problem probe_problem_of(std::vector<Request> batch) {
  Problem problem = small_problem();
  problem.attention.num_heads = 16;
  problem.attention.num_kv_heads = 4;
  problem.attention.head_size = problem.attention.v_head_size = 64;
  problem.attention.scale = 0.125;
  problem.batch = std::move(batch);
  problem.inputs.distribution = Distribution::kProbe;
  return problem;
}

std::set<NeedleKind> kinds_of(const std::vector<Needle>& needles, std::int64_t request) {
  std::set<NeedleKind> kinds;
  for (const Needle& needle : needles) {
    if (needle.request == request) kinds.insert(needle.kind);
  }
  return kinds;
}

double row_bias(const Problem& problem, double slope, std::int64_t position, std::int64_t key) {
  if (problem.attention.alibi == AlibiKind::kNone) return 0;
  return -slope * static_cast<double>(position - key);
}

/// Score of a key for the head of a needle's row, as semantics 3.1 has it for causal rows.
double score_of(const Problem& problem, const AttentionInputs& inputs, const Needle& needle,
                std::int64_t key) {
  const AttentionSpec& a = problem.attention;
  const std::int64_t kv_head = needle.head / (a.num_heads / a.num_kv_heads);
  const std::int64_t row = inputs.key_start_loc[static_cast<std::size_t>(needle.request)] + key;
  double sum = 0;
  for (std::int64_t d = 0; d < a.head_size; ++d) {
    sum += double{inputs.query.at((needle.token * a.num_heads + needle.head) * a.head_size + d)} *
           inputs.key.at((row * a.num_kv_heads + kv_head) * a.head_size + d);
  }
  double score = sum * a.scale;
  if (a.logits_soft_cap > 0) score = a.logits_soft_cap * std::tanh(score / a.logits_soft_cap);
  const double slope = inputs.alibi_slopes.empty()
                           ? 0.0
                           : double{inputs.alibi_slopes[static_cast<std::size_t>(needle.head)]};
  return score + row_bias(problem, slope, needle.position, key);
}

/// The weight that the needle has, or would have if it counted.
double weight_of(const Problem& problem, const AttentionInputs& inputs, const Needle& needle) {
  const AttentionMath math = resolve_attention_math(problem, KernelRules{});
  const std::int64_t seq_len = inputs.seq_lens[static_cast<std::size_t>(needle.request)];
  double sum = inputs.sinks.empty()
                   ? 0.0
                   : std::exp(double{inputs.sinks[static_cast<std::size_t>(needle.head)]});
  for (std::int64_t key = 0; key < seq_len; ++key) {
    if (key != needle.key &&
        !is_allowed(math, math.ranges_of(needle.request), needle.position, key, seq_len)) {
      continue;
    }
    sum += std::exp(score_of(problem, inputs, needle, key));
  }
  return std::exp(score_of(problem, inputs, needle, needle.key)) / sum;
}

/// Ascending.
std::vector<double> weights_of(const Problem& problem) {
  const AttentionInputs inputs = make_inputs(problem);
  std::vector<double> weights;
  for (const Needle& needle : plan_needles(problem)) {
    weights.push_back(weight_of(problem, inputs, needle));
  }
  std::sort(weights.begin(), weights.end());
  return weights;
}

}  // namespace

TEST_CASE("every request of a batch has needles at every kind of place that it has") {
  Problem problem = probe_problem_of({{1, 700}, {1, 2000}, {40, 90}, {0, 0}, {1, 1300}});
  problem.cascade.common_prefix_len = 32;
  problem.attention.sliding_window = 600;
  const std::vector<Needle> needles = plan_needles(problem);
  using enum NeedleKind;
  for (const std::int64_t request : {0, 1, 4}) {
    CAPTURE(request);
    const std::set<NeedleKind> kinds = kinds_of(needles, request);
    for (const NeedleKind kind : {kFirstVisible, kBeforeVisible, kPageEdge, kTileEdge}) {
      CAPTURE(to_string(kind));
      CHECK(kinds.count(kind) == 1);
    }
  }
  CHECK(kinds_of(needles, 0).count(kNewToken) == 1);
  CHECK(kinds_of(needles, 1).count(kLongestEnd) == 1);
  CHECK(kinds_of(needles, 2).count(kShortestEnd) == 1);
  CHECK(kinds_of(needles, 2).count(kBehindVisible) == 1);
  CHECK(kinds_of(needles, 2).count(kPrefixEdge) == 1);
  CHECK(kinds_of(needles, 3).empty());
}

TEST_CASE("splits, segments and ranks have needles at their edges") {
  using enum NeedleKind;
  Problem problem = probe_problem_of({{1, 6000}});
  std::set<std::int64_t> edges;
  for (const Needle& needle : plan_needles(problem)) {
    if (needle.kind == kSplitEdge) edges.insert(needle.key);
  }
  CHECK(edges.size() >= 2);
  problem.dcp.world_size = 2;
  CHECK(kinds_of(plan_needles(problem), 0).count(kShardEdge) == 1);
}

TEST_CASE("needles are what their kind says: visible, or just outside of what the row sees") {
  Problem problem = probe_problem_of({{1, 300}, {70, 200}});
  problem.attention.sliding_window = 50;
  const AttentionMath math = resolve_attention_math(problem, KernelRules{});
  int hidden = 0;
  for (const Needle& needle : plan_needles(problem)) {
    const std::int64_t seq_len = problem.batch[static_cast<std::size_t>(needle.request)].seq_len;
    CHECK(is_allowed(math, {}, needle.position, needle.key, seq_len) == needle.visible);
    if (needle.visible) continue;
    ++hidden;
    const KeyRange range = visible_range(math, needle.position, seq_len);
    CHECK((needle.key == range.begin - 1 || needle.key == range.end));
  }
  CHECK(hidden > 0);
}

TEST_CASE("heads that read the same keys have needles at different places") {
  const Problem problem = probe_problem_of({{1, 3000}});
  std::map<int, std::set<std::int64_t>> keys;
  for (const Needle& needle : plan_needles(problem)) keys[needle.head / 4].insert(needle.key);
  REQUIRE(keys.size() == 4);
  for (const auto& [kv_head, of_group] : keys) CHECK(of_group.size() >= 4);
}

TEST_CASE("one head meets more kinds of places in several requests than in one") {
  Problem one = probe_problem_of({{1, 3000}});
  one.attention.num_heads = one.attention.num_kv_heads = 1;
  Problem several = one;
  several.batch.assign(12, {1, 3000});
  const auto kinds = [](const Problem& problem) {
    std::set<NeedleKind> all;
    for (const Needle& needle : plan_needles(problem)) all.insert(needle.kind);
    return all.size();
  };
  CHECK(kinds(one) == 2);
  CHECK(kinds(several) >= 5);
}

TEST_CASE("the list is the same each time, another for another seed, and empty for nothing") {
  Problem problem = probe_problem_of({{1, 3000}, {64, 700}});
  const std::vector<Needle> needles = plan_needles(problem);
  CHECK(needles == plan_needles(problem));
  const std::vector<std::int32_t> rows = needle_rows(needles);
  CHECK(rows.size() >= 30);
  CHECK(std::is_sorted(rows.begin(), rows.end()));
  problem.inputs.seed += 1;
  CHECK(needles != plan_needles(problem));
  problem.inputs.std = 0;
  CHECK(plan_needles(problem).empty());
  problem.inputs.std = 1;
  problem.batch = {{0, 0}};
  CHECK(plan_needles(problem).empty());
}

TEST_CASE("a needle has about half of its row's weight, a hidden one would have") {
  Problem problem = probe_problem_of({{1, 900}, {12, 300}});
  SUBCASE("plain") {}
  SUBCASE("few dimensions") {
    problem.attention.head_size = problem.attention.v_head_size = 16;
    problem.attention.scale = 0.25;
  }
  SUBCASE("window") { problem.attention.sliding_window = 100; }
  SUBCASE("soft-cap") { problem.attention.logits_soft_cap = 20; }
  SUBCASE("sinks") { problem.attention.sinks = SinksKind::kNormal; }
  SUBCASE("ALiBi") { problem.attention.alibi = AlibiKind::kLinear; }
  SUBCASE("a shared prefix") { problem.cascade.common_prefix_len = 64; }
  SUBCASE("another scale and deviation") {
    problem.attention.scale = 1;
    problem.inputs.std = 0.35;
  }
  const std::vector<double> weights = weights_of(problem);
  CHECK(weights.front() > 0.08);
  CHECK(weights[weights.size() / 2] > 0.35);
  CHECK(weights[weights.size() / 2] < 0.85);
}

TEST_CASE("a soft-cap below the wanted score leaves what can be reached") {
  Problem problem = probe_problem_of({{1, 2000}});
  problem.attention.logits_soft_cap = 4;
  const AttentionInputs inputs = make_inputs(problem);
  for (const Needle& needle : plan_needles(problem)) {
    const double weight = weight_of(problem, inputs, needle);
    CHECK(weight > 5.0 / 2000);
    CHECK(weight < 0.2);
  }
}

TEST_CASE("an ordinary query stays as long as it was, and keys of large heads stay as drawn") {
  Problem problem = probe_problem_of({{1, 4000}});
  problem.attention.head_size = problem.attention.v_head_size = 128;
  problem.attention.scale = 1 / std::sqrt(128.0);
  const AttentionInputs probe = make_inputs(problem);
  problem.inputs.distribution = Distribution::kNormal;
  const AttentionInputs drawn = make_inputs(problem);
  for (std::int64_t head = 0; head < 16; ++head) {
    double square = 0;
    for (std::int64_t d = 0; d < 128; ++d) {
      square += double{probe.query.at(head * 128 + d)} * probe.query.at(head * 128 + d);
    }
    CHECK(std::sqrt(square) < 1.35 * std::sqrt(128.0));
    CHECK(std::sqrt(square) > 0.6 * std::sqrt(128.0));
  }
  double change = 0;
  for (std::int64_t i = 0; i < drawn.key.num_elements(); ++i) {
    change = std::max(change, std::abs(double{probe.key.at(i)} - drawn.key.at(i)));
  }
  CHECK(change < 2);
}

TEST_CASE("values of the probe have a mean of half their deviation") {
  Problem problem = probe_problem_of({{1, 900}});
  problem.inputs.std = 2;
  const AttentionInputs inputs = make_inputs(problem);
  double sum = 0;
  double squares = 0;
  const std::int64_t count = inputs.value.num_elements();
  for (std::int64_t i = 0; i < count; ++i) {
    sum += inputs.value.at(i);
    squares += double{inputs.value.at(i)} * inputs.value.at(i);
  }
  const double mean = sum / static_cast<double>(count);
  CHECK(mean == doctest::Approx(1.0).epsilon(0.02));
  CHECK(std::sqrt(squares / static_cast<double>(count) - mean * mean) ==
        doctest::Approx(2.0).epsilon(0.02));
}

TEST_CASE("positions of a shared prefix keep the same keys in every request") {
  Problem problem = probe_problem_of({{1, 100}, {1, 200}});
  problem.attention.head_size = problem.attention.v_head_size = 16;  // keys are made longer
  problem.attention.scale = 0.25;
  problem.cascade.common_prefix_len = 48;
  const AttentionInputs inputs = make_inputs(problem);
  const std::int64_t width = 4 * 16;
  for (std::int64_t i = 0; i < 48 * width; ++i) {
    REQUIRE(inputs.key.at(i) == inputs.key.at(100 * width + i));
  }
}

TEST_CASE("a query that is turned reaches its dot products, also with two keys") {
  std::vector<std::vector<double>> keys{std::vector<double>(32), std::vector<double>(32)};
  std::vector<double> query(32);
  for (std::size_t i = 0; i < 32; ++i) {
    keys[0][i] = std::sin(static_cast<double>(i));
    keys[1][i] = std::cos(2.0 * static_cast<double>(i));
    query[i] = std::sin(3.0 * static_cast<double>(i) + 1);
  }
  const std::vector<double> dots{12, 9};
  align_query(keys, dots, 32, query);
  for (std::size_t k = 0; k < 2; ++k) {
    double sum = 0;
    for (std::size_t i = 0; i < 32; ++i) sum += keys[k][i] * query[i];
    CHECK(sum == doctest::Approx(dots[k]));
  }
  const std::vector<std::vector<double>> zeros{std::vector<double>(32, 0.0)};
  align_query(zeros, std::vector<double>{12}, 32, query);
  for (const double value : query) CHECK(std::isfinite(value));
}

TEST_CASE("heads of latent attention have needles of their own among the same entries") {
  Problem problem = mla_test_problem();
  problem.batch = {{1, 200}, {6, 90}};
  problem.kv_cache.num_blocks = 40;
  problem.inputs.distribution = Distribution::kProbe;
  const MlaInputs inputs = make_mla_inputs(problem);
  const AttentionSpec& a = problem.attention;
  const std::int64_t rank = inputs.kv_c.dim(1);
  const std::int64_t rope = inputs.k_pe.dim(1);
  const std::int64_t nope = inputs.w_uk.dim(1);
  const std::vector<Needle> needles = plan_needles(problem);
  REQUIRE_FALSE(needles.empty());
  const auto score = [&](const Needle& needle, std::int64_t key) {
    const std::int64_t row = inputs.key_start_loc[static_cast<std::size_t>(needle.request)] + key;
    const std::int64_t first = (needle.token * a.num_heads + needle.head) * a.head_size;
    double sum = 0;
    for (std::int64_t p = 0; p < nope; ++p) {
      double projected = 0;
      for (std::int64_t l = 0; l < rank; ++l) {
        projected += double{inputs.w_uk.at((needle.head * nope + p) * rank + l)} *
                     inputs.kv_c.at(row * rank + l);
      }
      sum += projected * inputs.query.at(first + p);
    }
    for (std::int64_t r = 0; r < rope; ++r) {
      sum += double{inputs.query.at(first + nope + r)} * inputs.k_pe.at(row * rope + r);
    }
    return sum * a.scale;
  };
  for (const Needle& needle : needles) {
    if (!needle.visible) continue;
    double sum = 0;
    for (std::int64_t key = 0; key <= needle.position; ++key) sum += std::exp(score(needle, key));
    CHECK(std::exp(score(needle, needle.key)) / sum > 0.1);
  }
}

}  // namespace attnbench
