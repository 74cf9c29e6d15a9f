// Samples over several ranks: what each is told and when, and whose times count.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/ranks/rank_sampler.h"
#include "bench/ranks/ranked_stopwatch.h"
#include "core/error.h"

namespace attnbench {
namespace {

using Log = std::vector<std::string>;

class LoggedOrders final : public SampleOrders {
 public:
  explicit LoggedOrders(Log& log) : log_(log) {}
  void begin_sample(bool flush) override { log_.push_back(flush ? "begin cold" : "begin"); }
  void mark() override { log_.emplace_back("mark"); }
  std::vector<std::vector<double>> times_us() override {
    log_.emplace_back("times");
    return times;
  }
  std::size_t begin_capture() override {
    log_.emplace_back("others capture");
    return next++;
  }
  void end_capture() override { log_.emplace_back("others have captured"); }
  void launch(std::size_t graph, const std::function<void()>& own) override {
    log_.push_back(fmt::format("others launch {}", graph));
    own();
  }

  std::vector<std::vector<double>> times;
  std::size_t next = 0;

 private:
  Log& log_;
};

/// Plays rank 0's: graphs are captured by doing the work, and launched by name.
class LoggedStopwatch final : public Stopwatch {
 public:
  LoggedStopwatch(Log& log, std::string mode) : log_(log), mode_(std::move(mode)) {}
  std::vector<Part> prepare(std::vector<Part> parts) override {
    if (mode_ != "graph") return parts;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      log_.emplace_back("capture");
      for (const auto& call : parts[i]) call();
      log_.emplace_back("have captured");
      parts[i] = {[this, i] { log_.push_back(fmt::format("launch {}", i)); }};
    }
    return parts;
  }
  std::vector<double> time_us(const std::vector<Part>& parts) override {
    log_.emplace_back("hold");
    for (const Part& part : parts) {
      for (const auto& call : part) call();
    }
    log_.emplace_back("let go");
    return std::vector<double>(parts.size(), 1e9);
  }
  std::string mode() const override { return mode_; }
  double launch_overhead_us() override { return 7; }

 private:
  Log& log_;
  std::string mode_;
};

class Flusher final : public CacheFlusher {
 public:
  explicit Flusher(Log& log) : log_(log) {}
  void flush() override { log_.emplace_back("flush"); }
  L2Mode leaves() const override { return L2Mode::kCold; }
  std::size_t size_bytes() const override { return 1; }

 private:
  Log& log_;
};

Part logged(Log& log, const std::string& word) {
  return {[&log, word] { log.push_back(word); }};
}

/// Marks are logged; buffers are the CPU's.
class LoggedRecorder final : public RankRecorder {
 public:
  explicit LoggedRecorder(Log& log) : log_(log) {}
  void flush(L2Mode mode) override { log_.push_back(fmt::format("flush {}", to_string(mode))); }
  void mark(std::size_t number) override { log_.push_back(fmt::format("mark {}", number)); }
  std::vector<double> times_us(std::size_t last) override { return std::vector<double>(last, 2.5); }
  void begin_capture() override {}
  void end_capture() override {}
  void launch(std::size_t) override {}

 private:
  Log& log_;
};

class LoggedMeeting final : public Communicator {
 public:
  explicit LoggedMeeting(Log& log) : log_(log) {}
  int world_size() const override { return 3; }
  int num_local_ranks() const override { return 1; }
  void all_gather(SendBuffers send, ReceiveBuffers receive, std::size_t size_bytes) override {
    CHECK(send.size() == 1);
    CHECK(receive.size() == 1);
    CHECK(size_bytes > 0);
    log_.emplace_back("meet");
  }
  void all_to_all(SendBuffers, ReceiveBuffers, std::size_t) override {}
  void reduce_scatter_sum(SendBuffers, ReceiveBuffers, Dtype, std::int64_t) override {}
  void all_reduce_sum(SendBuffers, ReceiveBuffers, Dtype, std::int64_t) override {}

 private:
  Log& log_;
};

}  // namespace

TEST_CASE("a sample over ranks begins on all at once and has the parts of the slowest") {
  Log log;
  LoggedOrders orders(log);
  orders.times = {{5, 1}, {4, 4}, {6, 1}};
  const auto stopwatch = over_ranks(orders, std::make_unique<LoggedStopwatch>(log, "stream"));
  const std::vector<Part> parts = stopwatch->prepare({logged(log, "attend"), logged(log, "merge")});
  CHECK(stopwatch->time_us(parts) == std::vector<double>{4, 4});
  CHECK(log ==
        Log{"begin cold", "hold", "begin", "attend", "mark", "merge", "mark", "let go", "times"});
  CHECK(stopwatch->launch_overhead_us() == 7);
}

TEST_CASE("the caches of all ranks are emptied where those of the first are") {
  Log log;
  LoggedOrders orders(log);
  orders.times = {{1}, {2}};
  const auto stopwatch = over_ranks(orders, std::make_unique<LoggedStopwatch>(log, "stream"));
  Flusher flusher(log);
  SampleSetting setting;
  setting.flusher = &flusher;
  CHECK(stopwatch->time_sample({logged(log, "attend")}, setting) == std::vector<double>{2});
  CHECK(log == Log{"flush", "hold", "begin cold", "attend", "mark", "let go", "times"});
}

TEST_CASE("all ranks record the same graphs and launch them together") {
  Log log;
  LoggedOrders orders(log);
  orders.next = 4;  // graphs of another pipeline of the group
  orders.times = {{1, 1}, {2, 2}};
  const auto stopwatch = over_ranks(orders, std::make_unique<LoggedStopwatch>(log, "graph"));
  const std::vector<Part> parts = stopwatch->prepare({logged(log, "attend"), logged(log, "merge")});
  CHECK(log == Log{"begin cold", "capture", "others capture", "attend", "others have captured",
                   "have captured", "capture", "others capture", "merge", "others have captured",
                   "have captured"});
  log.clear();
  CHECK(stopwatch->time_us(parts) == std::vector<double>{2, 2});
  CHECK(log == Log{"hold", "begin", "others launch 4", "launch 0", "mark", "others launch 5",
                   "launch 1", "mark", "let go", "times"});
  CHECK(stopwatch->mode() == "graph");
}

TEST_CASE("a rank's sample begins behind an exchange of all, on such caches as asked for") {
  Log log;
  const auto ops = make_cpu_ops(1);
  LoggedMeeting meeting(log);
  LoggedRecorder recorder(log);
  RankSampler sampler(meeting, *ops, recorder);
  for (const L2Mode mode : {L2Mode::kCold, L2Mode::kWarm, L2Mode::kClean}) {
    sampler.begin(mode);
    sampler.mark();
    sampler.mark();
    CHECK(sampler.times_us() == std::vector<double>{2.5, 2.5});
  }
  CHECK(log == Log{"flush cold", "meet", "mark 0", "mark 1", "mark 2", "meet", "mark 0", "mark 1",
                   "mark 2", "flush clean", "meet", "mark 0", "mark 1", "mark 2"});
}

}  // namespace attnbench
