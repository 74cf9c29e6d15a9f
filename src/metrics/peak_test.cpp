#include "metrics/peak.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace attnbench {

TEST_CASE("peaks of a cycle give the published rates at the published clocks") {
  const auto tflops = [](int sm, PeakType type, int sms, double mhz) {
    return operations_per_cycle(sm, type) * sms * mhz * 1e-6;
  };
  CHECK(tflops(80, PeakType::kF16, 108, 1410) == doctest::Approx(312).epsilon(0.01));
  CHECK(tflops(80, PeakType::kI8, 108, 1410) == doctest::Approx(624).epsilon(0.01));
  CHECK(tflops(80, PeakType::kF32, 108, 1410) == doctest::Approx(19.5).epsilon(0.01));
  CHECK(tflops(89, PeakType::kF16, 142, 2520) == doctest::Approx(362).epsilon(0.02));
  CHECK(tflops(89, PeakType::kE4M3, 142, 2520) == doctest::Approx(733).epsilon(0.02));
  CHECK(tflops(90, PeakType::kF16, 132, 1830) == doctest::Approx(989.4).epsilon(0.01));
  CHECK(tflops(90, PeakType::kE4M3, 132, 1830) == doctest::Approx(1978.9).epsilon(0.01));
  CHECK(tflops(90, PeakType::kF32, 132, 1980) == doctest::Approx(66.9).epsilon(0.01));
  CHECK(tflops(100, PeakType::kF16, 148, 1850) == doctest::Approx(2250).epsilon(0.01));
}

TEST_CASE("the share of the peak is of the cycles, and unknown where one figure is missing") {
  CHECK(peak_share(1e6, 1000, 4000) == doctest::Approx(25));
  CHECK(std::isnan(peak_share(1e6, std::numeric_limits<double>::quiet_NaN(), 4000)));
  CHECK(std::isnan(peak_share(1e6, 0, 4000)));
  CHECK(std::isnan(peak_share(1e6, 1000, operations_per_cycle(75, PeakType::kF16))));
  CHECK(std::isnan(peak_share(1e6, 1000, operations_per_cycle(80, PeakType::kE4M3))));
}

}  // namespace attnbench
