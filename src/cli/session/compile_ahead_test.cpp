#include "cli/session/compile_ahead.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "bench/loop/fake_backend.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/session/run_session.h"
#include "jit/fake_compiler_testing.h"
#include "jit/kernel_folder.h"
#include "jit/nvrtc_compiler.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

struct Scratch {
  fs::path root = fs::temp_directory_path() / ("attnbench-ahead-" + std::to_string(getpid()));
  Scratch() { fs::remove_all(root); }
  ~Scratch() { fs::remove_all(root); }
};

/// Prompts of 300 tokens, or decodes of 2,000 keys.
Problem problem_of(bool decodes) {
  Problem problem;
  problem.attention.num_heads = 4;
  problem.attention.num_kv_heads = 2;
  problem.attention.head_size = problem.attention.v_head_size = 64;
  problem.attention.scale = 0.1;
  problem.batch.assign(2, decodes ? Request{1, 2000} : Request{300, 300});
  problem.kv_cache.num_blocks = 256;
  return problem;
}

/// Prompts, then decodes, on a Hopper that is not there.
struct Run {
  Problem prompts = problem_of(false);
  Problem decodes = problem_of(true);
  AheadPlan plan;

  Run() {
    plan.device.name = "cuda:0";
    plan.device.facts = {90, 132, true};
    plan.num_jobs = 2;
    add(prompts, *find_backend("FLASH_ATTN"), "prompts");
    add(decodes, *find_backend("FLASH_ATTN"), "decodes");
  }
  void add(const Problem& problem, const Backend& backend, const std::string& id) {
    Job job;
    job.problem = &problem;
    job.backend = &backend;
    job.id = id;
    plan.jobs.push_back(job);
  }
  std::vector<KernelSpec> kernels() const {
    std::vector<KernelSpec> found;
    plan_kernels(
        plan, [&](const KernelSpec& spec) { found.push_back(spec); }, [] { return true; });
    return found;
  }
};

/// Where the first kernel of that function is.
std::ptrdiff_t place(const std::vector<KernelSpec>& kernels, const std::string& function) {
  const auto at = std::find_if(kernels.begin(), kernels.end(), [&](const KernelSpec& spec) {
    return spec.function == "attn::" + function;
  });
  return at == kernels.end() ? -1 : at - kernels.begin();
}

std::atomic<int> num_compilations{0};  // in this process

std::unique_ptr<KernelStore> fake_store(const fs::path& root,
                                        const std::function<void()>& on_compile = {}) {
  auto compiler = std::make_unique<FakeCompiler>(num_compilations);
  compiler->on_compile = on_compile;
  return std::make_unique<KernelStore>(std::move(compiler), DiskCache(root), kernel_files());
}

[[noreturn]] void sleep_for_ever() {
  for (;;) pause();
}

char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t end = text.rfind(") ");
  return end == std::string::npos ? '?' : text[end + 2];
}

/// What is not so in the end, a test that hangs.
template <typename Condition>
void wait_until(const Condition& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

/// A child, with all of its threads. Its status is left to whoever has it.
bool has_ended(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid;
}
bool is_stopped(pid_t pid) { return state_of(pid) == 'T'; }

class Silent final : public BenchObserver {
 public:
  void job_started(std::size_t, std::size_t, const Job&) override { ++events; }
  void phase(Phase) override { ++events; }
  void job_finished(const Result&) override { ++events; }
  int events = 0;
};

}  // namespace

TEST_CASE("a run leaves itself two cores, and takes no more than it was given") {
  CHECK(num_compile_jobs({}, 0, 16) == 14);
  CHECK(num_compile_jobs({}, 0, 192) == 16);
  CHECK(num_compile_jobs({}, 0, 3) == 1);
  CHECK(num_compile_jobs({}, 0, 2) == 0);
  CHECK(num_compile_jobs({}, 4, 1) == 0);
  CHECK(num_compile_jobs({}, 4, 16) == 4);
  CHECK(num_compile_jobs(0, 4, 16) == 0);
  CHECK(num_compile_jobs(40, 4, 16) == 40);
}

