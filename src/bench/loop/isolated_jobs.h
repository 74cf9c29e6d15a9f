// Jobs in a child process, so that a crash, a sticky device error or a hang costs one case only.
//
// The child runs jobs as they would run here and reports each event through a pipe; the parent
// passes the events on and keeps the results. When a child is lost, the job that it was at becomes
// an error that says how, and a new child goes on with the jobs that have no result. After a job
// that ended with an error the child leaves by itself: CUDA gives the same error for every later
// call of the process, and the next job would be blamed for it.
//
// Where a job is of a user's backend the child only runs. Every job of such a run is judged here,
// in the parent, where no user's code is loaded, from outputs and samples that the child hands in
// (trial/judge_desk.h): also those of native backends, because their child has the user's code too.
//
// Silence is the sign of a hang. It counts only in phases that run the backend, because making
// inputs and references takes as long as it takes, and a time limit on those would fail large cases
// on slow machines. An interrupt is passed on as SIGTERM, and a child that does not end soon is
// killed.
#pragma once

#include <functional>
#include <vector>

#include "bench/bench.h"
#include "bench/loop/job_runner.h"

namespace attnbench {

/// Runs the jobs with these indices in the calling process and tells the observer. It may leave
/// jobs without a result: they are then given to the next child. `make_judge`: as JobRunner has it.
using RunPending = std::function<void(const std::vector<std::size_t>& pending,
                                      BenchObserver& observer, const MakeJudge& make_judge)>;

/// Forks a child that calls `run_pending` and sends what it reports back; the parent repeats it to
/// `observer`. A child that crashes, ends early or says nothing for too long in a phase that runs
/// the backend (BenchOptions::hang_limit_s, plus timing.timeout_s in the timing phase) makes the
/// job that it was at an "error"; a new child runs those that have no result yet, jobs that took
/// turns with the lost one among them. Jobs that an interrupt left without a result are "skipped".
///
/// The parent itself must not have touched the device before: a CUDA context does not survive a
/// fork, and the child would meet an error at its first call. That is why BenchOptions::make_ops is
/// a function and not a device. Once this runs the parent may: children come from a process that
/// was forked at the start. Results are in the order of `jobs`. Errors: E-INTERNAL when no process
/// can be made.
std::vector<Result> run_isolated(const std::vector<Job>& jobs, const BenchOptions& options,
                                 BenchObserver& observer, const RunPending& run_pending);

}  // namespace attnbench
