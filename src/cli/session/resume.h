// Runs that go on where an earlier one ended, and the journal that makes it possible.
//
// A journal is a file of finished results, one after the other, beside the result file. It is
// written while the run goes on, so that a run that dies has lost the case that it was at and no
// more.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "core/result/result.h"
#include "report/journal.h"

namespace attnbench {

/// What a file has that a resumed run does not measure.
struct KeptResults {
  std::vector<Result> selected;  // results of jobs, in their order
  std::vector<Result> others;    // of cases that this run does not select, in the order of the file
};

/// The results of `path` and of the journal beside it that need not be measured again: of the same
/// problem and, of users' backends, the same library, neither error nor skipped, timed and checked
/// as far as `bench` wants it, and not contradicting themselves. Errors: those of read_result_file
/// when neither file is there or one is broken; kUsage when they come from another machine.
KeptResults results_to_keep(const std::string& path, const std::vector<Job>& jobs,
                            const BenchOptions& bench, const RunInfo& run);

/// "results.json.journal".
std::string journal_path(const std::string& result_path);

/// Repeats everything to another observer and writes finished results to a journal.
class JournalObserver final : public BenchObserver {
 public:
  JournalObserver(BenchObserver& next, Journal* journal) : next_(next), journal_(journal) {}
  void job_started(std::size_t index, std::size_t count, const Job& job) override {
    next_.job_started(index, count, job);
  }
  void job_resumed(std::size_t index, const Job& job) override { next_.job_resumed(index, job); }
  void phase(Phase phase) override { next_.phase(phase); }
  void notice(const std::string& text) override { next_.notice(text); }
  void waits_for(const std::string& kernels) override { next_.waits_for(kernels); }
  void job_finished(const Result& result) override;

 private:
  BenchObserver& next_;
  Journal* journal_;  // null = none
};

/// Jobs that have no result among `kept`.
std::vector<Job> jobs_left(const std::vector<Job>& jobs, const std::vector<Result>& kept);

/// Kept and new results in the order of the jobs.
std::vector<Result> in_job_order(const std::vector<Job>& jobs, std::vector<Result> kept,
                                 std::vector<Result> added);

}  // namespace attnbench
