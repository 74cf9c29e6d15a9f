#include "measure/measure.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

namespace attnbench {
namespace {

constexpr std::size_t kMinSamples = 5;
/// A later round has at most so many times the samples of the first one, and as little less.
constexpr std::size_t kMostOfFirst = 2;
/// Sampling also ends here: the interval of a median of so many samples is a few per mille of their
/// spread, and a result file should stay readable.
constexpr int kMaxSamples = 10000;
constexpr int kWarmUpRuns = 3;
constexpr double kWarmUpShare = 0.1;  // of timeout_s, after the first warm-up run
constexpr int kOverheadSamples = 31;
/// Of what is shown beside the samples, at most; of long work as few as that has samples.
constexpr std::size_t kMostStepSamples = 11;
/// Ratio of the standard error of a normal sample's median to that of its mean, sqrt(pi / 2).
constexpr double kMedianFactor = 1.2533;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Mean and variance of a growing sample (Welford), so that a long run stays linear.
class RunningMoments {
 public:
  void add(double value) {
    ++count_;
    const double delta = value - mean_;
    mean_ += delta / static_cast<double>(count_);
    squares_ += delta * (value - mean_);
  }
  double mean() const { return mean_; }
  double stdev() const {
    return count_ > 1 ? std::sqrt(squares_ / static_cast<double>(count_ - 1)) : kNaN;
  }
  double noise() const {
    return kMedianFactor * stdev() / std::sqrt(static_cast<double>(count_)) / mean_;
  }

 private:
  std::size_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;
};

/// Quantile of ascending values with linear interpolation between neighbours.
double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return kNaN;
  const double position = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

/// The steps of a pipeline cut into parts.
struct Cut {
  std::vector<Part> parts;
  std::vector<bool> in_median;  // of each part
};

Cut every_step(const std::vector<Step>& steps) {
  Cut cut;
  for (const Step& step : steps) {
    cut.parts.push_back({step.run});
    cut.in_median.push_back(step.in_median);
  }
  return cut;
}

/// Neighbours with the same in_median in one part.
Cut neighbours_together(const std::vector<Step>& steps) {
  Cut cut;
  for (const Step& step : steps) {
    if (cut.parts.empty() || cut.in_median.back() != step.in_median) {
      cut.parts.emplace_back();
      cut.in_median.push_back(step.in_median);
    }
    cut.parts.back().push_back(step.run);
  }
  return cut;
}

}  // namespace

class Measurement::Sampler {
 public:
  Sampler(std::vector<Step> steps, Stopwatch& stopwatch, CacheFlusher* flusher, const Clock& clock,
          MeasureOptions options)
      : steps_(std::move(steps)),
        stopwatch_(stopwatch),
        flusher_(flusher),
        clock_(clock),
        options_(std::move(options)) {}

  void take_round() {
    begin_turn();
    if (!rounds_.empty() && out_of_time(1)) return;
    if (rounds_.empty()) {
      warm_up();
    } else {
      run_once();
    }
    const std::size_t before = samples_.size();
    sample();
    rounds_.push_back(static_cast<std::int64_t>(samples_.size() - before));
    end_turn();
  }

  Timing timing() {
    begin_turn();
    const std::vector<std::vector<double>>& step_samples = samples_of_steps();
    const double total_us = median(samples_of_whole());
    if (options_.work != nullptr) options_.work->end();
    Timing timing = summarize_samples(samples_);
    if (options_.rounds > 1) timing.rounds = rounds_;
    timing.total_us = total_us;
    add_waits(timing);
    add_clocks(timing);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      timing.steps.push_back(
          {steps_[i].name, median(step_samples[i]), steps_[i].bytes, steps_[i].flops});
    }
    return timing;
  }

 private:
  bool stopped() const { return options_.should_stop && options_.should_stop(); }

  void begin_turn() { turn_start_s_ = clock_.now_s(); }
  void end_turn() { spent_s_ += clock_.now_s() - turn_start_s_; }
  /// In this turn and those before it.
  double spent_s() const { return spent_s_ + (clock_.now_s() - turn_start_s_); }
  /// What the rounds up to this one may take of what is meant for all of them.
  double share() const { return static_cast<double>(rounds_.size() + 1) / options_.rounds; }

