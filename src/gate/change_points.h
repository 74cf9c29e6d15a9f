// When a series of measurements changed: change points by E-divisive.
//
// The method is that of Matteson and James ("A Nonparametric Approach for Multiple Change Point
// Analysis of Multivariate Data", arXiv:1306.4933), with two changes that Fleming et al. made for
// performance tests ("Hunter: Using Change Point Detection to Hunt for Performance Regressions",
// arXiv:2301.03034; Apache Otava): significance is told by Student's t and not by permutations, so
// that the same series always gives the same points; and points are first accepted at a weak level,
// then reviewed against both of their neighbours at a strict one, since a single strict pass stops
// at the first split that looks harmless. Beyond that, Welch's test has to hold at the weak level,
// which keeps out a few outliers in a row.
//
// The caller decides what a value is. Times are best given as logarithms: then a difference of
// means is a relative change, and the spread of a slow machine is that of a fast one.
#pragma once

#include <cstddef>
#include <vector>

namespace attnbench {

struct ChangePoint {
  std::size_t index = 0;   // of the first value after the change
  double mean_before = 0;  // of the values since the change point before, or the start
  double mean_after = 0;   // of the values up to the next change point, or the end
  std::size_t count_before = 0;
  std::size_t count_after = 0;
  double p = 1;  // that values of one distribution are this far apart, two-sided
};

struct ChangePointOptions {
  double weak_p = 0.05;       // of a first split
  double strict_p = 0.001;    // of a point that stays
  double min_difference = 0;  // of the means; smaller changes are left out
  /// Values that a side must have. Why three: two in a row may share one bad night.
  std::size_t least_count = 3;
};

/// The change points of `values` in the order of the series; empty for fewer than twice
/// `least_count` values. All values must be finite. O(n^2) in time and memory.
std::vector<ChangePoint> change_points(const std::vector<double>& values,
                                       const ChangePointOptions& options = {});

/// Two-sided p of Student's t-test with pooled variance between values[begin, middle) and
/// values[middle, end): 0 for constant parts that differ, 1 for equal ones. Each part needs a
/// value, both together three.
double student_p(const std::vector<double>& values, std::size_t begin, std::size_t middle,
                 std::size_t end);

}  // namespace attnbench
