// Every row is seen: mistakes outside of the sample, on the CPU and by the device's kernel on
// emulated threads.
#include "bench/cases/screening.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "backends/backend.h"
#include "bench/bench.h"
#include "bench/cases/case.h"
#include "bench/cases/emulated_row_screen_testing.h"
#include "core/error.h"
#include "ops/ops.h"

namespace attnbench {
namespace {

constexpr std::int64_t kWidth = 2 * 32;  // of a row

/// Six decodes and a prefill: 34 rows, of which the reference checks four.
Problem example_problem() {
  Problem problem;
  problem.attention.num_heads = 2;
  problem.attention.num_kv_heads = 1;
  problem.attention.head_size = problem.attention.v_head_size = 32;
  problem.attention.scale = 1 / std::sqrt(32.0);
  problem.batch.assign(6, {1, 60});
  problem.batch.push_back({28, 28});
  problem.kv_cache.num_blocks = 7 * 4;
  problem.validation.max_rows = 4;
  return problem;
}

JudgeTools tools_of(bool on_device, std::uint64_t seed = 5, bool spoil = false) {
  JudgeTools tools;
  tools.draw_seed = [seed] { return seed; };
  if (on_device) {
    tools.make_screen = [spoil] { return std::make_unique<EmulatedRowScreen>(spoil); };
  }
  return tools;
}

/// A turn of a backend at a case, run once and right.
struct Turn {
  Problem problem;
  std::unique_ptr<Case> the_case;
  std::unique_ptr<Ops> ops = make_cpu_ops(1);
  std::unique_ptr<CaseRun> case_run;
  PipelineOutput output;