TEST_CASE("kernels are planned in the order of the cases, screening first, each once") {
  const Run run;
  const std::vector<KernelSpec> kernels = run.kernels();
  CHECK(place(kernels, "screen_value_squares") == 0);
  for (const char* of_runs : {"scan_zones", "read_clocks", "digest_sample", "read_memory"}) {
    CAPTURE(of_runs);
    CHECK(place(kernels, of_runs) > place(kernels, "screen_merge"));
    CHECK(place(kernels, of_runs) < place(kernels, "write_cache"));
  }
  CHECK(place(kernels, "write_cache") < place(kernels, "hopper_prefill"));
  CHECK(place(kernels, "hopper_prefill") < place(kernels, "decode_cluster"));
  for (const KernelSpec& spec : kernels)
    CHECK(std::count(kernels.begin(), kernels.end(), spec) == 1);
  // Those of the first request's tiles come first.
  CHECK(kernels.at(1).name == "screen attention 64x64 bfloat16");
}

TEST_CASE("a run without validation or times needs less, and no kernel of its own") {
  Run run;
  run.plan.validates = false;
  CHECK(place(run.kernels(), "screen_attention") == -1);
  CHECK(place(run.kernels(), "read_clocks") >= 0);
  run.plan.validates = true;
  run.plan.times = false;
  CHECK(place(run.kernels(), "screen_attention") == 0 + 1);
  CHECK(place(run.kernels(), "read_clocks") == -1);
  CHECK(place(run.kernels(), "scan_zones") >= 0);
}

TEST_CASE("what cannot run, or not be planned, is passed over") {
  Run run;
  Problem odd = problem_of(false);
  odd.attention.head_size = odd.attention.v_head_size = 0;  // no plan comes of it
  run.plan.jobs.front().problem = &odd;
  CHECK(place(run.kernels(), "hopper_prefill") == -1);
  CHECK(place(run.kernels(), "decode_cluster") >= 0);
  run.plan.jobs.back().extra_refusals = {"no"};
  CHECK(place(run.kernels(), "decode_cluster") == -1);
}

TEST_CASE("of a user's backend nothing is asked, and screening is compiled") {
  Run run;
  FakeBackend users;
  users.library = PluginInfo{};
  users.reasons = {"its code was asked"};
  run.plan.jobs.resize(1);
  run.plan.jobs.front().backend = &users;
  const std::vector<KernelSpec> kernels = run.kernels();
  CHECK(place(kernels, "screen_attention") >= 0);
  CHECK(place(kernels, "write_cache") == -1);
  CHECK(users.prepared == 0);
}

TEST_CASE("planning ends where nothing can be kept") {
  const Run run;
  int asked = 0;
  std::vector<KernelSpec> found;
  plan_kernels(
      run.plan, [&](const KernelSpec& spec) { found.push_back(spec); },
      [&] { return ++asked == 1; });
  CHECK(place(found, "hopper_prefill") >= 0);
  CHECK(place(found, "decode_cluster") == -1);
}

TEST_CASE("the process leaves every kernel of the run in the cache") {
  const Scratch scratch;
  const Run run;
  {
    CompileAhead ahead(run.plan, [&] { return fake_store(scratch.root); });
    wait_until([&] { return has_ended(ahead.pid()); });
    const std::string count = std::to_string(run.kernels().size());
    CHECK(ahead.summary() == count + " kernels were compiled ahead, up to 2 at a time");
    // What comes after its end does nothing.
    ahead.pause();
    ahead.resume();
  }
  num_compilations = 0;
  const std::unique_ptr<KernelStore> store = fake_store(scratch.root);
  for (const KernelSpec& spec : run.kernels()) store->get(spec, "sm_90a");
  CHECK(num_compilations == 0);
}

TEST_CASE("a run needs no device for it, and its real kernels come of it") {
  if (!find_nvrtc().compiler) {
    MESSAGE("NVRTC not found");
    return;
  }
  const Scratch scratch;
  Run run;
  run.plan.jobs.resize(1);
  run.plan.validates = run.plan.times = false;
  {
    CompileAhead ahead(run.plan, [&] { return make_kernel_store(scratch.root); });
    wait_until([&] { return has_ended(ahead.pid()); });
  }
  const std::unique_ptr<KernelStore> store = make_kernel_store(scratch.root);
  for (const KernelSpec& spec : run.kernels()) {
    CAPTURE(spec.name);
    CHECK_FALSE(store->get(spec, "sm_90a").was_compiled);
  }
}