  void run_once() {
    for (const Step& step : steps_) step.run();
  }

  void warm_up() {
    for (int run = 0; run < kWarmUpRuns && !stopped(); ++run) {
      if (run > 0 && spent_s() >= kWarmUpShare * options_.spec.timeout_s) break;
      run_once();
    }
    cut_ = stopwatch_.boundaries_take_time() ? neighbours_together(steps_) : every_step(steps_);
    parts_are_steps_ = cut_.parts.size() == steps_.size();
    cut_.parts = stopwatch_.prepare(std::move(cut_.parts));
    part_samples_.resize(cut_.parts.size());
  }

  void sample() {
    const std::size_t before = samples_.size();
    const double start_s = clock_.now_s();
    do {
      take_one();
    } while (!finished(samples_.size() - before, sampling_s_ + (clock_.now_s() - start_s)));
    sampling_s_ += clock_.now_s() - start_s;
  }

  std::vector<double> time(const std::vector<Part>& parts,
                           std::vector<std::vector<double>>& samples, bool counted) {
    const SampleSetting setting{flusher_, options_.work, reader_of(parts)};
    stopwatch_.rest();
    std::vector<double> times_us = stopwatch_.time_sample(parts, setting);
    if (options_.work != nullptr) {
      options_.work->finish(counted ? std::optional(static_cast<std::int64_t>(samples_.size()))
                                    : std::nullopt);
    }
    for (std::size_t i = 0; i < parts.size(); ++i) samples[i].push_back(times_us[i]);
    return times_us;
  }

  /// The part with the first step that reads what is restored.
  std::size_t reader_of(const std::vector<Part>& parts) const {
    if (options_.work == nullptr) return 0;
    const std::size_t step = std::min(options_.work->first_reader(), steps_.size() - 1);
    if (parts.size() == steps_.size()) return step;
    if (parts.size() == 1) return 0;
    std::size_t part = 0;
    for (std::size_t i = 1; i <= step; ++i) {
      if (steps_[i].in_median != steps_[i - 1].in_median) ++part;
    }
    return part;
  }

  void take_one() {
    const std::vector<double> times_us = time(cut_.parts, part_samples_, true);
    double counted_us = 0;
    double total_us = 0;
    for (std::size_t i = 0; i < times_us.size(); ++i) {
      total_us += times_us[i];
      if (cut_.in_median[i]) counted_us += times_us[i];
    }
    samples_.push_back(counted_us);
    totals_.push_back(total_us);
    // A wait in a step that does not count is none of the sample that is stored.
    waits_.push_back(std::min(stopwatch_.waited_us(), counted_us));
    clocks_mhz_.push_back(stopwatch_.sm_mhz());
    moments_.add(counted_us);
  }

  void add_waits(Timing& timing) const {
    const double waited_us = std::accumulate(waits_.begin(), waits_.end(), 0.0);
    if (std::isnan(waited_us)) return;
    timing.waits_us = waits_;
    timing.cpu_wait = waited_us / std::accumulate(totals_.begin(), totals_.end(), 0.0);
  }

  void add_clocks(Timing& timing) const {
    const auto is_unknown = [](double mhz) { return std::isnan(mhz); };
    if (std::any_of(clocks_mhz_.begin(), clocks_mhz_.end(), is_unknown)) return;
    timing.samples_sm_mhz = clocks_mhz_;
    timing.cycles = median_cycles(samples_, clocks_mhz_);
  }

  /// Those of the parts, or samples taken here where a part held several steps.
  const std::vector<std::vector<double>>& samples_of_steps() {
    if (parts_are_steps_) return part_samples_;
    const std::vector<Part> parts = stopwatch_.prepare(every_step(steps_).parts);
    step_samples_.resize(parts.size());
    do {
      time(parts, step_samples_, false);
    } while (step_samples_[0].size() < num_beside() && !out_of_time(1));
    return step_samples_;
  }

