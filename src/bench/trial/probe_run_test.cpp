#include "bench/trial/probe_run.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "bench/bench.h"
#include "bench/loop/fake_backend.h"
#include "core/test_folder.h"
#include "inputs/files/safetensors.h"

namespace attnbench::probe_run_test {
namespace {

class Silent final : public BenchObserver {
 public:
  void job_started(std::size_t, std::size_t, const Job&) override {}
  void phase(Phase) override {}
  void job_finished(const Result&) override {}
};

Problem two_requests() {
  Problem problem;
  problem.scenario = "suite";
  problem.case_name = "two";
  problem.attention.num_heads = 4;
  problem.attention.num_kv_heads = 2;
  problem.attention.head_size = problem.attention.v_head_size = 16;
  problem.attention.scale = 0.25;
  problem.kv_cache.num_blocks = 30;
  problem.batch = {{1, 200}, {5, 48}};
  problem.timing.samples = 2;
  problem.timing.l2 = L2Mode::kWarm;
  return problem;
}

struct Bench {
  Problem problem = two_requests();
  FakeBackend backend;
  BenchOptions options;

  Bench() {
    options.timing = false;
    options.num_threads = 1;
  }
  Result run() {
    Silent silent;
    return run_jobs({{&problem, &backend, "suite/two/FLASH_ATTN", "x", {}}}, options, silent)
        .front();
  }
};

}  // namespace

TEST_CASE("a right backend passes on both draws, and the result has the errors of both") {
  Bench bench;
  const Result result = bench.run();
  CHECK(result.status == Status::kPassed);
  REQUIRE(result.probe_error);
  CHECK(result.probe_error->checked_rows == 6);
  CHECK(result.probe_error->max_abs > 0);
  CHECK(result.probe_error->max_abs != result.error->max_abs);
  CHECK(result.probe_lse_error);
  REQUIRE(result.blind_to);
}

TEST_CASE("what is wrong on the probe only is incorrect, says so and is not timed") {
  Bench bench;
  bench.options.timing = true;
  bench.backend.probe_fault = [](PipelineOutput& output, int) { output.output.set(7, 9.0f); };
  const Result result = bench.run();
  CHECK(result.status == Status::kIncorrect);
  REQUIRE(result.reasons.size() >= 1);
  for (const std::string& reason : result.reasons) CHECK(reason.rfind("probe: ", 0) == 0);
  CHECK_FALSE(result.timing);
}

TEST_CASE("an output of zeros fails also where the scenario's values are hardly anything") {
  Bench bench;
  bench.problem.inputs.std = 0.02;
  bench.problem.batch = {{1, 200}};
  bench.backend.fault = [](PipelineOutput& output, int) {
    for (std::int64_t i = 0; i < output.output.num_elements(); ++i) output.output.set(i, 0.0f);
  };
  CHECK(bench.run().status == Status::kIncorrect);
}

TEST_CASE("a case of equal scores names what it cannot see only where the probe does not see it") {
  Bench bench;
  bench.problem.inputs.std = 1e-4;
  const Result result = bench.run();
  REQUIRE(result.blind_to);
  for (const char* seen : {"zeros", "mean of V", "no scale", "last key dropped"}) {
    CHECK(std::find(result.blind_to->begin(), result.blind_to->end(), seen) ==
          result.blind_to->end());
  }
}

TEST_CASE("without validation there is no second draw") {
  Bench bench;
  bench.options.validate = false;
  const Result result = bench.run();
  CHECK(result.status == Status::kUnverified);
  CHECK_FALSE(result.probe_error);
  CHECK_FALSE(result.blind_to);
  CHECK(bench.backend.runs == 1);
  CHECK(bench.backend.probe_runs == 0);
}

TEST_CASE("what is wrong on both draws says so of both, the scenario's first") {
  Bench bench;
  bench.backend.fault = [](PipelineOutput& output, int) { output.output.set(7, 9.0f); };
  bench.backend.probe_fault = bench.backend.fault;
  const Result result = bench.run();
  CHECK(result.status == Status::kIncorrect);
  REQUIRE(result.reasons.size() >= 2);
  CHECK(result.reasons.front().rfind("probe: ", 0) == std::string::npos);
  CHECK(result.reasons.back().rfind("probe: ", 0) == 0);
  CHECK(result.probe_error);
}

TEST_CASE("the pipeline of the probe is gone when the next one is made, and it runs once") {
  Bench bench;
  int alive = 0;
  int most = 0;
  bench.problem.batch = {{5, 48}};  // nothing to run alone
  bench.backend.memory = [&]() -> std::shared_ptr<void> {
    most = std::max(most, ++alive);
    return {&alive, [](int* count) { --*count; }};
  };
  CHECK(bench.run().status == Status::kPassed);
  CHECK(bench.backend.prepared == 2);
  CHECK(bench.backend.probe_runs == 1);
  CHECK(most == 1);
}

TEST_CASE("operations, empty batches and what memory does not hold twice have no second draw") {
  Problem problem = two_requests();
  CHECK(is_probed(problem));
  problem.batch = {{0, 0}};
  CHECK_FALSE(is_probed(problem));
  problem.batch = {{1, std::int64_t{1} << 34}};
  CHECK_FALSE(is_probed(problem));
  problem.batch = {{1, 10}};
  problem.attention.type = AttentionType::kOp;
  CHECK_FALSE(is_probed(problem));
}

TEST_CASE("tensors of the draw that failed are saved") {
  TestFolder folder;
  Bench bench;
  bench.options.save = SaveTensors::kFailed;
  bench.options.save_dir = folder.path();
  bench.run();
  CHECK(folder.num_files() == 0);
  bench.backend.probe_fault = [](PipelineOutput& output, int) { output.output.set(7, 9.0f); };
  bench.run();
  const SafetensorsFile file =
      read_safetensors(folder.path() / "suite__two__FLASH_ATTN.safetensors");
  REQUIRE(file.find("output") != nullptr);
  CHECK(file.find("output")->at(7) == 9.0f);
}

TEST_CASE("two backends of a case share the values of the probe") {
  ProbeCases probes;
  const Problem problem = two_requests();
  const FakeBackend backend;
  const auto first = probes.start(problem, backend, {1, {}});
  const auto ops = make_cpu_ops(1);
  const auto run = [&](CaseRun& case_run) {
    const auto pipeline = case_run.prepare(*ops);
    for (const Step& step : pipeline->steps()) step.run();
    return judge_probe(case_run, pipeline->read_output(true)).value();
  };
  const ProbeVerdict one = run(*first);
  CHECK(one.reasons.empty());
  const auto second = probes.start(problem, backend, {1, {}});
  CHECK(run(*second).error->max_abs == one.error->max_abs);
  Problem other = problem;
  other.inputs.seed += 1;
  CHECK(run(*probes.start(other, backend, {1, {}})).error->max_abs != one.error->max_abs);
}

}  // namespace attnbench::probe_run_test
