#include "measure/measure.h"
#include "measure/cpu_measure.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace attnbench::measure_test {
namespace {

class FakeClock final : public Clock {
 public:
  double now_s() const override { return time_s; }
  double time_s = 100;
};

class CountingFlusher final : public CacheFlusher {
 public:
  explicit CountingFlusher(L2Mode leaves) : leaves_(leaves) {}
  void flush() override { ++count; }
  L2Mode leaves() const override { return leaves_; }
  std::size_t size_bytes() const override { return 4096; }
  int count = 0;

 private:
  L2Mode leaves_;
};

/// Steps advance the clock by their own durations, so that no test depends on real time.
struct Bench {
  FakeClock clock;
  ClockStopwatch stopwatch{clock};
  MeasureOptions options;
  int runs = 0;

  Bench() {
    options.spec.l2 = L2Mode::kWarm;
    options.spec.min_time_ms = 0;
    options.spec.max_noise = 0.01;
    options.spec.timeout_s = 1000;
  }
  /// A step that takes the given times in turn, the last one for ever.
  Step step(const std::string& name, std::deque<double> times_us, bool in_median = true) {
    Step result;
    result.name = name;
    result.in_median = in_median;
    result.run = [this, times_us]() mutable {
      ++runs;
      clock.time_s += times_us.front() * 1e-6;
      if (times_us.size() > 1) times_us.pop_front();
    };
    return result;
  }
  Timing run(const std::vector<Step>& steps, CacheFlusher* flusher = nullptr) {
    return measure(steps, stopwatch, flusher, clock, options);
  }
};

}  // namespace

TEST_CASE("a sample summary has linear quartiles and the sample standard deviation") {
  const Timing timing = summarize_samples({4, 1, 3, 2});
  CHECK(timing.min_us == 1);
  CHECK(timing.q1_us == 1.75);
  CHECK(timing.median_us == 2.5);
  CHECK(timing.q3_us == 3.25);
  CHECK(timing.mean_us == 2.5);
  CHECK(timing.stdev_us == doctest::Approx(std::sqrt(5.0 / 3)));
  CHECK(timing.noise == doctest::Approx(1.2533 * std::sqrt(5.0 / 3) / 2 / 2.5));
  CHECK(timing.samples_us == std::vector<double>{4, 1, 3, 2});  // in the order taken
}

TEST_CASE("of every sample it is known how long the thread that waited longest did") {
  Bench bench;
  bench.options.spec.samples = 3;
  std::int64_t waited_ns = 0;
  int settled = 0;
  ClockStopwatch stopwatch(bench.clock, {[&] {
                                           return ThreadWaits{{1, waited_ns}, {2, 0}};
                                         },
                                         [] { return 0.0; }, 2, [&] { ++settled; }});
  Step outside = bench.step("write", {30}, /*in_median=*/false);
  outside.run = [&, run = outside.run] {
    run();
    waited_ns += 12'000;
  };
  const std::vector<Step> steps{bench.step("attend", {10}), outside};
  const Timing timing = measure(steps, stopwatch, nullptr, bench.clock, bench.options);
  // No sample waited for longer than it took.
  REQUIRE(timing.waits_us.size() == 3);
  for (const double wait_us : timing.waits_us) CHECK(wait_us == doctest::Approx(10));
  CHECK(timing.cpu_wait == doctest::Approx(0.25));
  CHECK(settled >= 3);
  const Timing unknown = bench.run(steps);
  CHECK(unknown.waits_us.empty());
  CHECK(std::isnan(unknown.cpu_wait));
}

