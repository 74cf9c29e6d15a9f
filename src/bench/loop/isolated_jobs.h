// Jobs in a child process, so that a crash, a sticky device error or a hang costs one case only.
#pragma once

#include <functional>
#include <vector>

#include "bench/bench.h"

namespace attnbench {

/// Runs the jobs with these indices in the calling process and tells the observer.
using RunPending =
    std::function<void(const std::vector<std::size_t>& pending, BenchObserver& observer)>;

/// Forks a child that calls `run_pending` and sends what it reports back; the parent repeats it to
/// `observer`. A child that crashes, ends early or says nothing for too long in a phase that runs
/// the backend (BenchOptions::hang_limit_s, plus timing.timeout_s in the timing phase) makes the
/// job that it was at an "error"; a new child runs those that have no result yet, jobs that took
/// turns with the lost one among them. The parent itself must not have touched the device: a CUDA
/// context does not survive a fork. Errors: E-INTERNAL when no process can be made.
std::vector<Result> run_isolated(const std::vector<Job>& jobs, const BenchOptions& options,
                                 BenchObserver& observer, const RunPending& run_pending);

}  // namespace attnbench
