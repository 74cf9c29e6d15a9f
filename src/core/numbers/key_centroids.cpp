// The centroids of vLLM's TurboQuant: the quantiser of Lloyd (1957) and Max (1960) for a normal
// distribution, found by iteration. The numbers where the iteration ends depend on its steps, which
// are therefore part of the definition: in float64 and operation by operation as upstream has them
// (model_executor/layers/quantization/turboquant/centroids.py), so that the results are the same
// bits.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

#include "core/numbers/kv_format.h"

namespace attnbench {
namespace {

constexpr int kMostIterations = 200;
constexpr double kTolerance = 1e-10;  // no centroid moves further: the iteration has ended
constexpr int kIntervals = 200;       // of an integral by trapezoids
constexpr double kReach = 3.5;        // standard deviations over which the first centroids spread
constexpr double kTail = 3.0;         // times kReach is where the outermost cells end

struct Normal {
  double variance;

  double density(double x) const {
    const double height = 1.0 / std::sqrt(2 * std::numbers::pi * variance);
    return height * std::exp(-x * x / (2 * variance));
  }
};

/// Integral of f from `begin` to `end` by trapezoids of one width.
template <typename Function>
double integral(double begin, double end, Function f) {
  const double width = (end - begin) / kIntervals;
  double sum = 0.5 * (f(begin) + f(end));
  for (int i = 1; i < kIntervals; ++i) sum += f(begin + i * width);
  return sum * width;
}

/// Mean of the distribution inside of a cell; `fallback` where the cell has next to no mass.
double mean_of_cell(const Normal& normal, double begin, double end, double fallback) {
  const double moment = integral(begin, end, [&](double x) { return x * normal.density(x); });
  const double mass = integral(begin, end, [&](double x) { return normal.density(x); });
  return mass > 1e-15 ? moment / mass : fallback;
}

/// Every centroid as the mean of its cell, which ends midway to its neighbours.
std::vector<double> next_centroids(const Normal& normal, const std::vector<double>& centroids,
                                   double most) {
  std::vector<double> next(centroids.size());
  for (std::size_t i = 0; i < centroids.size(); ++i) {
    const bool is_last = i + 1 == centroids.size();
    const double begin = i == 0 ? -most * kTail : (centroids[i - 1] + centroids[i]) / 2.0;
    const double end = is_last ? most * kTail : (centroids[i] + centroids[i + 1]) / 2.0;
    next[i] = mean_of_cell(normal, begin, end, centroids[i]);
  }
  return next;
}

}  // namespace

std::vector<float> key_centroids(const SlotCodes& slot, int head_size) {
  if (slot.key_bits == 8) return {};
  const Normal normal{1.0 / head_size};
  const double most = kReach * std::sqrt(normal.variance);
  std::vector<double> centroids(std::size_t{1} << slot.key_bits);
  const auto count = static_cast<double>(centroids.size());
  for (std::size_t i = 0; i < centroids.size(); ++i) {
    centroids[i] = -most + (most + most) * (static_cast<double>(i) + 0.5) / count;
  }
  for (int iteration = 0; iteration < kMostIterations; ++iteration) {
    const std::vector<double> next = next_centroids(normal, centroids, most);
    double moved = 0;
    for (std::size_t i = 0; i < next.size(); ++i) {
      moved = std::max(moved, std::fabs(next[i] - centroids[i]));
    }
    // Upstream leaves with the centroids before its last step.
    if (moved < kTolerance) break;
    centroids = next;
  }
  return {centroids.begin(), centroids.end()};
}

}  // namespace attnbench
