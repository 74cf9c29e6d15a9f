// One process drives all ranks of a group: verdicts, errors and lost processes.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "bench/loop/planted_fault.h"
#include "bench/ranks/rank_communicators.h"
#include "bench/ranks/ranked_backend.h"
#include "bench/ranks/thread_group.h"
#include "core/error.h"
#include "core/system/clock.h"
#include "gpu/nccl.h"
#include "ops/forwarding_ops.h"
#include "scenario/scenario.h"

namespace attnbench {
namespace {

/// Whether the rank of this thread is between the begin of a sample and its times, where it may not
/// wait for its device: the stream of rank 0 is held until all has been queued.
thread_local bool is_in_sample = false;

/// A device of its own for every rank, which the CPU plays.
class PlayedGpu final : public ForwardingOps {
 public:
  explicit PlayedGpu(int index, std::unique_ptr<Ops> cpu = make_cpu_ops(1))
      : ForwardingOps(*cpu), cpu_(std::move(cpu)), index_(index) {}
  std::string device_name() const override { return fmt::format("cuda:{}", index_); }
  void synchronize() override {
    if (is_in_sample) fail(ErrorKind::kInternal, "cuda:{} waits while a sample is queued", index_);
    ForwardingOps::synchronize();
  }

 private:
  std::unique_ptr<Ops> cpu_;
  int index_;
};

/// Marks by the clock, a rank of which claims that each part took `extra_us` longer.
class PlayedRecorder final : public RankRecorder {
 public:
  /// `flushed`: what its caches were asked to become.
  PlayedRecorder(double extra_us, std::set<L2Mode>& flushed)
      : extra_us_(extra_us), flushed_(flushed) {}
  void flush(L2Mode mode) override { flushed_.insert(mode); }
  void mark(std::size_t number) override {
    is_in_sample = true;
    marks_.resize(number + 1);
    marks_.back() = steady_clock().now_s();
  }
  std::vector<double> times_us(std::size_t last) override {
    is_in_sample = false;
    std::vector<double> times;
    for (std::size_t i = 0; i < last; ++i) {
      times.push_back((marks_.at(i + 1) - marks_.at(i)) * 1e6 + extra_us_);
    }
    return times;
  }
  void begin_capture() override {}
  void end_capture() override {}
  void launch(std::size_t) override {}

 private:
  double extra_us_;
  std::set<L2Mode>& flushed_;
  std::vector<double> marks_;
};

/// An environment variable while it lives.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Setting() { unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

/// The only case of a scenario, over NCCL.
Problem problem_of(const std::string& text, int world_size, DcpComm comm) {
  const std::string ranks = fmt::format("dcp: {{world_size: {}, comm: {}, transport: nccl}}\n",
                                        world_size, to_string(comm));
  const std::vector<Problem> cases =
      parse_scenario("schema: 1\nname: suite\n" + ranks + text, "suite.yaml").cases;
  REQUIRE(cases.size() == 1);
  return cases.front();
}

/// `more`: further lines.
Problem attention_problem(int world_size, DcpComm comm = DcpComm::kAgRs,
                          const std::string& more = "") {
  return problem_of(
      more +
          "attention: {num_heads: 12, num_kv_heads: 2, head_size: 32, dtype: bfloat16}\n"
          "batch: q1s200_q1s33_q5s70_q20\n",
      world_size, comm);
}

/// Decodes, and prefills whose context is gathered in several chunks.
Problem mla_problem(int world_size) {
  return problem_of(
      "attention: {type: mla, num_heads: 8, dtype: bfloat16}\n"
      "mla: {kv_lora_rank: 64, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 32,\n"
      "      workspace_tokens: 512}\n"
      "kv_cache: {block_size: 64}\n"
      "batch: q1s70_2q9s700\n",
      world_size, DcpComm::kAgRs);
}

class Silent final : public BenchObserver {
 public:
  void job_started(std::size_t, std::size_t, const Job&) override {}
  void phase(Phase) override {}
  void job_finished(const Result&) override {}
};

/// Jobs whose ranks are threads.
struct Threads {
  BenchOptions options;
  std::vector<std::unique_ptr<FaultyBackend>> faulty;
  std::vector<std::unique_ptr<RankedBackend>> backends;
  std::vector<Job> jobs;
  /// Makes that of each rank; empty = none, as on the CPU.
  std::function<std::unique_ptr<RankRecorder>(int rank)> make_recorder;

