#include "cli/session/compile_ahead.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <new>
#include <set>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/system/work_queue.h"

namespace attnbench {
namespace {

constexpr int kMostJobs = 16;

/// What the device is asked to do for one job, as far as it can be planned.
void plan_job(const AheadPlan& plan, const Job& job, NewKernels& kernels) {
  const Problem& problem = *job.problem;
  const bool is_users = job.backend->is_users();
  if (!job.extra_refusals.empty()) return;
  if (!is_users && !job.backend->refusals(problem, plan.device.facts).empty()) return;
  if (plan.validates) kernels.add(specs_of_screening(problem));
  kernels.add(specs_of_runs(plan.times));
  if (is_users) return;
  const cuda::Target target = target_of(plan.device);
  kernels.add(specs_of_pair(problem, *job.backend, target));
  if (plan.validates) kernels.add(specs_of_request_alone(problem, *job.backend, target));
}

}  // namespace

struct CompileAhead::Counts {
  std::atomic<int> compiled{0};
};
static_assert(std::atomic<int>::is_always_lock_free, "two processes share it");

namespace {

template <typename Counts>
Counts* shared_counts() {
  void* const memory =
      mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail(ErrorKind::kInternal, "no memory to share with a process");
  return new (memory) Counts;
}

/// All that the process does. Whatever goes wrong with a kernel goes wrong again where it is
/// needed, and is told there.
void fill_cache(const AheadPlan& plan, const CompileAhead::MakeStore& make_store,
                std::atomic<int>& compiled) {
  // Those of the run count what they get.
  for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
  try {
    const std::unique_ptr<KernelStore> store = make_store();
    const std::string arch = arch_of_sm(plan.device.facts.sm);
    std::atomic<bool> is_kept{true};
    const auto compile = [&](const KernelSpec& spec) {
      if (!is_kept) return;
      try {
        const CompiledAhead outcome = store->compile_ahead(spec, arch);
        if (outcome == CompiledAhead::kNotKept) is_kept = false;
        if (outcome == CompiledAhead::kCompiled) ++compiled;
      } catch (const std::exception&) {
      }
    };
    WorkQueue queue(plan.num_jobs);
    plan_kernels(
        plan, [&](const KernelSpec& spec) { queue.add([&compile, spec] { compile(spec); }); },
        [&] { return is_kept.load(); });
    queue.finish();
  } catch (const std::exception&) {
  }
}

}  // namespace

int num_compile_jobs(std::optional<int> compile_jobs, int threads, int cores) {
  if (compile_jobs) return *compile_jobs;
  const int free = std::clamp(cores - 2, 0, kMostJobs);
  return threads > 0 ? std::min(threads, free) : free;
}

void plan_kernels(const AheadPlan& plan, const NewKernels::Take& found,
                  const std::function<bool()>& goes_on) {
  NewKernels kernels(found);
  for (const Job& job : plan.jobs) {
    if (!goes_on()) return;
    try {
      plan_job(plan, job, kernels);
    } catch (const std::exception&) {
      // It ends the same way when the case runs, which says so.
    }
  }
}

CompileAhead::CompileAhead(const AheadPlan& plan, const MakeStore& make_store)
    : counts_(shared_counts<Counts>(), [](Counts* counts) { munmap(counts, sizeof(Counts)); }),
      num_jobs_(plan.num_jobs),
      child_([&](ParentLink&) { fill_cache(plan, make_store, counts_->compiled); }) {}

CompileAhead::~CompileAhead() = default;

void CompileAhead::pause() {
  if (!is_paused_) child_.signal(SIGSTOP);
  is_paused_ = true;
}

void CompileAhead::resume() {
  if (is_paused_) child_.signal(SIGCONT);
  is_paused_ = false;
}

std::string CompileAhead::summary() {
  const int compiled = counts_->compiled;
  std::string text = fmt::format("{} kernel{} compiled ahead, up to {} at a time", compiled,
                                 compiled == 1 ? " was" : "s were", num_jobs_);
  Message ignored;
  auto read = ChildProcess::Read::kMessage;
  while (read == ChildProcess::Read::kMessage) read = child_.read(ignored, 0);
  if (read != ChildProcess::Read::kEnded) return text;
  const std::string how = child_.how_it_ended();
  return how.empty() ? text : text + "; the process that did so ended: " + how;
}

std::unique_ptr<CompileAhead> start_ahead(const AheadPlan& plan, const std::vector<Job>& left,
                                          const std::string& cache_dir) {
  if (plan.num_jobs == 0 || !plan.device.is_cuda() || !plan.device.refusals.empty()) return nullptr;
  std::set<std::string_view> ids;
  for (const Job& job : left) ids.insert(job.id);
  AheadPlan own = plan;
  std::erase_if(own.jobs, [&](const Job& job) { return !ids.contains(job.id); });
  if (own.jobs.empty()) return nullptr;
  try {
    return std::make_unique<CompileAhead>(own, [&] { return make_kernel_store(cache_dir); });
  } catch (const Error&) {
    return nullptr;
  }
}

void PausingObserver::job_started(std::size_t index, std::size_t count, const Job& job) {
  if (ahead_ != nullptr) ahead_->resume();
  next_.job_started(index, count, job);
}

void PausingObserver::phase(Phase phase) {
  if (ahead_ != nullptr && phase == Phase::kTiming) ahead_->pause();
  if (ahead_ != nullptr && phase != Phase::kTiming) ahead_->resume();
  next_.phase(phase);
}

void PausingObserver::job_finished(const Result& result) {
  if (ahead_ != nullptr) ahead_->resume();
  next_.job_finished(result);
}

}  // namespace attnbench
