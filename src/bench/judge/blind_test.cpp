#include "bench/judge/blind.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "backends/reference_sources.h"
#include "inputs/make_inputs.h"

namespace attnbench {
namespace {

Problem two_requests() {
  Problem problem;
  problem.attention.num_heads = 4;
  problem.attention.num_kv_heads = 2;
  problem.attention.head_size = problem.attention.v_head_size = 32;
  problem.attention.scale = 1 / std::sqrt(32.0);
  problem.attention.dtype = Dtype::kF32;
  problem.kv_cache.num_blocks = 40;
  problem.batch = {{1, 200}, {6, 90}};
  return problem;
}

struct Seen {
  Problem problem = two_requests();
  Numerics numerics{Dtype::kF32, Dtype::kF32, false, false};
  bool gives_lse = false;
  std::vector<std::int32_t> rows{0, 3, 6};

  BlindCase blind_case() const { return {&problem, numerics, gives_lse, rows}; }
  std::vector<std::string> mutants() const { return names_of(mutants_of(blind_case())); }
  std::vector<std::string> unseen() const {
    const AttentionInputs inputs = make_inputs(problem);
    const AttentionMath math = resolve_attention_math(problem, KernelRules{});
    const MutantReference reference = [&](const MutantChange& change) {
      return mutated_attention(math, reference_sources(inputs), change, rows, {1, {}});
    };
    return names_of(unseen_mutants(blind_case(), mutants_of(blind_case()), reference).value());
  }
};

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

TEST_CASE("on ordinary values in float32 every mistake is seen") {
  Seen seen;
  seen.gives_lse = true;
  CHECK(seen.mutants().size() == 10);
  CHECK(seen.unseen().empty());
  seen.problem.attention.sliding_window = 50;
  CHECK(contains(seen.mutants(), "window - 1"));
  CHECK_FALSE(contains(seen.mutants(), "first page dropped"));  // outside of what is seen
  CHECK(seen.unseen().empty());
}

TEST_CASE("on keys of equal scores nobody sees the scale, and the list says so") {
  Seen seen;
  seen.problem.inputs.std = 0.01;
  seen.problem.attention.dtype = Dtype::kBF16;
  seen.numerics = {Dtype::kBF16, Dtype::kBF16, false, false};
  const std::vector<std::string> unseen = seen.unseen();
  CHECK(contains(unseen, "no scale"));
  CHECK(contains(unseen, "scale off by 1 %"));
  CHECK(contains(unseen, "mean of V"));
}

TEST_CASE("a mutant that means nothing for a case is left out") {
  Seen seen;
  CHECK_FALSE(contains(seen.mutants(), "base-2 LSE"));  // there is no LSE
  CHECK_FALSE(contains(seen.mutants(), "window + 1"));
  CHECK(contains(seen.mutants(), "wrong KV head"));
  seen.problem.attention.num_kv_heads = 1;
  CHECK_FALSE(contains(seen.mutants(), "wrong KV head"));
  seen.numerics.probability = Dtype::kE4M3;
  CHECK_FALSE(contains(seen.mutants(), "undeclared e4m3 P"));
  seen.problem.batch = {{1, 16}};
  CHECK_FALSE(contains(seen.mutants(), "first page dropped"));
  // Rows of one key have weight 1, whatever the scale.
  seen.problem.batch = {{1, 1}};
  seen.problem.inputs.std = 0.5;
  seen.rows = {0};
  CHECK(seen.unseen().empty());
}

TEST_CASE("a rule that never says no is blind to everything") {
  // NaN in the reference has to be NaN in the output, and nothing else is compared.
  Seen seen;
  AttentionInputs inputs = make_inputs(seen.problem);
  for (std::int64_t i = 0; i < inputs.value.num_elements(); ++i) inputs.value.set(i, NAN);
  const AttentionMath math = resolve_attention_math(seen.problem, KernelRules{});
  const MutantReference reference = [&](const MutantChange& change) {
    return mutated_attention(math, reference_sources(inputs), change, seen.rows, {1, {}});
  };
  const auto unseen =
      unseen_mutants(seen.blind_case(), {Mutant::kScaleOff, Mutant::kLastKeyDropped}, reference);
  REQUIRE(unseen);
  CHECK(unseen->empty());  // they are the reference itself there, no mistake
}

TEST_CASE("dropping and doubling of the last key agree with attention over such keys") {
  Problem problem = two_requests();
  problem.batch = {{1, 50}};
  const AttentionInputs inputs = make_inputs(problem);
  const AttentionMath math = resolve_attention_math(problem, KernelRules{});
  const std::vector<std::int32_t> rows{0};
  MutantChange drop;
  drop.last_dropped = 1;
  const ReferenceOutput shorter =
      mutated_attention(math, reference_sources(inputs), drop, rows, {1, {}}).value();
  AttentionMath open = math;
  open.causal = false;
  open.window_right = -1;
  std::vector<std::int32_t> lengths{49};
  ReferenceInputs source = reference_sources(inputs);
  source.seq_lens = lengths;
  const ReferenceOutput expected = reference_attention(open, source, rows).value();
  for (std::size_t i = 0; i < expected.output.size(); ++i) {
    CHECK(shorter.output[i] == doctest::Approx(expected.output[i]));
  }
}

TEST_CASE("a wrong KV head is the attention of the next one") {
  Problem problem = two_requests();
  const AttentionInputs inputs = make_inputs(problem);
  const AttentionMath math = resolve_attention_math(problem, KernelRules{});
  const std::vector<std::int32_t> rows{2};
  MutantChange change;
  change.next_kv_head = true;
  const ReferenceOutput wrong =
      mutated_attention(math, reference_sources(inputs), change, rows, {1, {}}).value();
  // Swap the two KV heads instead.
  AttentionInputs swapped = inputs;
  for (Tensor* tensor : {&swapped.key, &swapped.value}) {
    const Tensor& from = tensor == &swapped.key ? inputs.key : inputs.value;
    for (std::int64_t i = 0; i < from.num_elements(); ++i) {
      const std::int64_t row = i / 64;
      tensor->set(i, from.at(row * 64 + (i + 32) % 64));
    }
  }
  const ReferenceOutput expected =
      reference_attention(math, reference_sources(swapped), rows).value();
  for (std::size_t i = 0; i < expected.output.size(); ++i) {
    CHECK(wrong.output[i] == doctest::Approx(expected.output[i]));
  }
}

}  // namespace attnbench
