// Losses of a scale, bin by bin, and the search for the scale of least squared error: coarse over
// six octaves, then fine around the best, since the error has several valleys.
#include "calibrate/scale_search.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "reference/quantise/number_formats.h"

namespace attnbench {
namespace {

constexpr float kInt8Max = 127.0f;
constexpr int kStepsPerOctave = 16;
constexpr int kOctavesAbove = 1;
constexpr int kOctavesBelow = 5;
constexpr int kFinerSteps = 16;
constexpr std::size_t kRefined = 3;  // the error has valleys, one for each way values meet codes

/// 2^(steps / 256), by multiplications and square roots only, which round alike: the same on every
/// machine.
double power_of_step(int steps) {
  constexpr int kFine = kStepsPerOctave * kFinerSteps;
  const double root = [] {
    double value = 2.0;
    for (int i = kFine; i > 1; i /= 2) value = std::sqrt(value);
    return value;
  }();
  int octaves = steps >= 0 ? steps / kFine : -((-steps + kFine - 1) / kFine);
  double result = std::ldexp(1.0, octaves);
  for (int i = octaves * kFine; i < steps; ++i) result *= root;
  return result;
}

struct Candidate {
  double error;
  float scale;
  int step;
  /// The larger scale of equals first: it leaves more room.
  bool operator<(const Candidate& other) const {
    return error != other.error ? error < other.error : scale > other.scale;
  }
};

bool saturates(float scaled, CodeGrid grid) {
  // Half a step above the largest code: what a grid without end would round to the next one.
  return grid == CodeGrid::kE4M3 ? saturates_e4m3(scaled) : scaled >= kInt8Max + 0.5f;
}

}  // namespace

float largest_code(CodeGrid grid) { return grid == CodeGrid::kE4M3 ? kE4m3Max : kInt8Max; }

float read_back(float value, float scale, CodeGrid grid) {
  const float scaled = value / scale;
  if (grid == CodeGrid::kE4M3) return e4m3_value(rn_e4m3(scaled)) * scale;
  return static_cast<float>(rn_i8(scaled)) * scale;
}

double squared_error(const Magnitudes& magnitudes, float scale, CodeGrid grid) {
  double sum = 0;
  for (const MagnitudeBin& bin : magnitudes.bins()) {
    const double error = double{bin.value} - double{read_back(bin.value, scale, grid)};
    sum += static_cast<double>(bin.count) * error * error;
  }
  return sum;
}

float best_scale(const Magnitudes& magnitudes, CodeGrid grid) {
  if (magnitudes.amax() == 0.0f) return 0.0f;
  const double unit = double{magnitudes.amax()} / double{largest_code(grid)};
  std::vector<Candidate> candidates;
  const auto try_steps = [&](int begin, int end, int stride) {
    for (int step = end; step >= begin; step -= stride) {
      const auto scale = static_cast<float>(unit * power_of_step(step));
      if (scale == 0.0f) continue;
      candidates.push_back({squared_error(magnitudes, scale, grid), scale, step});
    }
  };
  constexpr int kOctave = kStepsPerOctave * kFinerSteps;
  try_steps(-kOctavesBelow * kOctave, kOctavesAbove * kOctave, kFinerSteps);
  std::sort(candidates.begin(), candidates.end());
  std::vector<int> valleys;
  for (std::size_t i = 0; i < std::min(kRefined, candidates.size()); ++i) {
    valleys.push_back(candidates[i].step);
  }
  for (const int step : valleys) try_steps(step - kFinerSteps + 1, step + kFinerSteps - 1, 1);
  return candidates.empty() ? 0.0f : std::min_element(candidates.begin(), candidates.end())->scale;
}

ScaleLosses scale_losses(const Magnitudes& magnitudes, float scale, CodeGrid grid) {
  std::int64_t saturated = 0;
  std::int64_t flushed = 0;
  for (const MagnitudeBin& bin : magnitudes.bins()) {
    if (saturates(bin.value / scale, grid)) saturated += bin.count;
    if (read_back(bin.value, scale, grid) == 0.0f) flushed += bin.count;
  }
  const auto total = static_cast<double>(magnitudes.num_elements());
  return {static_cast<double>(saturated) / total, static_cast<double>(flushed) / total};
}

}  // namespace attnbench