TEST_CASE("what the process used of its cores itself is no wait for other programs") {
  Bench bench;
  bench.options.spec.samples = 3;
  std::int64_t waited_ns = 0;
  double ran_us = 0;
  ClockStopwatch stopwatch(bench.clock, {[&] {
                                           return ThreadWaits{{1, waited_ns}};
                                         },
                                         [&] { return ran_us; },
                                         2,
                                         {}});
  Step step = bench.step("attend", {100});
  const auto measured = [&](double ran_in_step_us) {
    Step running = step;
    running.run = [&, run = step.run, ran_in_step_us] {
      run();
      waited_ns += 50'000;
      ran_us += ran_in_step_us;
    };
    return measure({running}, stopwatch, nullptr, bench.clock, bench.options).waits_us;
  };
  const auto waits = [](double each_us) { return std::vector<double>(3, each_us); };
  CHECK(measured(200)[0] == doctest::Approx(0));  // its threads waited for each other
  CHECK(measured(170)[0] == doctest::Approx(30));
  CHECK(measured(100) == waits(50));
}

TEST_CASE("the passes over a case add up to what is asked for") {
  TimingSpec spec;
  spec.samples = 20;
  spec.rounds = 7;
  int samples = 0;
  for (int pass = 0; pass < 6; ++pass) {
    const TimingSpec share = pass_share(spec, pass, 6);
    CHECK(*share.samples >= 3);
    samples += *share.samples;
    CHECK(share.min_time_ms == doctest::Approx(100.0 / 6));
    CHECK(share.timeout_s == doctest::Approx(15.0 / 6));
    CHECK(share.max_noise == doctest::Approx(0.01 * std::sqrt(6)));
    CHECK(share.rounds == 2);
  }
  CHECK(samples == 20);
  CHECK(*pass_share(spec, 0, 1).samples == 20);
  spec.samples = 2;
  CHECK(passes_of(spec, 6) == 2);
  CHECK(*pass_share(spec, 1, 6).samples == 1);
  CHECK(pass_share(spec, 1, 6).min_time_ms == doctest::Approx(50));
  spec.samples.reset();
  CHECK(passes_of(spec, 6) == 6);
  CHECK_FALSE(pass_share(spec, 0, 6).samples);
}

TEST_CASE("one sample has no spread") {
  const Timing timing = summarize_samples({7});
  CHECK(timing.median_us == 7);
  CHECK(timing.q3_us == 7);
  CHECK(std::isnan(timing.stdev_us));
  CHECK(std::isnan(timing.noise));
}

TEST_CASE("exactly the given number of samples is taken, whatever the noise") {
  Bench bench;
  bench.options.spec.samples = 3;
  bench.options.spec.max_noise = 0;
  const Timing timing = bench.run({bench.step("attend", {10})});
  CHECK(timing.samples_us.size() == 3);
  CHECK(timing.median_us == doctest::Approx(10));
}

TEST_CASE("sampling stops at five samples when they agree") {
  Bench bench;
  CHECK(bench.run({bench.step("attend", {10})}).samples_us.size() == 5);
}

TEST_CASE("rounds share the samples, and none takes another's") {
  Bench bench;
  bench.options.rounds = 3;
  for (const auto& [samples, rounds] :
       std::vector<std::pair<int, std::vector<std::int64_t>>>{{7, {3, 2, 2}}, {49, {17, 16, 16}}}) {
    bench.options.spec.samples = samples;
    const Timing timing = bench.run({bench.step("attend", {10})});
    CHECK(timing.rounds == rounds);
    CHECK(timing.samples_us.size() == static_cast<std::size_t>(samples));
  }
  bench.options.rounds = 49;
  CHECK(bench.run({bench.step("attend", {10})}).rounds == std::vector<std::int64_t>(49, 1));
  bench.options.rounds = 1;
  CHECK(bench.run({bench.step("attend", {10})}).rounds.empty());
}

TEST_CASE("each round has five samples and its part of the least time") {
  Bench bench;
  bench.options.rounds = 3;
  CHECK(bench.run({bench.step("attend", {10})}).rounds == std::vector<std::int64_t>{5, 5, 5});
  bench.options.spec.min_time_ms = 3;
  CHECK(bench.run({bench.step("attend", {128})}).rounds == std::vector<std::int64_t>{8, 8, 8});
}