  Threads() {
    options.timing = false;
    options.num_threads = 1;
    options.device_facts.nccl = {"", 8};
    options.make_ops = [] { return std::make_unique<PlayedGpu>(0); };
  }

  /// The rank with the fault; every other has the same pipeline without it.
  struct Fault {
    int rank = -1;
    cuda::Fault kind = cuda::Fault::kExit;
    std::string phase = "";
  };

  const Backend& planted(const Backend& backend, const Fault& fault, bool is_here) {
    if (fault.rank < 0) return backend;
    faulty.push_back(
        std::make_unique<FaultyBackend>(backend, fault.kind, FaultPlace{fault.phase, is_here}));
    return *faulty.back();
  }

  void add(const Problem& problem, const std::string& name) { add(problem, name, Fault()); }

  /// `instead`: what the other ranks do.
  void add(const Problem& problem, const std::string& name, const Fault& fault,
           const RankWork& instead = {}) {
    const Backend& backend = *find_backend(name);
    const Backend& first = planted(backend, fault, fault.rank == 0);
    std::map<int, const Backend*> others;
    for (int rank = 1; rank < problem.dcp.world_size; ++rank) {
      others[rank] = &planted(backend, fault, fault.rank == rank);
    }
    const auto recorder_of = [make = make_recorder](int rank) {
      return [make, rank](Ops&) { return make ? make(rank) : nullptr; };
    };
    const RankWork work = [others, recorder_of](RankChannel& channel) {
      PlayedGpu ops(channel.rank());
      serve_rank(channel, *others.at(channel.rank()), ops, recorder_of(channel.rank()));
    };
    const ConnectRanks connect = [](RankChannel& channel, Ops& ops) {
      return make_nccl_communicator(channel, ops, {ATTNBENCH_STUB_NCCL});
    };
    const RankWork& used = instead ? instead : work;
    backends.push_back(std::make_unique<RankedBackend>(
        first, [=](int size) { return open_thread_group(size, used, connect); }, 30,
        recorder_of(0)));
    jobs.push_back({&problem, backends.back().get(), fmt::format("job {}", jobs.size()), "x", {}});
  }

