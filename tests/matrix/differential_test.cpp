// Random small problems over all features, every pipeline against the float64 reference. A failure
// prints its seed and its problem, which `attnbench run` takes as it is.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <map>

#include "core/error.h"
#include "core/problem/fields.h"
#include "random_problem.h"

namespace attnbench::matrix {
namespace {

constexpr int kProblems = 2000;
/// Draws that a backend refuses, or that contradict themselves, are drawn again.
constexpr int kMostDraws = 3 * kProblems;

/// ATTNBENCH_DIFFERENTIAL=<problems>[:<first seed>], e.g. "1:1234" to repeat one.
struct Amount {
  int problems = kProblems;
  std::uint64_t first_seed = 1;

  Amount() {
    const char* text = std::getenv("ATTNBENCH_DIFFERENTIAL");
    if (text == nullptr) return;
    char* rest = nullptr;
    problems = static_cast<int>(std::strtol(text, &rest, 10));
    if (*rest == ':') first_seed = std::strtoull(rest + 1, nullptr, 10);
  }
};

struct Tally {
  int run = 0;
  int refused = 0;
  int contradictory = 0;
  std::map<std::string, int> features;
};

/// The problem as a scenario file of its own, which gives the same problem again.
std::string repeatable_text(const Problem& problem) {
  const std::string text = problem_to_json(problem);
  CHECK_MESSAGE(problem_to_json(make_problem(text, {})) == text,
                "the problem of the result file gives another problem");
  return text;
}

void run_draw(std::uint64_t seed, Ops& ops, Tally& tally) {
  const Draw draw = draw_problem(seed);
  Problem problem;
  try {
    problem = make_problem("name: differential\n", draw.settings);
  } catch (const Error&) {
    ++tally.contradictory;
    return;
  }
  problem.case_name = fmt::format("seed{}", seed);
  problem.backends = {draw.backend};
  const CaseResult result = run_case(problem, *find_backend(draw.backend), ops);
  if (result.outcome == Outcome::kRefused) {
    ++tally.refused;
    return;
  }
  ++tally.run;
  for (const std::string& feature : draw.features) ++tally.features[feature];
  const std::string text = repeatable_text(problem);
  CHECK_MESSAGE(result.outcome == Outcome::kPassed, "seed ", seed, ", ", draw.backend, ": ",
                result.text(), "\n", text);
}

}  // namespace

TEST_CASE("pipelines agree with the reference on random problems over all features") {
  const Amount amount;
  const auto start = std::chrono::steady_clock::now();
  const std::unique_ptr<Ops> ops = make_cpu_ops(1);
  Tally tally;
  for (int i = 0; tally.run < amount.problems && i < kMostDraws; ++i) {
    run_draw(amount.first_seed + static_cast<std::uint64_t>(i), *ops, tally);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  fmt::print(
      "differential: {} problems from seed {}, {:.1f} s; {} more draws refused, {} "
      "contradictory\n",
      tally.run, amount.first_seed, elapsed.count(), tally.refused, tally.contradictory);
  for (const auto& [feature, count] : tally.features) fmt::print("  {:5} {}\n", count, feature);
  if (amount.problems < kProblems) return;
  CHECK(tally.run == amount.problems);
  for (const std::string& feature : required_features()) {
    CHECK_MESSAGE(tally.features[feature] > 0, "never drawn: ", feature);
  }
}

}  // namespace attnbench::matrix