TEST_CASE("the samples that the noise bound asks for are shared among the rounds") {
  // Of 10 and 10.8 in turn a median is known to 1 % after some 24 samples.
  Bench bench;
  std::deque<double> times_us;
  for (int i = 0; i < 2000; ++i) times_us.push_back(i % 2 == 0 ? 10 : 10.8);
  const std::size_t at_once = bench.run({bench.step("attend", times_us)}).samples_us.size();
  CHECK(at_once > 20);
  bench.options.rounds = 5;
  bench.options.spec.max_noise = 0.005;
  const Timing timing = bench.run({bench.step("attend", times_us)});
  REQUIRE(timing.rounds.size() == 5);
  CHECK(timing.noise <= 0.005);
  for (const std::int64_t samples : timing.rounds) {
    CHECK(2 * samples >= timing.rounds.front());
    CHECK(samples <= 2 * timing.rounds.front());
    CHECK(samples > 10);
  }
}

TEST_CASE("no round is taken once the time limit is spent") {
  Bench bench;
  bench.options.rounds = 4;
  bench.options.spec.timeout_s = 0.001;
  // A warm-up and a sample take longer than all four rounds may.
  const Timing timing = bench.run({bench.step("attend", {600})});
  CHECK(timing.rounds == std::vector<std::int64_t>{1});
}

TEST_CASE("a round that is off costs further samples, up to twice those of the first") {
  Bench bench;
  bench.options.rounds = 2;
  // Three warm-ups and five samples, then a warm-up and everything else slower.
  const Timing timing =
      bench.run({bench.step("attend", {10, 10, 10, 10, 10, 10, 10, 10, 12, 12, 12})});
  REQUIRE(timing.rounds.size() == 2);
  CHECK(timing.rounds[0] == 5);
  CHECK(timing.rounds[1] == 10);
  CHECK(timing.noise > 0.01);  // the bound is missed, which is shown
  CHECK(round_medians_us(timing)[1] == doctest::Approx(12));
}

TEST_CASE("what runs between rounds takes none of their time") {
  Bench bench;
  bench.options.rounds = 2;
  bench.options.spec.timeout_s = 0.004;
  bench.options.spec.samples = 1000;
  Measurement measurement({bench.step("attend", {100})}, bench.stopwatch, nullptr, bench.clock,
                          bench.options);
  measurement.take_round();
  bench.clock.time_s += 1000;
  measurement.take_round();
  bench.clock.time_s += 1000;
  const Timing timing = measurement.finish();
  REQUIRE(timing.rounds.size() == 2);
  CHECK(timing.rounds[0] > 10);
  CHECK(timing.rounds[1] > 10);
  CHECK(timing.samples_us.size() <= 40);
}

TEST_CASE("sampling goes on until the noise bound is met") {
  Bench bench;
  bench.options.spec.max_noise = 0.05;
  // Warm-up takes three; then the first sample is an outlier that many equal ones must dilute.
  const Timing timing = bench.run({bench.step("attend", {10, 10, 10, 20, 10})});
  CHECK(timing.samples_us.size() > 5);
  CHECK(timing.noise <= 0.05);
  std::vector<double> one_less(timing.samples_us.begin(), timing.samples_us.end() - 1);
  CHECK(summarize_samples(one_less).noise > 0.05);
}

TEST_CASE("sampling goes on until the least time is reached") {
  Bench bench;
  bench.options.spec.min_time_ms = 1;
  CHECK(bench.run({bench.step("attend", {100})}).samples_us.size() == 10);
}

TEST_CASE("the time limit ends sampling and counts the warm-up") {
  Bench bench;
  bench.options.spec.max_noise = -1;  // never met
  bench.options.spec.timeout_s = 10;
  // One warm-up run of 2 s uses up its share; four samples of 2 s fill the rest.
  CHECK(bench.run({bench.step("attend", {2e6})}).samples_us.size() == 4);
}

