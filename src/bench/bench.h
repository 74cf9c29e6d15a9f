// The loop of the tool: case x backend -> supported? -> inputs -> run -> compare -> time -> Result.
// The commands turn scenarios and options into Jobs and read Results; this is all that they see.
//
// Below it, from top to bottom: loop/ (stages of a job, turns, child processes, timing), trial/
// (the judging of a job), cases/ (what a family of attention is made of), judge/ (verdicts on
// outputs). Each includes only what is below.
#pragma once

#include <cstdint>
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

class CeilingMeter;
class RowScreen;
class TimingTools;

enum class SaveTensors { kNever, kFailed, kAlways };

/// What is done around timed samples (bench/loop/sample_checks.h). kQuery: only the query is
/// written anew, so that it lies in the cache as with kAll; that and kNone are for benchmarks of
/// the checks.
enum class SampleChecking { kAll, kQuery, kNone };

struct BenchOptions {
  bool validate = true;
  /// Judges timed samples where nothing else is: of further passes over cases that were validated.
  bool judge_samples = false;
  bool timing = true;
  /// Runs also the tool's own backends with their buffers at the edges of mappings.
  bool all_edges = false;
  SaveTensors save = SaveTensors::kNever;
  std::filesystem::path save_dir;
  std::string device = "cpu";  // what --device resolved to
  DeviceFacts device_facts;
  int num_threads = 0;  // 0 = all cores
  /// Opens the device when the first job needs it; empty = the CPU.
  std::function<std::unique_ptr<Ops>()> make_ops;
  /// Timing on the device of make_ops; empty = the CPU.
  std::function<std::unique_ptr<TimingTools>(Ops&)> make_timing_tools;
  /// Opens the device for screening, once a case; empty = the CPU. Whoever judges has memory and a
  /// stream of its own there, and perhaps a process.
  std::function<std::unique_ptr<RowScreen>()> make_screen;
  /// The seed of the rows that are checked; nothing = drawn once a case, after the first run.
  std::optional<std::uint64_t> sample_seed;
  SampleChecking sample_checks = SampleChecking::kAll;
  /// Measures the ceilings of the CPU where users' code never ran; null = the process of the jobs.
  std::shared_ptr<CeilingMeter> ceiling_meter;
  bool fingerprint = false;  // takes those of the kernels that passed (bench/studies)
  /// Which of several passes over all jobs this is: each takes its share of the samples.
  int pass = 0;
  int passes = 1;
  std::function<bool()> should_stop;  // Ctrl-C; may be empty
  /// Runs the jobs in a child process that is replaced when it crashes, hangs or meets an error.
  bool isolate = false;
  double hang_limit_s = 60;  // isolate: silence in a phase that runs the backend; 0 = no limit
  /// Where backends over real ranks find whom to tell that they wait for other ranks; may be null.
  std::shared_ptr<std::function<void(const std::string& what)>> rank_waits;
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

/// Whether another job should not run in the process that gave this result: a device may be broken
/// after an error, and a user's code that went wrong may have changed the process for others.
bool spoils_its_process(const Job& job, Status status);

/// The identity of a job's result: everything but status, reasons and figures.
Result describe_job(const Job& job, const BenchOptions& options);

/// Runs the jobs in order, or those of one problem in turns where timing.order is alternate; jobs
/// of one problem should stand together, because inputs and reference results are shared between
/// its backends. An Error or bad_alloc of a job becomes its status "error"; after should_stop the
/// remaining jobs are "skipped" with the reason "interrupted".
std::vector<Result> run_jobs(const std::vector<Job>& jobs, const BenchOptions& options,
                             BenchObserver& observer);

}  // namespace attnbench