TEST_CASE("a kernel that does not compile costs the others nothing") {
  const Scratch scratch;
  const Run run;
  {
    CompileAhead ahead(run.plan, [&] {
      return fake_store(scratch.root, [calls = std::make_shared<std::atomic<int>>(0)] {
        if (++*calls == 3) fail(ErrorKind::kCuda, "does not compile");
      });
    });
    wait_until([&] { return has_ended(ahead.pid()); });
    CHECK(ahead.summary().find(std::to_string(run.kernels().size() - 1) + " kernels") == 0);
  }
  num_compilations = 0;
  const std::unique_ptr<KernelStore> store = fake_store(scratch.root);
  for (const KernelSpec& spec : run.kernels()) store->get(spec, "sm_90a");
  CHECK(num_compilations == 1);
}

TEST_CASE("a compiler that crashes takes its process along and nothing else") {
  const Scratch scratch;
  const Run run;
  CompileAhead ahead(run.plan, [&] { return fake_store(scratch.root, [] { raise(SIGKILL); }); });
  wait_until([&] { return has_ended(ahead.pid()); });
  CHECK(ahead.summary() ==
        "0 kernels were compiled ahead, up to 2 at a time; the process that did so ended: signal 9 "
        "(Killed)");
  // The kernel that it was at is compiled where it is needed.
  const std::unique_ptr<KernelStore> store = fake_store(scratch.root);
  CHECK(store->get(run.kernels().front(), "sm_90a").was_compiled);
}

TEST_CASE("without a folder to keep kernels in the process ends and compiles nothing") {
  const Scratch scratch;
  const Run run;
  std::ofstream(scratch.root) << "a file where the folder should be";
  CompileAhead ahead(run.plan, [&] { return fake_store(scratch.root); });
  wait_until([&] { return has_ended(ahead.pid()); });
  CHECK(ahead.summary() == "0 kernels were compiled ahead, up to 2 at a time");
}

TEST_CASE("nothing is compiled while samples are taken") {
  const Scratch scratch;
  const Run run;
  CompileAhead ahead(run.plan, [&] { return fake_store(scratch.root, sleep_for_ever); });
  Silent next;
  PausingObserver observer(next, &ahead);
  const auto goes_on = [&] { return !is_stopped(ahead.pid()); };
  const Job& job = run.plan.jobs.front();
  observer.job_started(0, 1, job);
  for (const Phase phase : {Phase::kInputs, Phase::kRun, Phase::kReference}) observer.phase(phase);
  CHECK(goes_on());
  observer.phase(Phase::kTiming);
  wait_until([&] { return is_stopped(ahead.pid()); });
  SUBCASE("the job ends") { observer.job_finished({}); }
  SUBCASE("its process was lost, and the next job starts") { observer.job_started(1, 2, job); }
  SUBCASE("jobs that take turns are timed, and checked afterwards") {
    observer.phase(Phase::kTiming);
    observer.job_resumed(0, job);
    CHECK(is_stopped(ahead.pid()));
    observer.phase(Phase::kReference);
  }
  wait_until(goes_on);
  CHECK(next.events > 5);
}

TEST_CASE("an observer without the process passes everything on") {
  Silent next;
  PausingObserver observer(next, nullptr);
  const Run run;
  observer.job_started(0, 1, run.plan.jobs.front());
  observer.phase(Phase::kTiming);
  observer.job_finished({});
  CHECK(next.events == 3);
}

