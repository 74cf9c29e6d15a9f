// The backends of a case in turns: all prepared and validated, then timed round by round.
//
// Clocks and temperature of a device drift over minutes. Backends that are timed one after the
// other meet different conditions, and a difference of a few percent is then the drift's. In turns
// each backend is timed in every stretch of time, and the order is rotated, so that none always
// follows the same neighbour. The price is memory: the buffers of all of them are alive at once.
//
// Inputs and references are shared anyway (bench/cases). The cache of each backend and its outputs
// are not: of a case that fills the device only some members may fit.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "bench/bench.h"
#include "bench/loop/job_runner.h"

namespace attnbench {

/// Takes the result of the job with this index.
using JobDone = std::function<void(std::size_t index, Result&& result)>;

/// Runs the jobs with the indices `group`, which are of one problem, and tells `observer` and then
/// `done` of each result. One job is run as it is. Of several, each is prepared and validated, and
/// those that pass are timed in problem.timing.rounds rounds with all of their buffers alive; every
/// round starts with the backend after the one that the round before started with. One that fails
/// for want of memory, or by the words of a user's library, is run by itself, after the others were
/// let go, and they take their turns without it; `observer` hears of it when there was room then.
///
/// False: with options.isolate a job failed, and the process should end; jobs of the group without
/// a result want to run again.
bool run_group(JobRunner& runner, const std::vector<Job>& jobs,
               const std::vector<std::size_t>& group, const BenchOptions& options,
               BenchObserver& observer, const JobDone& done);

}  // namespace attnbench
