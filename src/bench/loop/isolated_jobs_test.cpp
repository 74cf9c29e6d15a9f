#include "bench/loop/isolated_jobs.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "bench/loop/fake_backend.h"
#include "bench/process/child_process.h"
#include "core/error.h"

namespace attnbench::isolated_jobs_test {
namespace {

class Recorder final : public BenchObserver {
 public:
  void job_started(std::size_t index, std::size_t count, const Job&) override {
    CHECK(index == started);
    CHECK(count == 3);
    ++started;
  }
  void phase(Phase phase) override { phases.emplace_back(to_string(phase)); }
  void job_finished(const Result& result) override { finished.push_back(result.status); }
  std::size_t started = 0;
  std::vector<std::string> phases;
  std::vector<Status> finished;
};

/// Three jobs in a child; the middle one has a fault.
struct Isolated {
  Problem problem = small_problem();
  FakeBackend good, bad;
  BenchOptions options;
  Recorder recorder;
  std::vector<Result> results;

  Isolated() {
    options.timing = false;
    options.num_threads = 1;
    options.isolate = true;
  }
  void run() {
    results = run_jobs({{&problem, &good, "a", "repro a", {}},
                        {&problem, &bad, "b", "repro b", {}},
                        {&problem, &good, "c", "repro c", {}}},
                       options, recorder);
  }
  void check_only_the_middle_failed(const std::string& reason) {
    REQUIRE(results.size() == 3);
    CHECK(results[0].status == Status::kPassed);
    CHECK(results[1].status == Status::kError);
    CHECK(results[2].status == Status::kPassed);
    CHECK(results[1].id == "b");
    CHECK(results[1].repro == "repro b");
    REQUIRE(results[1].reasons.size() == 1);
    INFO(results[1].reasons[0]);
    CHECK(results[1].reasons[0].find(reason) != std::string::npos);
    CHECK(recorder.started == 3);
    CHECK(recorder.finished.size() == 3);
  }
};

}  // namespace

TEST_CASE("isolated jobs give the same results as jobs in the process, and nothing runs in it") {
  Isolated isolated;
  isolated.options.timing = true;
  isolated.run();
  REQUIRE(isolated.results.size() == 3);
  for (const Result& result : isolated.results) {
    CHECK(result.status == Status::kPassed);
    REQUIRE(result.timing);
    CHECK(result.timing->samples_us.size() == 2);
    REQUIRE(result.error);
    for (const char* phase : {"inputs", "run", "reference", "timing"}) {
      CHECK(result.run_seconds.contains(phase));
    }
  }
  CHECK(isolated.good.runs == 0);
  CHECK(isolated.recorder.phases.size() == 18);  // inputs, two of each draw, and timing
  isolated.options.isolate = false;
  isolated.recorder = {};
  const double max_abs = isolated.results[0].error->max_abs;
  isolated.run();
  CHECK(isolated.results[0].error->max_abs == max_abs);
  CHECK(isolated.good.runs > 0);
}

TEST_CASE("a crash is the error of its case alone and names the signal") {
  Isolated isolated;
  isolated.bad.fault = [](PipelineOutput&, int) { std::raise(SIGKILL); };
  isolated.run();
  isolated.check_only_the_middle_failed("in phase 'run': signal 9");
}

TEST_CASE("a case that ends the process is an error") {
  Isolated isolated;
  isolated.bad.fault = [](PipelineOutput&, int) { _exit(7); };
  isolated.run();
  isolated.check_only_the_middle_failed("exit status 7");
  isolated.bad.fault = [](PipelineOutput&, int) { _exit(0); };
  isolated.recorder = {};
  isolated.run();
  isolated.check_only_the_middle_failed("the process that ran this case ended");
}

TEST_CASE("a hang is ended by the watchdog") {
  Isolated isolated;
  isolated.options.hang_limit_s = 0.3;
  isolated.bad.fault = [](PipelineOutput&, int) {
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  };
  isolated.run();
  isolated.check_only_the_middle_failed("time limit");
}

TEST_CASE("an error ends the child, and the next case has a fresh one") {
  Isolated isolated;
  isolated.bad.fault = [](PipelineOutput&, int run) {
    if (run >= 0) fail(ErrorKind::kValue, "sticky");
  };
  isolated.good.fault = [&](PipelineOutput&, int) {
    if (isolated.bad.runs > 0) fail(ErrorKind::kInternal, "state of the child that met an error");
  };
  isolated.run();
  isolated.check_only_the_middle_failed("sticky");
}

TEST_CASE("an interrupt ends the case that runs and skips the rest") {
  Isolated isolated;
  isolated.options.should_stop = [&] { return isolated.recorder.started >= 2; };
  isolated.bad.fault = [](PipelineOutput&, int) {
    std::signal(SIGTERM, SIG_DFL);
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  };
  isolated.run();
  REQUIRE(isolated.results.size() == 3);
  CHECK(isolated.results[0].status == Status::kPassed);
  CHECK(isolated.results[1].status == Status::kSkipped);
  CHECK(isolated.results[1].reasons == std::vector<std::string>{"interrupted"});
}

TEST_CASE("messages of any size and content arrive whole and in order") {
  const std::string large(3'000'000, '\n');
  ChildProcess child([&](ParentLink& link) {
    link.send('a', "");
    link.send('b', large);
    link.send('c', std::string("\0x", 2));
  });
  std::vector<Message> messages;
  for (;;) {
    Message message;
    const ChildProcess::Read read = child.read(message, 1000);
    if (read == ChildProcess::Read::kEnded) break;
    if (read == ChildProcess::Read::kMessage) messages.push_back(std::move(message));
  }
  REQUIRE(messages.size() == 3);
  CHECK(messages[0].text.empty());
  CHECK(messages[1].text == large);
  CHECK(messages[2].text == std::string("\0x", 2));
  CHECK(child.how_it_ended().empty());
}

TEST_CASE("a child that reads no answers does not hold up who answers") {
  ChildProcess child([](ParentLink&) {
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  });
  const std::string text(1000, 'x');
  for (int i = 0; i < 20'000; ++i) child.answer('a', text);
  Message message;
  while (child.read(message, 1000) != ChildProcess::Read::kEnded) continue;
  CHECK(child.how_it_ended().find("signal 9") != std::string::npos);
}

}  // namespace attnbench::isolated_jobs_test
