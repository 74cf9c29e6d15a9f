#include "calibrate/scale_search.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "inputs/random.h"

namespace attnbench {
namespace {

Magnitudes magnitudes_of(const std::vector<float>& values) {
  Magnitudes magnitudes;
  magnitudes.add(values);
  return magnitudes;
}

/// The nearest of all codes, found by trying them.
double nearest_error(float value, float scale, CodeGrid grid) {
  double least = std::numeric_limits<double>::infinity();
  for (int code = 0; code <= 127; ++code) {
    double magnitude = code;
    if (grid == CodeGrid::kE4M3) {
      if (code == 127) continue;  // NaN
      const int exponent = code >> 3;
      magnitude =
          exponent == 0 ? std::ldexp(code & 7, -9) : std::ldexp(8 + (code & 7), exponent - 10);
    }
    least = std::min(least, std::fabs(double{value} - magnitude * double{scale}));
  }
  return least;
}

}  // namespace

TEST_CASE("the squared error is to the nearest code of the grid itself") {
  for (const CodeGrid grid : {CodeGrid::kE4M3, CodeGrid::kInt8}) {
    for (const float scale : {0.25f, 0.003f, 1.0f}) {
      for (const float value : {0.0009765625f, 0.3f, 1.0f, 17.25f, 111.0f, 3000.0f}) {
        const Magnitudes one = magnitudes_of({round_to(Dtype::kBF16, -value)});
        const double expected = nearest_error(round_to(Dtype::kBF16, value), scale, grid);
        CHECK(std::sqrt(squared_error(one, scale, grid)) ==
              doctest::Approx(expected).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("a scale that suits the codes of most values beats that of the largest one") {
  // All on the e4m3 grid of scale 1/4 and none on that of amax / 448.
  const Magnitudes magnitudes = magnitudes_of({0.25f, 0.75f, 3.25f, 60.0f, 44.0f});
  CHECK(squared_error(magnitudes, 0.25f, CodeGrid::kE4M3) == 0);
  CHECK(squared_error(magnitudes, best_scale(magnitudes, CodeGrid::kE4M3), CodeGrid::kE4M3) <
        squared_error(magnitudes, 60.0f / 448, CodeGrid::kE4M3));
}

TEST_CASE("the best scale is hardly worse than any other") {
  std::vector<float> values{13.0f, -9.0f};
  for (int i = 1; i < 20000; ++i) {
    values.push_back(static_cast<float>(portable_log(20000.0 / i) * (i % 2 == 0 ? 0.3 : -0.3)));
  }
  const Magnitudes magnitudes = magnitudes_of(values);
  for (const CodeGrid grid : {CodeGrid::kE4M3, CodeGrid::kInt8}) {
    const double found = squared_error(magnitudes, best_scale(magnitudes, grid), grid);
    const double top = 26.0 / largest_code(grid);
    for (int i = 1; i < 400; ++i) {
      const double other = squared_error(magnitudes, static_cast<float>(top * i / 400), grid);
      CHECK(found <= 1.003 * other);
    }
  }
}

TEST_CASE("int8 gives up a lone outlier where the others gain more, e4m3 need not") {
  std::vector<float> values{1.5f};
  for (int i = 1; i <= 100'000; ++i) values.push_back(0.5f * static_cast<float>(i) / 100'000);
  const Magnitudes magnitudes = magnitudes_of(values);
  const float int8 = best_scale(magnitudes, CodeGrid::kInt8);
  CHECK(int8 * 127 > 0.5f);
  CHECK(int8 * 127 < 1.4f);
  CHECK(scale_losses(magnitudes, int8, CodeGrid::kInt8).saturated ==
        doctest::Approx(1 / 100'001.0));
  const float e4m3 = best_scale(magnitudes, CodeGrid::kE4M3);
  CHECK(scale_losses(magnitudes, e4m3, CodeGrid::kE4M3).saturated == 0);
}

TEST_CASE("shares of saturated and flushed values are those of the codes") {
  // e4m3 of scale 1: 465 saturates, 464 rounds to 448; 2^-10 is a tie to zero, 2^-9 a code.
  const Magnitudes magnitudes = magnitudes_of({468, 464, 0x1p-10f, -0x1p-10f, 0x1p-9f, 0, 1, -500});
  const ScaleLosses losses = scale_losses(magnitudes, 1.0f, CodeGrid::kE4M3);
  CHECK(losses.saturated == 2.0 / 8);
  CHECK(losses.flushed == 2.0 / 8);
  const ScaleLosses int8 = scale_losses(magnitudes_of({127, 128, 0.5f, 0.75f}), 1, CodeGrid::kInt8);
  CHECK(int8.saturated == 1.0 / 4);
  CHECK(int8.flushed == 1.0 / 4);
}

TEST_CASE("nothing but zeros has no scale") {
  CHECK(best_scale(magnitudes_of({0, 0}), CodeGrid::kE4M3) == 0);
  CHECK(best_scale(Magnitudes(), CodeGrid::kInt8) == 0);
}

}  // namespace attnbench