TEST_CASE("one sample is taken even when the warm-up spent the time limit") {
  Bench bench;
  bench.options.spec.timeout_s = 1;
  const Timing timing = bench.run({bench.step("attend", {5e6})});
  CHECK(timing.samples_us.size() == 1);
  CHECK(bench.runs == 2);
}

TEST_CASE("a noisy measurement ends at the largest number of samples") {
  Bench bench;
  bench.options.spec.max_noise = -1;
  CHECK(bench.run({bench.step("attend", {1})}).samples_us.size() == 10000);
}

TEST_CASE("the median counts only its own steps and the total counts all") {
  Bench bench;
  bench.options.spec.samples = 5;
  Step attend = bench.step("attend", {30});
  attend.bytes = 4096;
  attend.flops = 8192;
  const Timing timing =
      bench.run({bench.step("write_cache", {7}, false), attend, bench.step("combine", {3})});
  CHECK(timing.median_us == doctest::Approx(33));
  CHECK(timing.total_us == doctest::Approx(40));
  REQUIRE(timing.steps.size() == 3);
  CHECK(timing.steps[0].name == "write_cache");
  CHECK(timing.steps[0].median_us == doctest::Approx(7));
  CHECK(timing.steps[1].bytes == 4096);
  CHECK(timing.steps[1].flops == 8192);
}

TEST_CASE("the total is the median of sums, not the sum of medians") {
  Bench bench;
  bench.options.spec.samples = 3;
  // After three warm-up runs: (1, 9), (5, 5), (9, 1).
  const Timing timing =
      bench.run({bench.step("a", {1, 1, 1, 1, 5, 9}), bench.step("b", {1, 1, 1, 9, 5, 1}, false)});
  CHECK(timing.total_us == doctest::Approx(10));
}

TEST_CASE("cold or clean is claimed only where it is proven") {
  Bench bench;
  bench.options.spec.samples = 4;
  CountingFlusher proven(L2Mode::kCold), unproven(L2Mode::kWarm);
  bench.options.spec.l2 = L2Mode::kCold;
  CHECK(bench.run({bench.step("attend", {10})}, &proven).l2 == "cold");
  CHECK(proven.count == 4);
  CHECK(bench.run({bench.step("attend", {10})}, &unproven).l2 == "warm");
  CHECK(bench.run({bench.step("attend", {10})}, &unproven).flushed_bytes == 4096);
  CHECK(bench.run({bench.step("attend", {10})}, nullptr).l2 == "warm");
  CHECK(bench.run({bench.step("attend", {10})}, nullptr).flushed_bytes == 0);
  bench.options.spec.l2 = L2Mode::kClean;
  CountingFlusher clean(L2Mode::kClean);
  CHECK(bench.run({bench.step("attend", {10})}, &clean).l2 == "clean");
  CHECK(clean.count == 4);
  CHECK(bench.run({bench.step("attend", {10})}, &unproven).l2 == "warm");
  CHECK(bench.run({bench.step("attend", {10})}, nullptr).l2 == "warm");
  // What was asked for proves nothing.
  CHECK(bench.run({bench.step("attend", {10})}, &proven).l2 == "cold");
  CHECK(proven.count == 8);
  bench.options.spec.l2 = L2Mode::kWarm;
  CHECK(bench.run({bench.step("attend", {10})}, &proven).l2 == "warm");
  CHECK(bench.run({bench.step("attend", {10})}, &clean).l2 == "warm");
  CHECK(proven.count == 8);
  CHECK(clean.count == 4);
}

TEST_CASE("a request to stop ends sampling after the sample at hand") {
  Bench bench;
  bench.options.spec.samples = 100;
  bench.options.should_stop = [&] { return bench.runs >= 5; };
  CHECK(bench.run({bench.step("attend", {10})}).samples_us.size() == 2);
}