  Turn(Problem the_problem, const JudgeTools& tools, const char* backend = "FLASH_ATTN")
      : problem(std::move(the_problem)) {
    the_case = make_case(problem, {1, {}}, tools);
    the_case->notices();
    case_run = the_case->start(*find_backend(backend));
    const std::unique_ptr<Pipeline> pipeline = case_run->prepare(*ops);
    pipeline->poison_outputs();
    for (const Step& step : pipeline->steps()) step.run();
    output = pipeline->read_output(false);
  }
  Judgement judge() { return *case_run->judge(output); }
};

/// A token row that is in no sample that the test draws: the middle of the prefill, no edge.
constexpr std::int64_t kUnsampled = 6 + 22;

/// A decode that is not in it.
std::int64_t unsampled_decode(const Problem& problem) {
  const std::vector<std::int32_t> rows = sample_rows(problem, 5).rows;
  std::int64_t row = 0;
  while (std::binary_search(rows.begin(), rows.end(), row)) ++row;
  REQUIRE(row < 6);
  return row;
}

}  // namespace

TEST_CASE("a right output passes with every row seen, most of them by screening") {
  for (const bool on_device : {false, true}) {
    CAPTURE(on_device);
    Turn turn(example_problem(), tools_of(on_device));
    const Judgement judgement = turn.judge();
    CHECK(judgement.reasons == std::vector<std::string>{});
    CHECK(judgement.error.checked_rows == 4);
    CHECK(judgement.error.screened_rows == turn.problem.num_tokens());
    CHECK(judgement.sample_seed == 5);
  }
}

TEST_CASE("rows that are wrong outside of the sample are found") {
  struct Mistake {
    const char* name;
    void (*make)(Turn&);
  };
  const Mistake mistakes[] = {
      {"a row of zeros",
       [](Turn& turn) {
         for (std::int64_t i = 0; i < kWidth; ++i)
           turn.output.output.set(kUnsampled * kWidth + i, 0);
       }},
      {"a head of NaN",
       [](Turn& turn) {
         for (std::int64_t i = 0; i < 32; ++i) {
           turn.output.output.set(kUnsampled * kWidth + i, std::numeric_limits<float>::quiet_NaN());
         }
       }},
      {"one request of all is that of another",
       [](Turn& turn) {
         const std::int64_t row = unsampled_decode(turn.problem);
         for (std::int64_t i = 0; i < kWidth; ++i) {
           turn.output.output.set(row * kWidth + i, turn.output.output.at((row + 1) * kWidth + i));
         }
       }},
      {"an LSE in base 2",
       [](Turn& turn) {
         const std::int64_t at = turn.output.lse->dim(1) + kUnsampled;
         turn.output.lse->set(at, turn.output.lse->at(at) * 1.4427f);
       }},
  };
  for (const bool on_device : {false, true}) {
    for (const Mistake& mistake : mistakes) {
      CAPTURE(on_device);
      CAPTURE(mistake.name);
      Turn turn(example_problem(), tools_of(on_device));
      if (std::string(mistake.name) == "an LSE in base 2" && !turn.output.lse) continue;
      mistake.make(turn);
      const Judgement judgement = turn.judge();
      CHECK_FALSE(judgement.reasons.empty());
      CHECK(judgement.error.checked_rows == 5);
      CHECK(judgement.error.total_rows == turn.problem.num_tokens());
    }
  }
}

TEST_CASE("a window that is off by one is found in rows that were not sampled") {
  Problem problem = example_problem();
  problem.attention.sliding_window = 16;
  for (const bool on_device : {false, true}) {
    CAPTURE(on_device);
    Problem wider = problem;
    wider.attention.sliding_window = 17;
    Turn wrong(wider, tools_of(on_device));
    Turn turn(problem, tools_of(on_device));
    for (std::int64_t i = 0; i < kWidth; ++i) {
      const std::int64_t at = kUnsampled * kWidth + i;
      turn.output.output.set(at, wrong.output.output.at(at));
    }
    CHECK_FALSE(turn.judge().reasons.empty());
  }
}

TEST_CASE("where more rows are suspicious than can be judged, the result says so") {
  Problem problem = example_problem();
  problem.batch.back() = {120, 120};
  problem.kv_cache.num_blocks = 6 * 4 + 8;
  Turn turn(problem, tools_of(false));
  for (std::int64_t i = 0; i < turn.output.output.num_elements(); ++i) turn.output.output.set(i, 0);
  const Judgement judgement = turn.judge();
  REQUIRE_FALSE(judgement.reasons.empty());
  CHECK(judgement.reasons.back().find("screening finds 122 rows of ") == 0);
  CHECK(judgement.error.checked_rows == 4 + 64);
}

TEST_CASE("a screening that disagrees with the reference is an error of this program") {
  Turn turn(example_problem(), tools_of(true, 5, /*spoil=*/true));
  try {
    turn.judge();
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kInternal);
    CHECK(std::string(error.what()).find("screening disagrees with the reference: row ") == 0);
  }
}

TEST_CASE("figures that runs are compared by do not depend on the drawn seed") {
  for (const bool on_device : {false, true}) {
    CAPTURE(on_device);
    Problem problem = example_problem();
    problem.validation.max_rows = 12;
    Turn first(problem, tools_of(on_device, 1));
    Turn second(problem, tools_of(on_device, 2));
    const Judgement a = first.judge();
    const Judgement b = second.judge();
    CHECK(a.sample_seed != b.sample_seed);
    CHECK(a.error.nmse == b.error.nmse);
    CHECK(a.error.rms_rel == b.error.rms_rel);
    CHECK(a.error.err_ratio == b.error.err_ratio);
  }
}

namespace {

/// The same batch in two simulated ranks.
Problem ranked_problem() {
  Problem problem = example_problem();
  problem.dcp.world_size = 2;
  problem.kv_cache.num_blocks = 7 * 4;
  return problem;
}

/// Decodes and a prefill of a small MLA model.
Problem latent_problem() { return as_latents(example_problem()); }

bool has_reason(const Judgement& judgement, const std::string& start) {
  return std::any_of(judgement.reasons.begin(), judgement.reasons.end(),
                     [&](const std::string& reason) { return reason.starts_with(start); });
}

Tensor& part_named(PipelineOutput& output, const std::string& name) {
  return std::find_if(output.more.begin(), output.more.end(),
                      [&](const auto& entry) { return entry.first == name; })
      ->second;
}

}  // namespace