  /// Those of the sums over the parts, or samples taken here where boundaries between parts would
  /// take time in them.
  const std::vector<double>& samples_of_whole() {
    if (cut_.parts.size() <= 1 || !stopwatch_.boundaries_take_time()) return totals_;
    Part all;
    for (const Step& step : steps_) all.push_back(step.run);
    const std::vector<Part> whole = stopwatch_.prepare({std::move(all)});
    whole_samples_.resize(1);
    do {
      time(whole, whole_samples_, false);
    } while (whole_samples_[0].size() < num_beside() && !out_of_time(1));
    return whole_samples_[0];
  }

  /// Samples of what stands beside the median.
  std::size_t num_beside() const {
    return std::clamp(samples_.size(), kMinSamples, kMostStepSamples);
  }

  bool out_of_time(double share) const {
    return stopped() || spent_s() >= share * options_.spec.timeout_s;
  }

  /// Whether a round with so many samples, and so much sampling in it and before it, is over.
  bool finished(std::size_t samples_of_round, double sampling_s) const {
    const TimingSpec& spec = options_.spec;
    if (out_of_time(share())) return true;
    const auto wanted = static_cast<std::size_t>(spec.samples.value_or(kMaxSamples));
    const auto rounds = static_cast<std::size_t>(options_.rounds);
    if (samples_.size() * rounds >= wanted * (rounds_.size() + 1)) return true;
    if (spec.samples) return false;
    // Why a factor: a median of all rounds that is that of one tells nothing of the others.
    const std::size_t first = rounds_.empty() ? 0 : static_cast<std::size_t>(rounds_.front());
    if (first > 0 && samples_of_round >= kMostOfFirst * first) return true;
    // Noise falls with the root of the samples, so a part of them may have more.
    return samples_of_round >= std::max(kMinSamples, first / kMostOfFirst) &&
           moments_.noise() * std::sqrt(share()) <= spec.max_noise &&
           sampling_s * 1e3 >= share() * spec.min_time_ms;
  }

  std::vector<Step> steps_;
  Stopwatch& stopwatch_;
  CacheFlusher* flusher_;
  const Clock& clock_;
  MeasureOptions options_;
  double turn_start_s_ = 0;
  double spent_s_ = 0;     // in the turns before
  double sampling_s_ = 0;  // of that without warm-up
  std::vector<std::int64_t> rounds_;
  Cut cut_;
  bool parts_are_steps_ = true;
  std::vector<std::vector<double>> part_samples_;
  std::vector<std::vector<double>> step_samples_;
  std::vector<std::vector<double>> whole_samples_;
  std::vector<double> samples_;
  std::vector<double> totals_;
  std::vector<double> waits_;
  std::vector<double> clocks_mhz_;
  RunningMoments moments_;
};

std::vector<double> Stopwatch::time_sample(const std::vector<Part>& parts,
                                           const SampleSetting& setting) {
  SampleWork* const work = setting.work;
  if (work != nullptr) {
    work->poison();
    work->rewrite();
  }
  if (setting.flusher != nullptr) setting.flusher->flush();
  if (work != nullptr) work->restore();
  std::vector<double> times_us = time_us(parts);
  if (work != nullptr) work->keep();
  return times_us;
}

std::vector<double> ClockStopwatch::time_sample(const std::vector<Part>& parts,
                                                const SampleSetting& setting) {
  if (setting.work != nullptr) {
    setting.work->poison();
    setting.work->rewrite();
  }
  if (setting.flusher != nullptr) setting.flusher->flush();
  return time_us(parts, setting.work, setting.reader);
}

