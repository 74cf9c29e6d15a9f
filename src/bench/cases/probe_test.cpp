#include "bench/cases/probe.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "backends/reference_sources.h"
#include "core/problem/fields.h"
#include "inputs/make_inputs.h"
#include "inputs/needles.h"
#include "reference/attention.h"

namespace attnbench {
namespace {

Problem decodes(std::vector<Request> batch) {
  Problem problem;
  problem.attention.num_heads = 8;
  problem.attention.num_kv_heads = 1;
  problem.attention.head_size = problem.attention.v_head_size = 64;
  problem.attention.scale = 0.125;
  problem.kv_cache.num_blocks = 9000;
  problem.batch = std::move(batch);
  return problem;
}

ReferenceOutput attend(const Problem& problem, const AttentionInputs& inputs,
                       std::span<const std::int32_t> rows) {
  return reference_attention(resolve_attention_math(problem, KernelRules{}),
                             reference_sources(inputs), rows)
      .value();
}

/// ||a - r|| / ||r|| of the needle's row and head.
double row_distance(const ReferenceOutput& a, const ReferenceOutput& r, const Needle& needle) {
  const auto row = std::find(r.rows.begin(), r.rows.end(), needle.token) - r.rows.begin();
  const std::int64_t first = (row * r.num_heads + needle.head) * r.v_head_size;
  double apart = 0;
  double size = 0;
  for (std::int64_t d = first; d < first + r.v_head_size; ++d) {
    const auto i = static_cast<std::size_t>(d);
    apart += (a.output[i] - r.output[i]) * (a.output[i] - r.output[i]);
    size += r.output[i] * r.output[i];
  }
  return std::sqrt(apart / size);
}

std::byte* key_bytes(const Problem& problem, AttentionInputs& inputs, const Needle& needle) {
  const AttentionSpec& a = problem.attention;
  const std::int64_t row =
      inputs.key_start_loc[static_cast<std::size_t>(needle.request)] + needle.key;
  const std::int64_t kv_head = needle.head / (a.num_heads / a.num_kv_heads);
  return inputs.key.bytes() +
         static_cast<std::size_t>((row * a.num_kv_heads + kv_head) * a.head_size) *
             dtype_size(a.dtype);
}

/// The key turned round, so that its weight is nothing.
void lose(const Problem& problem, AttentionInputs& inputs, const Needle& needle) {
  const auto size = static_cast<std::int64_t>(problem.attention.head_size);
  std::byte* const key = key_bytes(problem, inputs, needle);
  for (std::int64_t d = 0; d < size; ++d) {
    store_float(problem.attention.dtype, key, d, -load_float(problem.attention.dtype, key, d));
  }
}

}  // namespace

TEST_CASE("a needle that is lost among 64k keys is an error of the size of its row") {
  const Problem probe = probe_problem(decodes({{1, 65536}}));
  AttentionInputs inputs = make_inputs(probe);
  const std::vector<std::int32_t> rows{0};
  const ReferenceOutput right = attend(probe, inputs, rows);
  const std::vector<Needle> needles = plan_needles(probe);
  REQUIRE(needles.size() >= 8);
  double least = 10;
  for (const Needle& needle : needles) {
    if (!needle.visible) continue;
    lose(probe, inputs, needle);
    const double error = row_distance(attend(probe, inputs, rows), right, needle);
    least = std::min(least, error);
    lose(probe, inputs, needle);  // and back
  }
  CHECK(least > 0.2);
  // Without needles the same loss is hardly anything.
  Problem plain = probe;
  plain.inputs.distribution = Distribution::kNormal;
  AttentionInputs drawn = make_inputs(plain);
  const ReferenceOutput plain_right = attend(plain, drawn, rows);
  lose(plain, drawn, needles.front());
  CHECK(row_distance(attend(plain, drawn, rows), plain_right, needles.front()) < 0.1);
}

TEST_CASE("a needle that counts twice, or should not count, is an error of the size of its row") {
  Problem problem = decodes({{1, 4000}, {9, 700}});
  problem.attention.sliding_window = 500;
  const Problem probe = probe_problem(problem);
  const AttentionInputs inputs = make_inputs(probe);
  const std::vector<Needle> needles = plan_needles(probe);
  const std::vector<std::int32_t> rows = needle_rows(needles);
  const ReferenceOutput right = attend(probe, inputs, rows);
  AttentionMath wide = resolve_attention_math(probe, KernelRules{});
  wide.window_left += 1;
  wide.window_right += 1;
  wide.causal = false;
  const ReferenceOutput wrong = reference_attention(wide, reference_sources(inputs), rows).value();
  int hidden = 0;
  for (const Needle& needle : needles) {
    if (needle.visible) continue;
    ++hidden;
    CHECK(row_distance(wrong, right, needle) > 0.2);
  }
  CHECK(hidden > 4);
}

TEST_CASE("needles survive the rounding of a quantised cache") {
  Problem problem = decodes({{1, 3000}});
  const Problem probe = probe_problem(problem);
  AttentionInputs inputs = make_inputs(probe);
  for (const Dtype dtype : {Dtype::kE4M3, Dtype::kE5M2}) {
    AttentionInputs stored = inputs;
    stored.key = convert(convert(inputs.key, dtype), Dtype::kBF16);
    const std::vector<std::int32_t> rows{0};
    const ReferenceOutput right = attend(probe, stored, rows);
    for (const Needle& needle : plan_needles(probe)) {
      if (!needle.visible) continue;
      lose(probe, stored, needle);
      CHECK(row_distance(attend(probe, stored, rows), right, needle) > 0.2);
      lose(probe, stored, needle);
    }
  }
}

TEST_CASE("the second draw is the scenario's problem on other values, whatever it draws") {
  Problem problem = decodes({{1, 100}, {4, 50}});
  problem.inputs.std = 0.02;
  problem.inputs.file = "/nowhere.safetensors";
  problem.inputs.seed = 7;
  Problem probe = probe_problem(problem);
  CHECK(probe.inputs.distribution == Distribution::kProbe);
  CHECK(probe.inputs.std == 1);
  CHECK_FALSE(probe.inputs.file);
  CHECK(probe.inputs.seed != 7);
  CHECK(probe_problem(problem).inputs.seed == probe.inputs.seed);
  problem.inputs.seed = 8;
  CHECK(probe_problem(problem).inputs.seed != probe.inputs.seed);
  problem.inputs.seed = 7;
  probe.inputs = problem.inputs;
  CHECK(problem_to_json(probe) == problem_to_json(problem));

  problem.attention.scale = 1;  // scores of deviation 1 all the same
  const double std = probe_problem(problem).inputs.std;
  CHECK(std * std * std::sqrt(64.0) == doctest::Approx(1));
}

TEST_CASE("the probe compares every row of small batches and rows with needles of large ones") {
  CHECK(probe_rows(probe_problem(decodes({{1, 100}, {4, 50}}))).size() == 5);

  const Problem large = probe_problem(decodes({{20000, 20000}, {1, 131072}, {1, 64}}));
  const std::vector<std::int32_t> rows = probe_rows(large);
  const std::vector<std::int32_t> needles = needle_rows(plan_needles(large));
  CHECK(rows.size() >= 16);
  CHECK(rows.size() < 300);
  CHECK(std::is_sorted(rows.begin(), rows.end()));
  for (const std::int32_t row : rows) {
    CHECK(std::binary_search(needles.begin(), needles.end(), row));
  }
  CHECK(std::binary_search(rows.begin(), rows.end(), 20000));  // the longest request
  CHECK(std::binary_search(rows.begin(), rows.end(), 20001));  // the shortest
  Problem few = large;
  few.validation.max_rows = 3;
  CHECK(probe_rows(few).size() == 3);
  few.validation.max_rows = static_cast<std::int64_t>(needles.size()) + 5;
  const std::vector<std::int32_t> filled = probe_rows(few);
  CHECK(filled.size() == needles.size() + 5);
  CHECK(std::includes(filled.begin(), filled.end(), needles.begin(), needles.end()));

  const std::vector<std::int32_t> handful = mutant_rows(large);
  CHECK_FALSE(handful.empty());
  CHECK(handful.size() <= 6);
}

TEST_CASE("an operation and an empty batch have no probe") {
  Problem problem = decodes({{1, 100}});
  CHECK(has_probe(problem));
  problem.attention.type = AttentionType::kOp;
  CHECK_FALSE(has_probe(problem));
  problem.attention.type = AttentionType::kDecoder;
  problem.batch = {{0, 0}};
  CHECK_FALSE(has_probe(problem));
}

}  // namespace attnbench
