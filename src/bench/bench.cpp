// Which jobs take turns, and where they run: in this process or in a child. The stages of a job are
// job_runner.h's.
#include "bench/bench.h"

#include <numeric>
#include <utility>

#include "bench/loop/alternation.h"
#include "bench/loop/isolated_jobs.h"
#include "bench/loop/job_runner.h"
#include "core/problem/fields.h"
#include "metadata/parts/cascade.h"

namespace attnbench {
namespace {

/// The jobs of `pending` from `first` on that take turns: those of one problem
/// whose timing.order says so.
std::vector<std::size_t> group_at(const std::vector<Job>& jobs,
                                  const std::vector<std::size_t>& pending, std::size_t first,
                                  const BenchOptions& options) {
  std::vector<std::size_t> group{pending[first]};
  const Problem* problem = jobs[pending[first]].problem;
  if (!options.timing || problem->timing.order != TimingOrder::kAlternate) return group;
  for (std::size_t i = first + 1; i < pending.size(); ++i) {
    if (jobs[pending[i]].problem != problem) break;
    group.push_back(pending[i]);
  }
  return group;
}

/// Runs the pending jobs in the calling process; `done` takes each result with its job's index.
void run_in_process(const std::vector<Job>& jobs, const std::vector<std::size_t>& pending,
                    const BenchOptions& options, BenchObserver& observer, const JobDone& done,
                    const MakeJudge& make_judge = {}) {
  JobRunner runner(options, observer, make_judge);
  for (std::size_t i = 0; i < pending.size();) {
    const std::vector<std::size_t> group = group_at(jobs, pending, i, options);
    if (!run_group(runner, jobs, group, options, observer, done)) return;
    i += group.size();
  }
}

}  // namespace

std::span<const EnumRow<Phase>> enum_rows(Phase) {
  using enum Phase;
  static constexpr auto kRows = every_value<EnumRow<Phase>>({
      {kInputs, "inputs", "tensors are drawn or read"},
      {kReference, "reference", "the expected output is computed"},
      {kRun, "run", "the backend prepares and runs once"},
      {kTiming, "timing", "samples are taken"},
  });
  return kRows;
}

bool spoils_its_process(const Job& job, Status status) {
  const bool is_wrong = status == Status::kIncorrect || status == Status::kImplausible;
  return status == Status::kError || (is_wrong && job.backend->is_users());
}

Result describe_job(const Job& job, const BenchOptions& options) {
  Result result;
  result.id = job.id;
  result.scenario = job.problem->scenario;
  result.case_name = job.problem->case_name;
  result.backend = full_name(*job.backend);
  result.forced_kernel = job.backend->forced_kernel();
  result.device = options.device;
  const Problem& problem = *job.problem;
  if (problem.attention.type == AttentionType::kDecoder && !prefix_groups(problem).empty()) {
    result.cascade_heuristic = heuristic_cascades(problem, options.device_facts.num_sms);
  }
  result.problem_json = problem_to_json(*job.problem);
  result.file_hashes = job.file_hashes;
  if (const PluginInfo* plugin = job.backend->plugin()) result.plugin = *plugin;
  result.repro = job.repro;
  return result;
}

std::vector<Result> run_jobs(const std::vector<Job>& jobs, const BenchOptions& options,
                             BenchObserver& observer) {
  if (options.isolate) {
    return run_isolated(jobs, options, observer,
                        [&](const std::vector<std::size_t>& pending, BenchObserver& sender,
                            const MakeJudge& make_judge) {
                          run_in_process(
                              jobs, pending, options, sender, [](std::size_t, Result&&) {},
                              make_judge);
                        });
  }
  std::vector<Result> results(jobs.size());
  std::vector<std::size_t> all(jobs.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  run_in_process(jobs, all, options, observer,
                 [&](std::size_t index, Result&& result) { results[index] = std::move(result); });
  return results;
}

}  // namespace attnbench