  std::vector<Result> run() {
    Silent observer;
    return run_jobs(jobs, options, observer);
  }
};

std::string reason_of(const Result& result) {
  return result.reasons.empty() ? "" : result.reasons.front();
}

/// By one process with simulated ranks.
Result simulated(Problem problem, const std::string& name) {
  problem.dcp.transport = DcpTransport::kSimulated;
  BenchOptions options;
  options.timing = false;
  options.num_threads = 1;
  Silent observer;
  return run_jobs({{&problem, find_backend(name), "job 0", "x", {}}}, options, observer).front();
}

void expect_as_simulated(Problem problem, const std::string& name) {
  CAPTURE(problem.dcp.world_size);
  CAPTURE(to_string(problem.dcp.comm));
  Threads threads;
  threads.add(problem, name);
  const Result real = threads.run().front();
  INFO(reason_of(real));
  REQUIRE(real.status == Status::kPassed);
  const Result other = simulated(problem, name);
  REQUIRE(other.status == Status::kPassed);
  // The stub adds in the order of the ranks, as simulated ranks do.
  CHECK(real.error->max_abs == other.error->max_abs);
  CHECK(real.error->row_error == other.error->row_error);
  CHECK(real.lse_error->max_abs == other.lse_error->max_abs);
  CHECK(real.rank_errors.size() == static_cast<std::size_t>(problem.dcp.world_size));
  for (std::size_t r = 0; r < real.rank_errors.size(); ++r) {
    CHECK(real.rank_errors[r].error.max_abs == other.rank_errors[r].error.max_abs);
  }
}

}  // namespace

TEST_CASE("ranks that are threads give what simulated ranks give, by every exchange") {
  for (const DcpComm comm : {DcpComm::kAgRs, DcpComm::kAgAr, DcpComm::kA2a}) {
    for (const int world_size : {2, 3, 4}) {
      expect_as_simulated(attention_problem(world_size, comm), "FLASH_ATTN");
    }
  }
}

TEST_CASE("fp8 caches and windows over threads are those of simulated ranks") {
  Problem problem =
      attention_problem(2, DcpComm::kA2a, "kv_cache: {dtype: fp8, k_scale: 0.5, v_scale: 0.25}\n");
  expect_as_simulated(problem, "FLASH_ATTN");
  problem.attention.sliding_window = 50;
  expect_as_simulated(problem, "FLASH_ATTN");
}

TEST_CASE("MLA's decodes and gathered prefills over threads are those of simulated ranks") {
  for (const int world_size : {2, 4}) expect_as_simulated(mla_problem(world_size), "MLA");
}

TEST_CASE("exchanges go through NCCL") {
  const std::string path = fmt::format("/tmp/attnbench-moved-{}", getpid());
  std::remove(path.c_str());
  {
    const Setting moved("STUB_NCCL_MOVED", path);
    Threads threads;
    Problem problem = attention_problem(2, DcpComm::kA2a);
    threads.add(problem, "FLASH_ATTN");
    CHECK(threads.run().front().status == Status::kPassed);
  }
  std::string text;
  if (std::FILE* file = std::fopen(path.c_str(), "r")) {
    char line[200];
    while (std::fgets(line, sizeof line, file) != nullptr) text += line;
    std::fclose(file);
  }
  std::remove(path.c_str());
  CHECK(text.find("all_gather ") != std::string::npos);
  CHECK(text.find("all_to_all ") != std::string::npos);
}

TEST_CASE("samples have the times of the slowest rank, and messages their bytes") {
  const Problem problem = attention_problem(2);
  Threads threads;
  threads.options.timing = true;
  constexpr double kExtraUs = 1e6;
  std::array<std::set<L2Mode>, 2> flushed;
  threads.make_recorder = [&flushed](int rank) {
    return std::make_unique<PlayedRecorder>(rank == 1 ? kExtraUs : 0,
                                            flushed.at(static_cast<std::size_t>(rank)));
  };
  Problem timed = problem;
  timed.timing.samples = 2;
  timed.timing.l2 = L2Mode::kClean;
  threads.add(timed, "FLASH_ATTN");
  const Result result = threads.run().front();
  INFO(reason_of(result));
  REQUIRE(result.timing);
  // Rank 0 flushes by itself, the other as the case says.
  CHECK(flushed[0].empty());
  CHECK(flushed[1] == std::set<L2Mode>{L2Mode::kClean});
  // write_cache and what follows it count apart from the attention, as in every timing.
  CHECK(result.timing->median_us >= kExtraUs);
  CHECK(result.timing->total_us > result.timing->median_us);
  std::map<std::string, double> bytes;
  for (const StepTiming& step : result.timing->steps) {
    CHECK(step.median_us >= kExtraUs);
    bytes[step.name] = step.bytes;
  }
  // 27 tokens, 6 heads of 32 of the other rank.
  CHECK(bytes.at("all_gather_query") == 27 * 6 * 32 * 2);
  CHECK(bytes.at("all_gather_lse") == 27 * 12 * 4);
  CHECK(bytes.at("reduce_scatter") == 27 * 6 * 32 * 4);
}

TEST_CASE("a rank that cannot join NCCL ends the case on all ranks, whichever it is") {
  for (const int rank : {0, 1, 2}) {
    CAPTURE(rank);
    const Setting setting("STUB_NCCL_NO_RANK", std::to_string(rank));
    Problem problem = attention_problem(3);
    Threads threads;
    threads.add(problem, "FLASH_ATTN");
    const Result result = threads.run().front();
    CHECK(result.status == Status::kError);
    const std::string reason = reason_of(result);
    CHECK(reason.find("ncclCommInitRank: unhandled system error") != std::string::npos);
    if (rank > 0) {
      CHECK(reason.find(fmt::format("rank {}: ", rank)) != std::string::npos);
      CHECK(reason.find("(phase 'join NCCL')") != std::string::npos);
    }
  }
}

TEST_CASE("a rank without its device says so to the others") {
  Problem problem = attention_problem(2);
  Threads threads;
  threads.add(problem, "FLASH_ATTN", Threads::Fault(),
              [](RankChannel&) { fail(ErrorKind::kCuda, "no CUDA device 1"); });
  const Result result = threads.run().front();
  CHECK(result.status == Status::kError);
  CHECK(reason_of(result).find("rank 1: E-CUDA: no CUDA device 1") != std::string::npos);
}

TEST_CASE("an error of a rank ends its case, and the next one runs") {
  Problem problem = attention_problem(2);
  Threads threads;
  threads.add(problem, "FLASH_ATTN", {1, cuda::Fault::kOverrun, "nap"});
  threads.add(problem, "FLASH_ATTN");
  const std::vector<Result> results = threads.run();
  CHECK(results[0].status == Status::kError);
  CHECK(reason_of(results[0]).find("no phase 'nap'") != std::string::npos);
  CHECK(results[1].status == Status::kPassed);
}

TEST_CASE("a rank that exits, crashes or hangs costs its case alone and is named") {
  struct Row {
    cuda::Fault fault;
    std::string phase;
    std::string says;
  };
  for (const Row& row : {Row{cuda::Fault::kExit, "reduce_scatter", "exit status 3"},
                         Row{cuda::Fault::kCrash, "attend_context", "signal 11"},
                         Row{cuda::Fault::kHang, "merge", "no progress for 2 s"}}) {
    CAPTURE(row.phase);
    Problem problem = attention_problem(2);
    Threads threads;
    threads.options.isolate = true;
    threads.options.hang_limit_s = 2;
    threads.add(problem, "FLASH_ATTN", {1, row.fault, row.phase});
    threads.add(problem, "FLASH_ATTN");
    const std::vector<Result> results = threads.run();
    const std::string reason = reason_of(results[0]);
    CAPTURE(reason);
    CHECK(results[0].status == Status::kError);
    CHECK(reason.find(row.says) != std::string::npos);
    // A rank that exits may leave before the first one has come to wait for it.
    const bool is_named = reason.find("rank 1: ") != std::string::npos ||
                          reason.find("rank 0 or 1: ") != std::string::npos;
    CHECK(is_named);
    if (row.fault != cuda::Fault::kExit) {
      CHECK(reason.find("rank 1: ") != std::string::npos);
      CHECK(reason.find(fmt::format("phase '{}'", row.phase)) != std::string::npos);
    }
    CHECK(results[1].status == Status::kPassed);
  }
}

TEST_CASE("asking whether NCCL is there does not keep it in the process") {
  // A copy of its own: the loader knows files that are open already.
  const std::string copy =
      std::filesystem::temp_directory_path() / fmt::format("attnbench-nccl-{}.so", getpid());
  std::filesystem::copy_file(ATTNBENCH_STUB_NCCL, copy,
                             std::filesystem::copy_options::overwrite_existing);
  const auto is_loaded = [&] {
    void* const handle = dlopen(copy.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (handle != nullptr) dlclose(handle);
    return handle != nullptr;
  };
  CHECK(NcclLibrary::missing_on_this_machine({"libnothing.so", copy}).empty());
  CHECK_FALSE(is_loaded());
  CHECK(NcclLibrary({copy}).missing().empty());
  CHECK(is_loaded());
  std::filesystem::remove(copy);
  for (const char* const other : {"libnothing.so", "libm.so.6"}) {  // none, and one that is no NCCL
    const std::string missing = NcclLibrary::missing_on_this_machine({other});
    CHECK(missing == NcclLibrary({other}).missing());
    CHECK_FALSE(missing.empty());
  }
}

}  // namespace attnbench