namespace {

/// A device on which every boundary takes 2 us, as events do.
class CostlyBoundaries final : public Stopwatch {
 public:
  explicit CostlyBoundaries(const Clock& clock) : inner_(clock) {}
  std::vector<Part> prepare(std::vector<Part> parts) override {
    ++prepared;
    return parts;
  }
  std::vector<double> time_us(const std::vector<Part>& parts) override {
    num_parts.push_back(parts.size());
    std::vector<double> times_us = inner_.time_us(parts);
    for (double& time : times_us) time += 2;
    return times_us;
  }
  bool boundaries_take_time() const override { return true; }
  std::string mode() const override { return "graph"; }
  double launch_overhead_us() override { return 0.5; }
  std::optional<DeviceClocks> clocks() override { return DeviceClocks{1, 2, 3, {"hot"}}; }
  std::vector<std::size_t> num_parts;
  int prepared = 0;

 private:
  ClockStopwatch inner_;
};

}  // namespace

TEST_CASE("where boundaries take time, the steps of the median are timed as one, and so is all") {
  Bench bench;
  bench.options.spec.samples = 3;
  CostlyBoundaries stopwatch(bench.clock);
  const Timing timing = measure({bench.step("write_cache", {7}, false), bench.step("attend", {30}),
                                 bench.step("combine", {5})},
                                stopwatch, nullptr, bench.clock, bench.options);
  CHECK(timing.median_us == doctest::Approx(37));  // 30 + 5 and one boundary
  CHECK(timing.samples_us.size() == 3);
  CHECK(timing.total_us == doctest::Approx(44));  // 7 + 30 + 5 and one boundary
  REQUIRE(timing.steps.size() == 3);
  CHECK(timing.steps[2].median_us == doctest::Approx(7));  // alone, with a boundary
  CHECK(stopwatch.prepared == 3);
  CHECK(stopwatch.num_parts[2] == 2);
  CHECK(stopwatch.num_parts[3] == 3);
  CHECK(stopwatch.num_parts.back() == 1);
  CHECK(timing.mode == "graph");
  CHECK(timing.launch_overhead_us == 0.5);
  REQUIRE(timing.clocks);
  CHECK(timing.clocks->sm_mhz_max == 3);
}

TEST_CASE("steps that are parts need no samples of their own, all of them together do") {
  Bench bench;
  bench.options.spec.samples = 3;
  CostlyBoundaries stopwatch(bench.clock);
  const Timing timing = measure({bench.step("write_cache", {7}, false), bench.step("attend", {30})},
                                stopwatch, nullptr, bench.clock, bench.options);
  CHECK(timing.total_us == doctest::Approx(39));
  CHECK(std::count(stopwatch.num_parts.begin(), stopwatch.num_parts.end(), 2) == 3);
  CHECK(std::count(stopwatch.num_parts.begin(), stopwatch.num_parts.end(), 1) ==
        std::ssize(stopwatch.num_parts) - 3);

  CostlyBoundaries one_part(bench.clock);
  measure({bench.step("attend", {30})}, one_part, nullptr, bench.clock, bench.options);
  CHECK(one_part.num_parts == std::vector<std::size_t>{1, 1, 1});
}

namespace {

class CountingWork final : public SampleWork {
 public:
  void poison() override { notes += "p"; }
  void rewrite() override { notes += "w"; }
  void restore() override { notes += "r"; }
  void keep() override { notes += "k"; }
  void finish(std::optional<std::int64_t> sample) override {
    notes += sample ? std::to_string(*sample) : "-";
  }
  void end() override { notes += "e"; }
  std::size_t first_reader() const override { return reader; }
  std::string notes;
  std::size_t reader = 0;
};

}  // namespace

