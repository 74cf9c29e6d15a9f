// The loop of the tool: case x backend -> supported? -> inputs -> run -> compare -> time -> Result.
// The commands turn scenarios and options into Jobs and read Results; this is all that they see.
//
// Below it, from top to bottom: loop/ (stages of a job, turns, child processes, timing), cases/
// (what a family of attention is made of), judge/ (verdicts on outputs). Each includes only what is
// below.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "core/problem/problem.h"
#include "core/result/result.h"
#include "core/system/clock.h"

namespace attnbench {

class TimingTools;

enum class SaveTensors { kNever, kFailed, kAlways };

struct BenchOptions {
  bool validate = true;
  bool timing = true;
  SaveTensors save = SaveTensors::kNever;
  std::filesystem::path save_dir;
  std::string device = "cpu";  // what --device resolved to
  DeviceFacts device_facts;
  int num_threads = 0;  // 0 = all cores
  /// Opens the device when the first job needs it; empty = the CPU.
  std::function<std::unique_ptr<Ops>()> make_ops;
  /// Timing on the device of make_ops; empty = the CPU.
  std::function<std::unique_ptr<TimingTools>(Ops&)> make_timing_tools;
  /// Which of several passes over all jobs this is: each takes its share of the samples.
  int pass = 0;
  int passes = 1;
  std::function<bool()> should_stop;  // Ctrl-C; may be empty
  /// Runs the jobs in a child process that is replaced when it crashes, hangs or meets an error.
  bool isolate = false;
  double hang_limit_s = 60;  // isolate: silence in a phase that runs the backend; 0 = no limit
};

/// One pair to run.
struct Job {
  const Problem* problem = nullptr;
  const Backend* backend = nullptr;
  std::string id;
  std::string repro;
  /// Reasons that hold whatever the backend says, e.g. a device that is not there.
  std::vector<std::string> extra_refusals;
  std::map<std::string, std::string> file_hashes = {};  // as in Result
};

/// Phase of a job for the progress line.
enum class Phase { kInputs, kReference, kRun, kTiming };
std::span<const EnumRow<Phase>> enum_rows(Phase);

class BenchObserver {
 public:
  virtual ~BenchObserver() = default;
  /// Comes again for a job that has to start anew, e.g. because one that it took turns with failed.
  virtual void job_started(std::size_t index, std::size_t count, const Job& job) = 0;
  /// What follows is of this job again, which was started before others were.
  virtual void job_resumed(std::size_t index, const Job& job) {
    static_cast<void>(index), static_cast<void>(job);
  }
  virtual void phase(Phase phase) = 0;
  /// Of the job that was started or resumed last.
  virtual void job_finished(const Result& result) = 0;
  /// Something about a case's inputs that the user should know, once a case.
  virtual void notice(const std::string& text) { static_cast<void>(text); }
  /// The job waits for these kernels, which it did not wait for before.
  virtual void waits_for(const std::string& kernels) { static_cast<void>(kernels); }
};

/// The identity of a job's result: everything but status, reasons and figures.
Result describe_job(const Job& job, const BenchOptions& options);

/// Runs the jobs in order, or those of one problem in turns where timing.order is alternate; jobs
/// of one problem should stand together, because inputs and reference results are shared between
/// its backends. An Error or bad_alloc of a job becomes its status "error"; after should_stop the
/// remaining jobs are "skipped" with the reason "interrupted".
std::vector<Result> run_jobs(const std::vector<Job>& jobs, const BenchOptions& options,
                             BenchObserver& observer);

}  // namespace attnbench