std::vector<double> ClockStopwatch::time_us(const std::vector<Part>& parts, SampleWork* work,
                                            std::size_t reader) {
  std::vector<double> times_us;
  settle();
  const ThreadWaits before = watch_.waits ? watch_.waits() : ThreadWaits();
  settle();  // Why again: reading takes as long as threads stay awake where there are many.
  const auto ran_so_far_us = [this] { return watch_.ran_us ? watch_.ran_us() : 0; };
  double ran_us = ran_so_far_us();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (work != nullptr && i == reader) {
      const double before_us = ran_so_far_us();
      work->restore();
      settle();
      ran_us += ran_so_far_us() - before_us;
    }
    const double start_s = clock_.now_s();
    for (const auto& call : parts[i]) call();
    times_us.push_back((clock_.now_s() - start_s) * 1e6);
  }
  // Why before anything else: what a thread of the work goes on with comes too late.
  if (work != nullptr) work->keep();
  if (!watch_.waits) return times_us;
  const double elapsed_us = std::accumulate(times_us.begin(), times_us.end(), 0.0);
  const double ran_now_us = watch_.ran_us() - ran_us;
  waited_us_ =
      held_up_us(longest_wait_us(before, watch_.waits()), elapsed_us, ran_now_us, watch_.cores);
  return times_us;
}

double ClockStopwatch::launch_overhead_us() {
  const std::vector<Part> empty = {{[] {}}};
  std::vector<double> samples;
  for (int i = 0; i < kOverheadSamples; ++i) samples.push_back(time_us(empty)[0]);
  return median(std::move(samples));
}

Timing summarize_samples(std::vector<double> samples_us) {
  Timing timing;
  RunningMoments moments;
  for (const double sample : samples_us) moments.add(sample);
  timing.mean_us = samples_us.empty() ? kNaN : moments.mean();
  timing.stdev_us = moments.stdev();
  timing.noise = moments.noise();
  std::vector<double> sorted = samples_us;
  std::sort(sorted.begin(), sorted.end());
  timing.min_us = quantile(sorted, 0);
  timing.q1_us = quantile(sorted, 0.25);
  timing.median_us = quantile(sorted, 0.5);
  timing.q3_us = quantile(sorted, 0.75);
  timing.samples_us = std::move(samples_us);
  return timing;
}

double median_cycles(const std::vector<double>& samples_us, const std::vector<double>& mhz) {
  std::vector<double> cycles;
  for (std::size_t i = 0; i < std::min(samples_us.size(), mhz.size()); ++i) {
    cycles.push_back(samples_us[i] * mhz[i]);
  }
  return median(std::move(cycles));
}

int passes_of(const TimingSpec& spec, int passes) {
  return std::min(passes, spec.samples.value_or(passes));
}

TimingSpec pass_share(const TimingSpec& spec, int pass, int passes) {
  TimingSpec share = spec;
  passes = passes_of(spec, passes);
  if (spec.samples) {
    share.samples = *spec.samples * (pass + 1) / passes - *spec.samples * pass / passes;
  }
  share.min_time_ms /= passes;
  share.timeout_s /= passes;
  share.max_noise *= std::sqrt(passes);
  share.rounds = (spec.rounds + passes - 1) / passes;
  return share;
}

Measurement::Measurement(std::vector<Step> steps, Stopwatch& stopwatch, CacheFlusher* flusher,
                         const Clock& clock, MeasureOptions options)
    : stopwatch_(stopwatch),
      flusher_(options.spec.l2 == L2Mode::kWarm ? nullptr : flusher),
      sampler_(std::make_unique<Sampler>(std::move(steps), stopwatch, flusher_, clock,
                                         std::move(options))) {}

Measurement::~Measurement() = default;

void Measurement::take_round() { sampler_->take_round(); }

Timing Measurement::finish() {
  Timing timing = sampler_->timing();
  timing.l2 = to_string(flusher_ != nullptr ? flusher_->leaves() : L2Mode::kWarm);
  timing.flushed_bytes = flusher_ != nullptr ? flusher_->size_bytes() : 0;
  timing.mode = stopwatch_.mode();
  timing.pace = stopwatch_.pace();
  timing.launch_overhead_us = stopwatch_.launch_overhead_us();
  timing.clocks = stopwatch_.clocks();
  return timing;
}

Timing measure(const std::vector<Step>& steps, Stopwatch& stopwatch, CacheFlusher* flusher,
               const Clock& clock, const MeasureOptions& options) {
  Measurement measurement(steps, stopwatch, flusher, clock, options);
  for (int round = 0; round < options.rounds; ++round) measurement.take_round();
  return measurement.finish();
}

}  // namespace attnbench