TEST_CASE("every row of a rank's part is seen on the device") {
  Turn right(ranked_problem(), tools_of(true));
  const Judgement passed = right.judge();
  CHECK(passed.reasons == std::vector<std::string>{});
  REQUIRE(passed.rank_errors.size() == 2);
  CHECK(passed.rank_errors[1].error.checked_rows == 4);
  CHECK(passed.rank_errors[1].error.screened_rows == right.problem.num_tokens());

  const std::int64_t row = unsampled_decode(right.problem);
  for (const bool on_device : {false, true}) {
    CAPTURE(on_device);
    Turn turn(ranked_problem(), tools_of(on_device));
    Tensor& parts = part_named(turn.output, "rank_output");
    const std::int64_t of_rank = parts.num_elements() / 2;
    for (std::int64_t i = 0; i < kWidth; ++i) parts.set(of_rank + row * kWidth + i, 0);
    // Without a device nobody but the sample's rows is looked at.
    CHECK(has_reason(turn.judge(), "rank 1: output of request ") == on_device);
  }
}

TEST_CASE("parts of ranks that were not handed in are a reason") {
  Turn turn(ranked_problem(), tools_of(false));
  Turn without(ranked_problem(), tools_of(false));
  std::erase_if(without.output.more, [](const auto& entry) { return entry.first == "rank_lse"; });
  CHECK(has_reason(without.judge(), "rank_lse has the parts of 0 ranks, dcp.world_size is 2"));
  turn.output.more.clear();
  CHECK(has_reason(turn.judge(), "rank_output has the parts of 0 ranks, dcp.world_size is 2"));
}

TEST_CASE("every row of latent attention is seen on the device") {
  Turn right(latent_problem(), tools_of(true), "MLA");
  const Judgement passed = right.judge();
  CHECK(passed.reasons == std::vector<std::string>{});
  CHECK(passed.error.checked_rows == 4);
  CHECK(passed.error.screened_rows == right.problem.num_tokens());
  for (const std::int64_t row : {unsampled_decode(right.problem), kUnsampled}) {
    CAPTURE(row);
    Turn turn(latent_problem(), tools_of(true), "MLA");
    for (std::int64_t i = 0; i < 16; ++i) turn.output.output.set((row * 2 + 1) * 16 + i, 0);
    CHECK(has_reason(turn.judge(), "output of request "));
  }
}

TEST_CASE("every row of a rank's latents is seen on the device") {
  Problem problem = latent_problem();
  problem.dcp.world_size = 2;
  Turn right(problem, tools_of(true), "MLA");
  const Judgement passed = right.judge();
  CHECK(passed.reasons == std::vector<std::string>{});
  REQUIRE(passed.rank_errors.size() == 2);
  CHECK(passed.rank_errors[0].error.screened_rows == 6);
  Turn turn(problem, tools_of(true), "MLA");
  Tensor& parts = part_named(turn.output, "rank_output");
  const std::int64_t of_rank = parts.num_elements() / 2;
  const std::int64_t row = unsampled_decode(problem);
  for (std::int64_t i = 0; i < 2 * 32; ++i) parts.set(of_rank + row * 2 * 32 + i, 0);
  CHECK(has_reason(turn.judge(), "rank 1: output of request "));
}

TEST_CASE("nothing is drawn where the reference sees every row") {
  Problem problem = example_problem();
  problem.validation.max_rows.reset();
  Turn turn(problem, tools_of(false));
  const Judgement judgement = turn.judge();
  CHECK_FALSE(judgement.sample_seed);
  CHECK(judgement.error.screened_rows == problem.num_tokens());
  CHECK(judgement.error.checked_rows == problem.num_tokens());
}

TEST_CASE("the seed of a run is the given one, or another for every case") {
  BenchOptions options;
  std::set<std::uint64_t> drawn;
  for (int i = 0; i < 4; ++i) drawn.insert(judge_tools(options).draw_seed());
  CHECK(drawn.size() > 1);
  options.sample_seed = 12;
  CHECK(judge_tools(options).draw_seed() == 12);
}

}  // namespace attnbench
