#include "gate/change_points.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attnbench {
namespace {

/// Continued fraction of the incomplete beta function, by the modified method of Lentz. Converges
/// quickly for x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr int kMaxTerms = 300;
  constexpr double kTiny = 1e-300;
  constexpr double kEnough = 1e-15;
  const auto nonzero = [](double value) { return std::abs(value) < kTiny ? kTiny : value; };
  double c = 1;
  double d = 1 / nonzero(1 - (a + b) * x / (a + 1));
  double fraction = d;
  for (int m = 1; m <= kMaxTerms; ++m) {
    const double k = 2.0 * m;
    const double even = m * (b - m) * x / ((a + k - 1) * (a + k));
    d = 1 / nonzero(1 + even * d);
    c = nonzero(1 + even / c);
    fraction *= c * d;
    const double odd = -(a + m) * (a + b + m) * x / ((a + k) * (a + k + 1));
    d = 1 / nonzero(1 + odd * d);
    c = nonzero(1 + odd / c);
    fraction *= c * d;
    if (std::abs(c * d - 1) < kEnough) break;
  }
  return fraction;
}

/// I_x(a, b).
double regularized_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
                                a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

/// Of a gap whose variance was estimated with so many degrees of freedom.
double two_sided_p(double gap, double variance, double degrees) {
  if (gap == 0) return 1;
  if (variance == 0) return 0;
  return regularized_beta(degrees / 2, 0.5, degrees / (degrees + gap * gap / variance));
}

double mean(const std::vector<double>& values, std::size_t begin, std::size_t end) {
  double sum = 0;
  for (std::size_t i = begin; i < end; ++i) sum += values[i];
  return sum / static_cast<double>(end - begin);
}

double squares(const std::vector<double>& values, std::size_t begin, std::size_t end) {
  const double center = mean(values, begin, end);
  double sum = 0;
  for (std::size_t i = begin; i < end; ++i) sum += (values[i] - center) * (values[i] - center);
  return sum;
}

/// Welch's test, which trusts each part by its own spread alone. Each part needs two values.
double welch_p(const std::vector<double>& values, std::size_t begin, std::size_t middle,
               std::size_t end) {
  const auto left = static_cast<double>(middle - begin);
  const auto right = static_cast<double>(end - middle);
  const double a = squares(values, begin, middle) / (left - 1) / left;
  const double b = squares(values, middle, end) / (right - 1) / right;
  const double gap = mean(values, begin, middle) - mean(values, middle, end);
  const double degrees = (a + b) * (a + b) / (a * a / (left - 1) + b * b / (right - 1));
  return two_sided_p(gap, a + b, a + b > 0 ? degrees : 1);
}

/// The divergence of Matteson and James with exponent 1, by sums of distances.
class Divergence {
 public:
  explicit Divergence(const std::vector<double>& values)
      : count_(values.size()), sums_((count_ + 1) * count_, 0.0) {
    for (std::size_t i = 0; i < count_; ++i) {
      for (std::size_t j = 0; j < count_; ++j) {
        sums_[(i + 1) * count_ + j] = sums_[i * count_ + j] + std::abs(values[i] - values[j]);
      }
    }
  }

  struct Split {
    std::size_t middle = 0;
    std::size_t end = 0;
    double divergence = -std::numeric_limits<double>::infinity();
  };

  /// The split of [begin, end) whose parts, the second of which may end early, differ most.
  Split best_split(std::size_t begin, std::size_t end, std::size_t least) const {
    Split best;
    double inside_left = 0;
    for (std::size_t middle = begin; middle + least <= end; ++middle) {
      if (middle >= begin + least) try_ends(begin, middle, end, least, inside_left, best);
      inside_left += distance(begin, middle, middle);
    }
    return best;
  }

 private:
  /// Sum of |values[i] - values[j]| over i in [from, to).
  double distance(std::size_t from, std::size_t to, std::size_t j) const {
    return sums_[to * count_ + j] - sums_[from * count_ + j];
  }

