// Jobs in a child process, so that a crash, a sticky device error or a hang costs one case only.
#pragma once

#include <functional>
#include <vector>

#include "bench/bench.h"

namespace attnbench {

/// Runs jobs [first, end) in order in the calling process.
using RunFrom =
    std::function<std::vector<Result>(const std::vector<Job>& jobs, std::size_t first,
                                      const BenchOptions& options, BenchObserver& observer)>;

/// Forks a child that calls `run_from` and sends what it reports back; the parent repeats it to
/// `observer`. A child that crashes, ends early or says nothing for too long in a phase that runs
/// the backend (BenchOptions::hang_limit_s, plus timing.timeout_s in the timing phase) makes its
/// job an "error"; a new child goes on with the next job. The parent itself must not have touched
/// the device: a CUDA context does not survive a fork. Errors: E-INTERNAL when no process can be
/// made.
std::vector<Result> run_isolated(const std::vector<Job>& jobs, const BenchOptions& options,
                                 BenchObserver& observer, const RunFrom& run_from);

}  // namespace attnbench
