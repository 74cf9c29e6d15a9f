#include "bench/loop/alternation.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/loop/fake_backend.h"
#include "core/error.h"

namespace attnbench {
namespace {

Problem small_problem_in_turns() {
  Problem problem = small_problem();
  problem.timing.samples = 7;
  problem.timing.timeout_s = 60;
  problem.timing.order = TimingOrder::kAlternate;
  return problem;
}

class Recorder final : public BenchObserver {
 public:
  void job_started(std::size_t index, std::size_t, const Job&) override { started += name(index); }
  void job_resumed(std::size_t index, const Job&) override { resumed += name(index); }
  void phase(Phase) override {}
  void job_finished(const Result& result) override { finished += result.id; }
  void notice(const std::string& text) override { notices.push_back(text); }
  std::string started, resumed, finished;
  std::vector<std::string> notices;

 private:
  static char name(std::size_t index) { return static_cast<char>('A' + index); }
};

/// Three backends on one case that take turns; `calls` has a letter for every run, without repeats.
struct Peers {
  Problem problem = small_problem_in_turns();
  FakeBackend backends[3];
  BenchOptions options;
  Recorder recorder;
  std::string calls;
  std::vector<Result> results;

  Peers() {
    const char* names[] = {"FLASH_ATTN", "TRITON_ATTN", "CUDNN"};
    for (std::size_t i = 0; i < 3; ++i) {
      backends[i].backend_name = names[i];
      backends[i].fault = [this, i](PipelineOutput&, int) { called(static_cast<char>('A' + i)); };
    }
    options.num_threads = 1;
  }
  void called(char letter) {
    if (calls.empty() || calls.back() != letter) calls += letter;
  }
  std::vector<Job> jobs() const {
    std::vector<Job> list;
    for (std::size_t i = 0; i < 3; ++i) {
      list.push_back({&problem, &backends[i], std::string(1, static_cast<char>('A' + i)), "", {}});
    }
    return list;
  }
  void run() { results = run_jobs(jobs(), options, recorder); }

