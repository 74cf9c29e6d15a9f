// Kernels of a run, compiled ahead by a process beside it: while the first case opens the device
// and draws its inputs, the kernels that it will launch are compiled on the cores that are free,
// and those of the cases behind it after them.
//
// The process only fills the disk cache. A case that needs a kernel finds it there, waits while it
// is being compiled, or compiles it (jit/kernel_claim.h): so nothing that this process does, or
// fails to do, is part of a verdict. It plans cases as `compile` does, without a device, and runs
// no user's code. It is stopped while samples are taken: their launch overhead is time of the host,
// and would otherwise depend on what the cache had. That is why it needs no lower priority, and has
// none: the run would wait for kernels while others have the cores.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/process/child_process.h"
#include "cli/cases/device.h"
#include "cli/cases/kernel_specs.h"
#include "jit/kernel_store.h"

namespace attnbench {

/// Kernels that a run compiles at a time: as --compile-jobs says, else what leaves two cores to the
/// run, at most 16 (each takes 100 MB) and no more than --threads, where that is not 0. 0 = none is
/// compiled ahead: where there is no core to spare, that would only take turns with the run.
int num_compile_jobs(std::optional<int> compile_jobs, int threads, int cores);

struct AheadPlan {
  /// In the order in which they will run. Their backends are asked for their plans, so they are
  /// those that were selected: none with a planted fault, none that speaks with other ranks.
  std::vector<Job> jobs;
  DeviceChoice device;
  int num_jobs = 0;  // kernels at a time
  bool validates = true;
  bool times = true;
};

/// Tells `found` of each kernel once, in the order in which they should be compiled. Why screening
/// comes first: it takes longest, every case needs it last, and a run with few cores compiles what
/// it needs first by itself. A case that cannot be planned has none. Stops early where `goes_on`
/// says so.
void plan_kernels(const AheadPlan& plan, const NewKernels::Take& found,
                  const std::function<bool()>& goes_on);

/// The process. It dies with this object, and with the process that has it.
class CompileAhead {
 public:
  using MakeStore = std::function<std::unique_ptr<KernelStore>()>;

  /// Forks: the calling process has no device, and no threads but those of for_each_index(), which
  /// sleep. `make_store` is called by the new one. Errors: E-INTERNAL when the system refuses.
  CompileAhead(const AheadPlan& plan, const MakeStore& make_store);
  ~CompileAhead();
  CompileAhead(const CompileAhead&) = delete;
  CompileAhead& operator=(const CompileAhead&) = delete;

  /// Between them nothing is compiled. Each may come several times.
  void pause();
  void resume();
  /// What came of it so far: "12 kernels were compiled ahead, up to 14 at a time". Where the
  /// process has failed, how it ended.
  std::string summary();
  pid_t pid() const { return child_.pid(); }

 private:
  struct Counts;
  std::unique_ptr<Counts, void (*)(Counts*)> counts_;  // shared with the process
  int num_jobs_;
  ChildProcess child_;
  bool is_paused_ = false;
};

/// Starts it for those of the plan's jobs that are in `left`; null where there is nothing to
/// compile ahead, or no process to do so.
std::unique_ptr<CompileAhead> start_ahead(const AheadPlan& plan, const std::vector<Job>& left,
                                          const std::string& cache_dir);

/// Repeats everything to another observer, and pauses during timing.
class PausingObserver final : public BenchObserver {
 public:
  PausingObserver(BenchObserver& next, CompileAhead* ahead) : next_(next), ahead_(ahead) {}
  void job_started(std::size_t index, std::size_t count, const Job& job) override;
  void job_resumed(std::size_t index, const Job& job) override { next_.job_resumed(index, job); }
  void phase(Phase phase) override;
  void notice(const std::string& text) override { next_.notice(text); }
  void waits_for(const std::string& kernels) override { next_.waits_for(kernels); }
  void job_finished(const Result& result) override;

 private:
  BenchObserver& next_;
  CompileAhead* ahead_;  // null = none
};

}  // namespace attnbench