  void try_ends(std::size_t begin, std::size_t middle, std::size_t end, std::size_t least,
                double inside_left, Split& best) const {
    const auto left = static_cast<double>(middle - begin);
    double between = 0;
    double inside_right = 0;
    for (std::size_t j = middle; j < end; ++j) {
      between += distance(begin, middle, j);
      inside_right += distance(middle, j, j);
      if (j + 1 < middle + least) continue;
      const auto right = static_cast<double>(j + 1 - middle);
      const double divergence = left * right / (left + right) *
                                (2 * between / (left * right) - average(inside_left, left) -
                                 average(inside_right, right));
      if (divergence > best.divergence) best = {middle, j + 1, divergence};
    }
  }

  /// Of a sum over the pairs of `count` values.
  static double average(double sum, double count) {
    return count < 2 ? 0 : 2 * sum / (count * (count - 1));
  }

  std::size_t count_;
  std::vector<double> sums_;  // [count + 1, count]: over the first values, of distances to each
};

/// Splits [begin, end) at the weak level, and its parts; adds the first index of each second part.
void split(const std::vector<double>& values, const Divergence& divergence, std::size_t begin,
           std::size_t end, const ChangePointOptions& options, std::vector<std::size_t>& points) {
  if (end - begin < 2 * options.least_count) return;
  const Divergence::Split best = divergence.best_split(begin, end, options.least_count);
  if (best.middle == 0 || student_p(values, begin, best.middle, best.end) > options.weak_p) return;
  split(values, divergence, begin, best.middle, options, points);
  points.push_back(best.middle);
  split(values, divergence, best.middle, end, options, points);
}

/// The points with what lies on both sides of each.
std::vector<ChangePoint> described(const std::vector<double>& values,
                                   const std::vector<std::size_t>& points) {
  std::vector<ChangePoint> described;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::size_t begin = i == 0 ? 0 : points[i - 1];
    const std::size_t end = i + 1 == points.size() ? values.size() : points[i + 1];
    described.push_back({points[i], mean(values, begin, points[i]), mean(values, points[i], end),
                         points[i] - begin, end - points[i],
                         student_p(values, begin, points[i], end)});
  }
  return described;
}

}  // namespace

double student_p(const std::vector<double>& values, std::size_t begin, std::size_t middle,
                 std::size_t end) {
  const auto left = static_cast<double>(middle - begin);
  const auto right = static_cast<double>(end - middle);
  const double degrees = left + right - 2;
  const double variance = (squares(values, begin, middle) + squares(values, middle, end)) / degrees;
  const double gap = mean(values, begin, middle) - mean(values, middle, end);
  return two_sided_p(gap, variance * (1 / left + 1 / right), degrees);
}

std::vector<ChangePoint> change_points(const std::vector<double>& values,
                                       const ChangePointOptions& options) {
  if (values.size() < 2 * options.least_count) return {};
  const Divergence divergence(values);
  std::vector<std::size_t> points;
  split(values, divergence, 0, values.size(), options, points);
  while (!points.empty()) {
    const std::vector<ChangePoint> all = described(values, points);
    // The least certain goes first: without it the others have longer neighbours.
    const auto weakness = [&](const ChangePoint& point) {
      const std::size_t begin = point.index - point.count_before;
      const bool is_small = std::abs(point.mean_after - point.mean_before) < options.min_difference;
      // Why: beside a long quiet part the pooled variance hides that a short one is two outliers
      // and an ordinary value.
      const bool is_mixed =
          welch_p(values, begin, point.index, point.index + point.count_after) > options.weak_p;
      return is_small || is_mixed ? 1 + point.p : point.p;
    };
    const auto weakest =
        std::max_element(all.begin(), all.end(),
                         [&](const auto& a, const auto& b) { return weakness(a) < weakness(b); });
    if (weakness(*weakest) <= options.strict_p) return all;
    points.erase(points.begin() + (weakest - all.begin()));
  }
  return {};
}

}  // namespace attnbench