  void check_passed(std::size_t index, const std::vector<std::int64_t>& rounds,
                    const std::vector<std::string>& peers) {
    const Result& result = results.at(index);
    INFO(result.id << ": " << (result.reasons.empty() ? "" : result.reasons[0]));
    CHECK(result.status == Status::kPassed);
    REQUIRE(result.timing);
    CHECK(result.timing->samples_us.size() == 7);
    CHECK(result.timing->rounds == rounds);
    CHECK(result.timing->peers == peers);
    CHECK(result.timing->steps.size() == 2);
    CHECK(result.throughput);
  }
  /// The one in the middle is lost; the others took turns without it.
  void check_only_the_middle_failed(const std::string& reason) {
    REQUIRE(results.size() == 3);
    for (const std::size_t index : {std::size_t{0}, std::size_t{2}}) {
      check_passed(index, {3, 2, 2}, {"FLASH_ATTN", "CUDNN"});
    }
    CHECK(results[1].status == Status::kError);
    CHECK_FALSE(results[1].timing);
    REQUIRE(results[1].reasons.size() == 1);
    INFO(results[1].reasons[0]);
    CHECK(results[1].reasons[0].find(reason) != std::string::npos);
  }
};

constexpr int kRunsOfValidation = 2;

}  // namespace

TEST_CASE(
    "peers are validated one after another, then timed in turns, each round begun by the next") {
  Peers peers;
  peers.run();
  CHECK(peers.calls ==
        "ABC"
        "ABC"
        "BCA"
        "CAB");
  for (std::size_t i = 0; i < 3; ++i) {
    peers.check_passed(i, {3, 2, 2}, {"FLASH_ATTN", "TRITON_ATTN", "CUDNN"});
  }
  CHECK(peers.recorder.started == "ABC");
  CHECK(peers.recorder.resumed ==
        "ABC"
        "ABC"
        "BCA"
        "CAB"
        "ABC");  // planned, timed, finished
  CHECK(peers.recorder.finished == "ABC");
  CHECK(peers.recorder.notices.empty());
}

TEST_CASE("each result is that of its own job") {
  Peers peers;
  peers.backends[0].fault = [](PipelineOutput&, int run) {
    if (run >= kRunsOfValidation) std::this_thread::sleep_for(std::chrono::milliseconds(30));
  };
  peers.run();
  CHECK(peers.results.at(0).timing->min_us >= 30e3);
  CHECK(peers.results.at(1).timing->min_us < 30e3);
  CHECK(peers.results.at(2).timing->min_us < 30e3);
}

TEST_CASE("in a child process peers take turns as well") {
  Peers peers;
  peers.options.isolate = true;
  peers.run();
  for (std::size_t i = 0; i < 3; ++i) {
    peers.check_passed(i, {3, 2, 2}, {"FLASH_ATTN", "TRITON_ATTN", "CUDNN"});
  }
  CHECK(peers.calls.empty());
  CHECK(peers.recorder.finished == "ABC");
}

TEST_CASE("without turns, and without timing, a case runs one backend after another") {
  Peers peers;
  peers.problem.timing.order = TimingOrder::kSequential;
  peers.run();
  CHECK(peers.calls == "ABC");
  peers.check_passed(1, {}, {});
  Peers untimed;
  untimed.options.timing = false;
  untimed.run();
  CHECK(untimed.calls == "ABC");
  CHECK(untimed.recorder.resumed.empty());
}

TEST_CASE(
    "cases of another problem are a group of their own, and one job alone is timed in one go") {
  Peers peers;
  Problem other = peers.problem;
  other.case_name = "other";
  std::vector<Job> jobs = peers.jobs();
  jobs[2].problem = &other;
  peers.results = run_jobs(jobs, peers.options, peers.recorder);
  CHECK(peers.calls == "ABABABC");  // AB, then AB, BA, AB, without repeats
  peers.check_passed(0, {3, 2, 2}, {"FLASH_ATTN", "TRITON_ATTN"});
  peers.check_passed(2, {}, {});
}

TEST_CASE("who is wrong or not supported takes no turn") {
  Peers peers;
  peers.backends[0].reasons = {"head_size not supported"};
  peers.backends[1].fault = [&](PipelineOutput& output, int) {
    peers.called('B');
    output.output.set(3, 9.0f);
  };
  peers.run();
  CHECK(peers.calls == "BC");
  CHECK(peers.results.at(0).status == Status::kUnsupported);
  CHECK(peers.results.at(1).status == Status::kIncorrect);
  CHECK_FALSE(peers.results.at(1).timing);
  peers.check_passed(2, {}, {});
}

TEST_CASE("with fewer samples than rounds there are as many rounds as samples") {
  Peers peers;
  peers.problem.timing.samples = 2;
  peers.problem.timing.rounds = 5;
  peers.run();
  CHECK(peers.results.at(1).timing->rounds == std::vector<std::int64_t>{1, 1});
}

TEST_CASE("an exception of one in its turn leaves the others theirs") {
  Peers peers;
  peers.backends[1].fault = [](PipelineOutput&, int run) {
    if (run > kRunsOfValidation + 4) fail(ErrorKind::kInternal, "broke in a later turn");
  };
  peers.run();
  peers.check_only_the_middle_failed("broke in a later turn");
}

TEST_CASE(
    "a crash in a turn costs the others nothing: they take turns without it in a new process") {
  for (const int run : {0, kRunsOfValidation, kRunsOfValidation + 7}) {
    Peers peers;
    peers.options.isolate = true;
    peers.backends[1].fault = [run](PipelineOutput&, int now) {
      if (now == run) std::raise(SIGKILL);
    };
    peers.run();
    peers.check_only_the_middle_failed(run == 0 ? "in phase 'run': signal 9"
                                                : "in phase 'timing': signal 9");
    CHECK(peers.recorder.started == (run == 0 ? "ABAC" : "ABCAC"));
    CHECK(peers.recorder.finished == "BAC");
  }
}

TEST_CASE("a hang in a turn is ended, and an error in it gives the others a fresh process") {
  Peers peers;
  peers.options.isolate = true;
  peers.options.hang_limit_s = 5;  // a slow machine's silence has to stay below it
  peers.problem.timing.timeout_s = 1;
  peers.backends[1].fault = [](PipelineOutput&, int run) {
    while (run > kRunsOfValidation) std::this_thread::sleep_for(std::chrono::seconds(1));
  };
  peers.run();
  CHECK(peers.results.at(1).status == Status::kError);
  CHECK(peers.results.at(1).reasons.at(0).find("time limit") != std::string::npos);
  INFO(fmt::format("{}", fmt::join(peers.results.at(0).reasons, "; ")));
  REQUIRE(peers.results.at(0).timing);
  CHECK(peers.results.at(0).timing->peers == std::vector<std::string>{"FLASH_ATTN", "CUDNN"});

  Peers sticky;
  sticky.options.isolate = true;
  bool broken = false;
  sticky.backends[1].fault = [&](PipelineOutput&, int run) {
    if (run <= kRunsOfValidation + 3) return;
    broken = true;
    fail(ErrorKind::kValue, "sticky");
  };
  for (FakeBackend* other : {&sticky.backends[0], &sticky.backends[2]}) {
    other->fault = [&](PipelineOutput&, int) {
      if (broken) fail(ErrorKind::kInternal, "state of the process that met an error");
    };
  }
  sticky.run();
  sticky.check_only_the_middle_failed("sticky");
}

TEST_CASE("a peer that does not fit into memory beside the others is timed alone, and it is said") {
  // The second way is that of a library which asks the device for memory itself.
  for (const bool own_words : {false, true}) {
    for (const bool isolate : {false, true}) {
      Peers peers;
      peers.options.isolate = isolate;
      int used = 0;
      for (FakeBackend& backend : peers.backends) {
        backend.memory = [&]() -> std::shared_ptr<void> {
          if (used == 2 && own_words)
            throw BackendFailure("device memory: 5 bytes are not available");
          if (used == 2) fail(ErrorKind::kCapacity, "device memory: 5 bytes are not available");
          ++used;
          return {&used, [](int* count) { --*count; }};
        };
      }
      peers.run();
      for (const std::size_t index : {std::size_t{0}, std::size_t{1}}) {
        peers.check_passed(index, {3, 2, 2}, {"FLASH_ATTN", "TRITON_ATTN"});
      }
      peers.check_passed(2, {}, {});
      CHECK(peers.calls == (isolate ? "" : "ABCABABAB"));
      REQUIRE(peers.recorder.notices.size() == 1);
      CHECK(peers.recorder.notices[0] ==
            std::string("C: does not fit into memory beside the other backends, so it was timed "
                        "alone (") +
                (own_words ? "" : "E-CAPACITY: ") + "device memory: 5 bytes are not available)");
      CHECK(used == 0);
    }
  }
}

TEST_CASE("what crashes when a process lets go after an error is not blamed on another") {
  Peers peers;
  peers.options.isolate = true;
  bool broken = false;
  peers.backends[1].fault = [&](PipelineOutput&, int run) {
    if (run <= kRunsOfValidation + 3) return;
    broken = true;
    fail(ErrorKind::kInternal, "sticky");
  };
  peers.backends[0].memory = [&]() -> std::shared_ptr<void> {
    return {&broken, [](bool* is_broken) {
              if (*is_broken) std::raise(SIGKILL);
            }};
  };
  peers.run();
  peers.check_only_the_middle_failed("sticky");
}

TEST_CASE("who does not fit into memory alone is an error, and the others take turns without it") {
  for (const bool isolate : {false, true}) {
    Peers peers;
    peers.options.isolate = isolate;
    peers.backends[1].memory = []() -> std::shared_ptr<void> {
      fail(ErrorKind::kCapacity, "too large");
    };
    peers.run();
    peers.check_only_the_middle_failed("E-CAPACITY: too large");
    CHECK(peers.recorder.notices.empty());
  }
}

TEST_CASE("an interrupt in the turns skips all that are not finished") {
  for (const bool isolate : {false, true}) {
    Peers peers;
    peers.options.isolate = isolate;
    peers.options.should_stop = [&] { return peers.recorder.resumed.size() > 4; };
    peers.backends[1].fault = [](PipelineOutput&, int run) {
      // Time for the signal of the parent to arrive, which is to end the process without a word.
      std::signal(SIGTERM, SIG_DFL);
      if (run >= kRunsOfValidation) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    };
    peers.run();
    for (const Result& result : peers.results) {
      CHECK(result.status == Status::kSkipped);
      CHECK(result.reasons == std::vector<std::string>{"interrupted"});
      CHECK_FALSE(result.timing);
    }
    CHECK(peers.recorder.finished == "ABC");
  }
}

}  // namespace attnbench