TEST_CASE("work around samples has its places, once a sample, and ends after the last") {
  Bench bench;
  CountingWork work;
  bench.options.spec.samples = 2;
  bench.options.work = &work;
  bench.run({bench.step("write_cache", {7}, false), bench.step("attend", {30})});
  CHECK(work.notes == "pwrk0pwrk1e");
}

TEST_CASE("on the CPU the query is restored in front of the step that reads it, beside its time") {
  Bench bench;
  CountingWork work;
  bench.options.spec.samples = 1;
  bench.options.work = &work;
  work.reader = 1;
  const Timing timing = bench.run({{"write_cache", false, 0, 0, [&] { work.notes += "1"; }},
                                   {"attend", true, 0, 0, [&] { work.notes += "2"; }}});
  CHECK(work.notes.substr(work.notes.size() - 8) == "pw1r2k0e");
  CHECK(timing.samples_us.size() == 1);
}

TEST_CASE("samples of single steps are none of the measurement's") {
  Bench bench;
  CountingWork work;
  bench.options.spec.samples = 1;
  bench.options.work = &work;
  CostlyBoundaries stopwatch(bench.clock);
  measure({bench.step("write_cache", {7}, false), bench.step("attend", {30}),
           bench.step("combine", {5})},
          stopwatch, nullptr, bench.clock, bench.options);
  CHECK(work.notes.substr(0, 5) == "pwrk0");
  CHECK(work.notes.substr(5, 5) == "pwrk-");
  CHECK(work.notes.back() == 'e');
}

TEST_CASE("the overhead on the CPU is what an empty part takes") {
  Bench bench;
  const Timing timing = bench.run({bench.step("attend", {10})});
  CHECK(timing.launch_overhead_us == 0);  // the clock of this test stands still
  CHECK(timing.mode == "stream");
}

TEST_CASE("the ceilings of this machine are positive") {
  const CpuCeilings ceilings = measure_cpu_ceilings(1);
  CHECK(ceilings.gflops > 0);
  CHECK(ceilings.gbps > 0);
}

TEST_CASE("the flusher of this machine runs") { make_cpu_cache_flusher()->flush(); }

TEST_CASE(
    "every sample follows a rest and then a flush, and has its clock, of which cycles follow") {
  class PacedStopwatch final : public Stopwatch {
   public:
    explicit PacedStopwatch(const CountingFlusher& flusher) : flusher_(flusher) {}
    void rest() override {
      ++rests;
      CHECK(flusher_.count == rests - 1);
    }
    std::vector<double> time_us(const std::vector<Part>&) override {
      CHECK(flusher_.count == rests);
      mhz_ = rests % 2 == 0 ? 1000 : 2000;
      return {2e5 / mhz_};
    }
    std::string pace() const override { return "cool"; }
    double sm_mhz() const override { return mhz_; }
    double launch_overhead_us() override { return 0; }
    int rests = 0;

   private:
    const CountingFlusher& flusher_;
    double mhz_ = 0;
  };
  Bench bench;
  CountingFlusher flusher(L2Mode::kCold);
  PacedStopwatch stopwatch(flusher);
  bench.options.spec.l2 = L2Mode::kCold;
  bench.options.spec.samples = 4;
  const Timing timing =
      measure({bench.step("attend", {1})}, stopwatch, &flusher, bench.clock, bench.options);
  CHECK(stopwatch.rests == 4);
  CHECK(timing.pace == "cool");
  CHECK(timing.samples_us == std::vector<double>{100, 200, 100, 200});
  CHECK(timing.samples_sm_mhz == std::vector<double>{2000, 1000, 2000, 1000});
  CHECK(timing.cycles == 2e5);
}

TEST_CASE("without a clock of every sample there are no cycles") {
  Bench bench;
  const Timing timing = bench.run({bench.step("attend", {100})});
  CHECK(timing.samples_sm_mhz.empty());
  CHECK(std::isnan(timing.cycles));
  CHECK(timing.pace.empty());
}

}  // namespace attnbench::measure_test
