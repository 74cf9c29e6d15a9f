// What `run` hands to the bench for each selected pair: a job, with the command that repeats it
// and, for tests of this program, a backend that fails on purpose.
//
// Everything that can go wrong with the command line has been found before: what is made here only
// has to run. Faults are planted by the real program and not by a test's copy of it, so that the
// tests see how a run survives a crash with all of its files and messages.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/loop/planted_fault.h"
#include "cli/cases/device.h"
#include "cli/cases/selection.h"

namespace attnbench {

/// A job for each pair, in the same order, which is that of the results. `repeat` goes behind
/// "attnbench run SCENARIO --filter ID" in the commands that repeat one: OptionTable::repeat_text()
/// of the run. The files that a case reads are hashed here. The jobs point into `pairs`' problems
/// and backends.
std::vector<Job> make_jobs(const std::vector<Pair>& pairs, const DeviceChoice& device,
                           const std::string& repeat);

/// Owns the faulty backends of the jobs that it changed, so it must outlive their run.
class PlantedFaults {
 public:
  /// Gives a job a backend that hangs, crashes or writes past the end of a buffer in place of the
  /// right one, to show that the run survives it and says so. `options` are texts KIND=REGEX, KIND
  /// being hang, crash, overrun or exit, or KIND@RANK=REGEX for one rank of several; with :PHASE
  /// before the = the fault comes at the start of that step, or of "prepare" or "read". The last
  /// that matches a job counts. `own_rank`: of this process. Errors: kUsage for anything else, and
  /// for an expression that matches no job.
  PlantedFaults(const std::vector<std::string>& options, std::vector<Job>& jobs, int own_rank = 0);

 private:
  std::vector<std::unique_ptr<FaultyBackend>> backends_;
};

}  // namespace attnbench
