// What is kept of the probe from backend to backend, and its part of a result.
#include "bench/trial/probe_run.h"

#include <unistd.h>

#include <utility>

#include "bench/cases/probe.h"
#include "inputs/make_inputs.h"

namespace attnbench {
namespace {

/// Of inputs, up to which drawing them takes no noticeable time.
constexpr std::int64_t kSmallCase = std::int64_t{64} << 20;
/// Both draws together may take this share of the machine's memory.
constexpr std::int64_t kMemoryShare = 4;

std::int64_t memory_bytes() {
  return std::int64_t{::sysconf(_SC_PHYS_PAGES)} * std::int64_t{::sysconf(_SC_PAGESIZE)};
}

}  // namespace

bool is_probed(const Problem& problem) {
  return has_probe(problem) && input_bytes(problem) <= memory_bytes() / 2;
}

void ProbeVerdict::add_to(Result& result) const {
  result.probe_error = error;
  result.probe_lse_error = lse_error;
  result.reasons.insert(result.reasons.end(), reasons.begin(), reasons.end());
}

std::optional<ProbeVerdict> judge_probe(CaseRun& case_run, const PipelineOutput& output) {
  ProbeVerdict verdict;
  const auto add = [&](const std::string& reason) {
    if (!reason.empty()) verdict.reasons.push_back("probe: " + reason);
  };
  add(output.defect);
  add(case_run.check_stored(output));
  std::optional<Judgement> judgement = case_run.judge(output);
  if (!judgement) return std::nullopt;
  verdict.error = std::move(judgement->error);
  verdict.lse_error = std::move(judgement->lse_error);
  for (const std::string& reason : judgement->reasons) add(reason);
  std::optional<std::vector<Mutant>> unseen = case_run.unseen_mistakes(output, std::nullopt);
  if (!unseen) return std::nullopt;
  verdict.unseen = *std::move(unseen);
  return verdict;
}

std::optional<std::vector<std::string>> find_blind_spots(CaseRun& case_run,
                                                         const PipelineOutput& output,
                                                         const ProbeVerdict& probe) {
  const std::optional<std::vector<Mutant>> unseen = case_run.unseen_mistakes(output, probe.unseen);
  if (!unseen) return std::nullopt;
  return names_of(*unseen);
}

std::optional<std::vector<std::string>> predicted_blind_spots(const Problem& problem,
                                                              const Backend& backend) {
  if (!has_probe(problem) || backend.is_users() || input_bytes(problem) > kSmallCase) {
    return std::nullopt;
  }
  const bool is_static_fp8 = problem.output_quant.type == OutputQuantType::kFp8Static &&
                             problem.attention.type != AttentionType::kMla;
  PipelineOutput shape;
  shape.output = Tensor(is_static_fp8 ? Dtype::kE4M3 : problem.attention.dtype, {1, 1, 1});
  ProbeCases probes;
  const std::unique_ptr<CaseRun> on_probe = probes.start(problem, backend, {});
  ProbeVerdict verdict;
  verdict.unseen = on_probe->unseen_mistakes(shape, std::nullopt).value();
  if (verdict.unseen.empty()) return std::vector<std::string>{};
  const std::unique_ptr<Case> scenario = make_case(problem, {}, {});
  scenario->notices();
  return find_blind_spots(*scenario->start(backend), shape, verdict);
}

std::unique_ptr<CaseRun> ProbeCases::start(const Problem& problem, const Backend& backend,
                                           const ReferenceOptions& options,
                                           const JudgeTools& tools) {
  if (!case_ || of_ != &problem) {
    auto next = std::make_unique<Problem>(probe_problem(problem));
    if (!case_ || !case_->move_on(*next)) {
      case_.reset();  // frees its tensors before the next ones are made
      case_ = make_case(*next, options, tools);
    }
    problem_ = std::move(next);
    of_ = &problem;
  }
  case_->notices();  // makes the inputs; what they say is of values that nobody chose
  return case_->start(backend);
}

void ProbeCases::release_if_large() {
  if (!problem_ || input_bytes(*problem_) <= memory_bytes() / (2 * kMemoryShare)) return;
  case_.reset();
  problem_.reset();
  of_ = nullptr;
}

}  // namespace attnbench
