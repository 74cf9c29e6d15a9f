// The backends of a case in turns: all prepared and validated, then timed round by round.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "bench/bench.h"
#include "bench/job_runner.h"

namespace attnbench {

/// Takes the result of the job with this index.
using JobDone = std::function<void(std::size_t index, Result&& result)>;

/// Runs the jobs with the indices `group`, which are of one problem, and tells `observer` and then
/// `done` of each result. One job is run as it is. Of several, each is prepared and validated, and
/// those that pass are timed in problem.timing.rounds rounds with all of their buffers alive; every
/// round starts with the backend after the one that the round before started with. Where they do
/// not fit into memory together, or all but one are out, the jobs are timed one after another; of
/// the former `observer` hears. False: with options.isolate a job failed, and the process should
/// end; jobs of the group without a result want to run again.
bool run_group(JobRunner& runner, const std::vector<Job>& jobs,
               const std::vector<std::size_t>& group, const BenchOptions& options,
               BenchObserver& observer, const JobDone& done);

}  // namespace attnbench
