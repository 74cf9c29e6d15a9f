#include "gate/change_points.h"

#include <doctest/doctest.h>

#include <cmath>

namespace attnbench {
namespace {

/// Evenly spread noise without a period that a split could take for a step.
double noise(std::size_t i) {
  const double fraction = static_cast<double>(i + 1) * 0.6180339887498949;
  return 0.02 * (fraction - std::floor(fraction) - 0.5);
}

std::vector<double> steps(const std::vector<std::pair<std::size_t, double>>& parts) {
  std::vector<double> values;
  for (const auto& [count, level] : parts) {
    for (std::size_t i = 0; i < count; ++i) values.push_back(level + noise(values.size()));
  }
  return values;
}

std::vector<std::size_t> indices(const std::vector<ChangePoint>& points) {
  std::vector<std::size_t> found;
  for (const ChangePoint& point : points) found.push_back(point.index);
  return found;
}

}  // namespace

TEST_CASE("p of Student's t is that of tables") {
  // t = sqrt(6) of 4 degrees: means 1 and 3, pooled variance 1, three values each.
  CHECK(student_p({0, 1, 2, 2, 3, 4}, 0, 3, 6) == doctest::Approx(0.0704840));
  // t = 2 of 10 degrees: pooled variance 1.2, six values each.
  const double gap = 2 * std::sqrt(1.2 / 3);
  CHECK(student_p({-1, 1, -1, 1, -1, 1, gap - 1, gap + 1, gap - 1, gap + 1, gap - 1, gap + 1}, 0, 6,
                  12) == doctest::Approx(0.0733880));
  CHECK(student_p({1, 1, 2, 2}, 0, 2, 4) == 0);
  CHECK(student_p({1, 1, 1, 1}, 0, 2, 4) == 1);
}

TEST_CASE("a series without a change has no change point") {
  CHECK(change_points(steps({{60, 1.0}})).empty());
  CHECK(change_points({1, 1, 1, 1, 1, 1, 1, 1}).empty());
  CHECK(change_points({1, 2, 3}).empty());  // too short to tell
}

TEST_CASE("a step is found at its first value, with what it changed") {
  const std::vector<ChangePoint> points = change_points(steps({{20, 1.0}, {5, 1.1}}));
  REQUIRE(points.size() == 1);
  CHECK(points[0].index == 20);
  CHECK(points[0].mean_before == doctest::Approx(1.0).epsilon(0.01));
  CHECK(points[0].mean_after == doctest::Approx(1.1).epsilon(0.01));
  CHECK(points[0].count_before == 20);
  CHECK(points[0].count_after == 5);
  CHECK(points[0].p < 1e-6);
}

TEST_CASE("a regression that was repaired is two changes, although the ends are alike") {
  CHECK(indices(change_points(steps({{15, 1.0}, {6, 1.1}, {15, 1.0}}))) ==
        std::vector<std::size_t>{15, 21});
}

TEST_CASE("several steps in one direction are found one by one") {
  CHECK(indices(change_points(steps({{12, 1.0}, {12, 1.05}, {12, 1.2}}))) ==
        std::vector<std::size_t>{12, 24});
}

TEST_CASE("one outlier, and two in a row, are no change") {
  std::vector<double> values = steps({{30, 1.0}});
  values[12] = 1.5;
  CHECK(change_points(values).empty());
  values[13] = 1.5;
  CHECK(change_points(values).empty());
}

TEST_CASE("a change that is smaller than the least one is left out") {
  const std::vector<double> values = steps({{20, 1.0}, {20, 1.03}});
  CHECK(indices(change_points(values)) == std::vector<std::size_t>{20});
  ChangePointOptions options;
  options.min_difference = 0.05;
  CHECK(change_points(values, options).empty());
}

}  // namespace attnbench
