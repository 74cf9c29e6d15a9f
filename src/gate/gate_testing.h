// Cases and samples for tests of the gate: noise as machines give it, seeded.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench::gate_testing {

/// Timing of samples with the summary that a run stores; `waits_us` of each sample, or none.
inline Timing timing_of(std::vector<double> samples_us, std::vector<double> waits_us = {}) {
  Timing timing;
  timing.waits_us = std::move(waits_us);
  std::vector<double> sorted = samples_us;
  std::sort(sorted.begin(), sorted.end());
  const auto at = [&](double share) {
    const double position = share * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(position);
    const std::size_t above = std::min(below + 1, sorted.size() - 1);
    return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
  };
  timing.min_us = at(0);
  timing.q1_us = at(0.25);
  timing.median_us = at(0.5);
  timing.q3_us = at(0.75);
  const auto count = static_cast<double>(samples_us.size());
  double sum = 0;
  for (const double sample : samples_us) sum += sample;
  timing.mean_us = sum / count;
  double squares = 0;
  for (const double sample : samples_us) squares += std::pow(sample - timing.mean_us, 2);
  timing.stdev_us = std::sqrt(squares / (count - 1));
  timing.noise = 1.2533 * timing.stdev_us / std::sqrt(count) / timing.mean_us;
  timing.samples_us = std::move(samples_us);
  return timing;
}

/// Relative sizes; the time of a sample is the product of all parts.
struct NoiseModel {
  const char* name;
  double jitter = 0.01;      // standard deviation of every sample
  double run_offset = 0;     // a run, or a round of it, is off by up to this, either way
  double drift = 0;          // a run changes by up to this from its first to its last sample
  double slow_clock = 0;     // how much slower the slower of two clocks is
  double stay = 0;           // chance that a sample keeps the clock of the one before
  double outlier_share = 0;  // samples that are slower by up to outlier_size
  double outlier_size = 0;
  double held_up_share = 0;  // samples during which another program has a core
};

/// A case on a noisy machine; the same on every machine that runs the test.
class NoisyCase {
 public:
  NoisyCase(const NoiseModel& model, double true_us, std::uint64_t seed)
      : model_(model), true_us_(true_us), state_(seed), slow_share_(uniform()) {}

  /// The samples of one run, in order; every call is another run. Between rounds other cases are
  /// measured, for long enough that the machine is at something else.
  Timing run(int num_samples, double slowdown = 1, int rounds = 1) {
    double offset = either_way(model_.run_offset);
    const double drift = either_way(model_.drift);
    bool slow = uniform() < slow_share_;
    std::vector<double> samples;
    std::vector<double> waits;
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(rounds), 0);
    int round = 0;
    for (int i = 0; i < num_samples; ++i) {
      if (i * rounds / num_samples > round) {
        round = i * rounds / num_samples;
        offset = either_way(model_.run_offset);
        slow = uniform() < slow_share_;
      }
      ++sizes[static_cast<std::size_t>(round)];
      if (uniform() >= model_.stay) slow = uniform() < slow_share_;
      const double progress = static_cast<double>(i) / num_samples - 0.5;
      double time_us = true_us_ * slowdown * (1 + offset) * (1 + drift * progress);
      time_us *= std::max(1 + model_.jitter * normal(), 0.5);
      if (slow) time_us *= 1 + model_.slow_clock;
      if (uniform() < model_.outlier_share) time_us *= 1 + model_.outlier_size * uniform();
      waits.push_back(wait_us());
      samples.push_back(time_us + waits.back());
    }
    Timing timing = timing_of(std::move(samples), std::move(waits));
    if (rounds > 1) timing.rounds = std::move(sizes);
    return timing;
  }

 private:
  double uniform() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t bits = state_;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9U;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBU;
    return static_cast<double>((bits ^ (bits >> 31)) >> 11) * 0x1p-53;
  }
  /// A turn of another program: a tenth of a sample at least, as long as a sample on average
  /// beyond.
  double wait_us() {
    if (model_.held_up_share <= 0 || uniform() >= model_.held_up_share) return 0;
    return true_us_ * (0.1 - std::log(1 - uniform()));
  }
  double either_way(double size) { return size * (2 * uniform() - 1); }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

  NoiseModel model_;
  double true_us_;
  std::uint64_t state_;
  double slow_share_;
};

}  // namespace attnbench::gate_testing
