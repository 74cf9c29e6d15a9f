#include "run_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/cases/case.h"
#include "bench/judge/judge.h"
#include "core/error.h"
#include "scenario/scenario.h"
#include "waiting_ops.h"

namespace attnbench::matrix {
namespace {

PipelineOutput run_once(Pipeline& pipeline, WaitingOps& ops) {
  pipeline.poison_outputs();
  ops.queue(pipeline);
  ops.synchronize();
  return pipeline.read_output();
}

void judge_pipeline(const Problem& problem, const Backend& backend, Ops& given_ops,
                    std::vector<std::string>& reasons) {
  WaitingOps ops(given_ops);
  const std::unique_ptr<Case> the_case = make_case(problem, {1, {}});
  const std::unique_ptr<CaseRun> case_run = the_case->start(backend);
  const std::unique_ptr<Pipeline> pipeline = case_run->prepare(ops);
  const PipelineOutput output = run_once(*pipeline, ops);
  if (!output.defect.empty()) reasons.push_back(output.defect);
  if (const std::string wrong = case_run->check_stored(output); !wrong.empty()) {
    reasons.push_back(wrong);
  }
  if (const std::string other = describe_difference(output, run_once(*pipeline, ops));
      !other.empty()) {
    reasons.push_back("not deterministic: " + other);
  }
  if (!ops.first_wait().empty()) {
    reasons.push_back("the host waits in step " + ops.first_wait());
  }
  const std::optional<Judgement> judgement = case_run->judge(output);
  reasons.insert(reasons.end(), judgement->reasons.begin(), judgement->reasons.end());
  if (judgement->error.checked_rows != judgement->error.total_rows) {
    reasons.push_back("not all rows were checked");
  }
}

}  // namespace

std::string CaseResult::text() const { return fmt::format("{}", fmt::join(reasons, "; ")); }

CaseResult run_case(const Problem& problem, const Backend& backend, Ops& ops,
                    const DeviceFacts& device) {
  CaseResult result;
  result.reasons = backend.refusals(problem, device);
  if (!result.reasons.empty()) {
    result.outcome = Outcome::kRefused;
    return result;
  }
  try {
    judge_pipeline(problem, backend, ops, result.reasons);
  } catch (const Error& error) {
    result.reasons.push_back(error.full_message());
  } catch (const std::exception& error) {
    result.reasons.emplace_back(error.what());
  }
  if (!result.reasons.empty()) result.outcome = Outcome::kWrong;
  return result;
}

Problem make_problem(const std::string& text, const std::vector<Setting>& settings) {
  ScenarioOptions options;
  options.overrides = settings;
  const Scenario scenario = parse_scenario(text, "matrix.yaml", options);
  if (scenario.cases.size() != 1) {
    fail(ErrorKind::kInternal, "expected one case, found {}", scenario.cases.size());
  }
  return scenario.cases.front();
}

}  // namespace attnbench::matrix