namespace {

/// Forks a process that has a CompileAhead which never ends, kills it, and waits for the end of
/// what it left.
void check_no_orphan(bool paused) {
  const Scratch scratch;
  const Run run;
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t owner = fork();
  if (owner == 0) {
    CompileAhead ahead(run.plan, [&] { return fake_store(scratch.root, sleep_for_ever); });
    wait_until([&] { return fs::exists(scratch.root) && !fs::is_empty(scratch.root); });
    if (paused) {
      ahead.pause();
      wait_until([&] { return is_stopped(ahead.pid()); });
    }
    const pid_t pid = ahead.pid();
    if (write(ends[1], &pid, sizeof pid) != sizeof pid) _exit(1);
    sleep_for_ever();
  }
  close(ends[1]);
  pid_t helper = 0;
  REQUIRE(read(ends[0], &helper, sizeof helper) == sizeof helper);
  close(ends[0]);
  ::kill(owner, SIGKILL);
  waitpid(owner, nullptr, 0);
  int status = 0;
  CHECK(waitpid(helper, &status, 0) == helper);
  CHECK(WIFSIGNALED(status));
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace

TEST_CASE("the process is gone when the run is killed, stopped or not") {
  check_no_orphan(/*paused=*/false);
  check_no_orphan(/*paused=*/true);
}

TEST_CASE("the process ends with the run") {
  const Scratch scratch;
  const Run run;
  pid_t pid = 0;
  {
    CompileAhead ahead(run.plan, [&] { return fake_store(scratch.root, sleep_for_ever); });
    pid = ahead.pid();
  }
  CHECK(::kill(pid, 0) != 0);
}

TEST_CASE("a run has it, and says with -v what came of it") {
  if (!find_nvrtc().compiler) {
    MESSAGE("NVRTC not found");
    return;
  }
  const Scratch scratch;
  Run run;
  run.plan.jobs.resize(1);
  RunArguments arguments;
  arguments.options.cache_dir = scratch.root;
  // Where the cases run is another matter.
  BenchOptions bench;
  bench.timing = false;
  SUBCASE("in this process") {}
  SUBCASE("in a child") { bench.isolate = true; }
  for (const bool verbose : {true, false}) {
    arguments.options.console.verbose = verbose;
    std::ostringstream out, err;
    const Console console{out, err, false, false, {"attnbench", "run"}};
    const OutputPlan plan = plan_outputs({});
    CHECK(run_session(arguments, {}, plan, describe_run(console.command), console, run.plan.jobs,
                      bench, run.plan) == kExitPassed);
    const bool says = err.str().find("compiled ahead, up to 2 at a time") != std::string::npos;
    CHECK(says == verbose);
  }
}

namespace {

/// Whether a process that this one started has been stopped.
bool has_stopped_child() {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text);
    const std::size_t end = text.rfind(") ");
    if (end == std::string::npos) continue;
    std::istringstream fields(text.substr(end + 2));
    char state = 0;
    pid_t parent = 0;
    if (fields >> state >> parent && parent == getpid() && state == 'T') return true;
  }
  return false;
}

}  // namespace

TEST_CASE("the process of a run is stopped while the run takes samples, and at no other time") {
  if (!find_nvrtc().compiler) {
    MESSAGE("NVRTC not found");
    return;
  }
  const Scratch scratch;
  Run run;
  // Kernels for longer than the run takes.
  for (Job& job : run.plan.jobs) job.id = "job";
  const Problem problem = small_problem();
  FakeBackend backend;
  int stopped_before = 0, stopped_in_samples = 0;
  constexpr int kChecked = 2;  // runs before the first sample
  backend.fault = [&](PipelineOutput&, int number) {
    (number < kChecked ? stopped_before : stopped_in_samples) += has_stopped_child() ? 1 : 0;
  };
  Job job = run.plan.jobs.front();
  job.problem = &problem;
  job.backend = &backend;
  RunArguments arguments;
  arguments.options.cache_dir = scratch.root;
  arguments.options.console.quiet = true;
  std::ostringstream out, err;
  const Console console{out, err, false, false, {"attnbench", "run"}};
  const OutputPlan outputs = plan_outputs({});
  run_session(arguments, {}, outputs, describe_run(console.command), console, {job}, {}, run.plan);
  CHECK(backend.runs > kChecked);
  CHECK(stopped_before == 0);
  CHECK(stopped_in_samples > 0);
}

TEST_CASE("it is started for the jobs that are left, on a CUDA device that can be used") {
  const Scratch scratch;
  Run run;
  const std::string root = scratch.root;
  CHECK(start_ahead(run.plan, {}, root) == nullptr);
  const std::vector<Job> all = run.plan.jobs;
  run.plan.num_jobs = 0;
  CHECK(start_ahead(run.plan, all, root) == nullptr);
  run.plan.num_jobs = 1;
  run.plan.device.refusals = {"NVRTC not found"};
  CHECK(start_ahead(run.plan, all, root) == nullptr);
  run.plan.device.refusals.clear();
  run.plan.device.name = "cpu";
  CHECK(start_ahead(run.plan, all, root) == nullptr);
  run.plan.device.name = "cuda:0";
  CHECK(start_ahead(run.plan, all, root) != nullptr);
}
}  // namespace attnbench
