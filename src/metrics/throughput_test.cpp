#include "metrics/throughput.h"

#include <doctest/doctest.h>

#include <cmath>

namespace attnbench {

TEST_CASE("rates are work over time in their units") {
  const Work work{.flops = 4e9, .unique_bytes = 2e6, .kv_bytes = 3e6, .tokens = 50};
  const Throughput result = compute_throughput(work, 1000, {});  // one millisecond
  CHECK(result.tflops == doctest::Approx(4));
  CHECK(result.gbps == doctest::Approx(2));
  CHECK(result.kv_gbps == doctest::Approx(3));
  CHECK(result.tokens_per_s == doctest::Approx(50000));
  CHECK(result.flops == 4e9);
  CHECK(result.bytes == 2e6);
}

TEST_CASE("the ceiling that the work meets first names the bound and the roofline share") {
  const Ceilings ceilings{.tflops = 10, .gbps = 100};
  // 1e12 flops take 100 ms at best, 1e9 bytes 10 ms.
  const Throughput compute = compute_throughput({1e12, 1e9, 0, 1}, 200e3, ceilings);
  CHECK(compute.bound == "compute");
  CHECK(compute.ceiling_tflops == 10);
  CHECK(compute.ceiling_gbps == 100);
  CHECK(compute.roofline_pct == doctest::Approx(50));
  const Throughput memory = compute_throughput({1e10, 1e9, 0, 1}, 40e3, ceilings);
  CHECK(memory.bound == "memory");
  CHECK(memory.roofline_pct == doctest::Approx(25));
}

TEST_CASE("a share above the ceiling is shown as it is") {
  CHECK(compute_throughput({1e12, 1, 0, 1}, 50e3, {10, 100}).roofline_pct == doctest::Approx(200));
}

TEST_CASE("without measured ceilings there is no roofline share and no bound") {
  const Throughput result = compute_throughput({1e12, 1e9, 0, 1}, 1, {});
  CHECK(std::isnan(result.roofline_pct));
  CHECK(result.bound.empty());
  CHECK(std::isnan(result.ceiling_tflops));
  CHECK(std::isnan(result.ceiling_gbps));
}

TEST_CASE("no time gives no rate") {
  CHECK(std::isnan(compute_throughput({1, 1, 1, 1}, 0, {}).gbps));
}

namespace {

// A device of 100 TFLOP/s and 1,000 GB/s with a cache of 50 MB.
const Physics kGpu{{.tflops = 100, .gbps = 1000}, 1, 50e6, true};
const Physics kCpu{{.tflops = 100, .gbps = 1000}, 1, 50e6, false};
/// 1e12 FLOP: 10 ms at least.
const Work kMatrix{.flops = 1e12, .unique_bytes = 1e6};
/// 1 GB, of which a tenth are results: 1 ms at least, or 0.95 ms when they stay in the cache.
const Work kStream{.flops = 1e6, .unique_bytes = 1e9, .cacheable_bytes = 0.1e9};

bool believed(const Work& work, double median_us, bool is_cold, const Physics& physics) {
  return judge_physics(work, median_us, is_cold, physics).accusation.empty();
}

}  // namespace

TEST_CASE("a time is believed up to 110 percent of the matrix ceiling") {
  for (const bool is_cold : {false, true}) {
    CHECK(believed(kMatrix, 10e3 / 1.09, is_cold, kGpu));
    CHECK_FALSE(believed(kMatrix, 10e3 / 1.11, is_cold, kGpu));
  }
  const Belief belief = judge_physics(kMatrix, 5e3, true, kGpu);
  CHECK(belief.physics_pct == doctest::Approx(200));
  CHECK(belief.accusation ==
        "faster than the device can be: 5000 us is 200% of the measured matrix ceiling, of which "
        "110% is believed: 1000 GFLOP at 100 TFLOP/s take 1e+04 us at least");
}

TEST_CASE("matrix units are believed up to their peak at the observed clock") {
  Physics gpu = kGpu;  // 100 TFLOP/s
  gpu.ceilings.per_cycle = 80'000;
  gpu.clock_mhz = 1500;  // 120 TFLOP/s
  CHECK(believed(kMatrix, 10e3 / 1.19, true, gpu));
  CHECK_FALSE(believed(kMatrix, 10e3 / 1.21, true, gpu));
  CHECK(judge_physics(kMatrix, 10e3 / 1.21, true, gpu).accusation.find("120% is believed") !=
        std::string::npos);
  // At a low clock, or one that is not known, the ceiling decides.
  for (const double clock : {1000.0, 0.0, -1500.0, std::nan(""), HUGE_VAL}) {
    gpu.clock_mhz = clock;
    CHECK(believed(kMatrix, 10e3 / 1.09, true, gpu));
    CHECK_FALSE(believed(kMatrix, 10e3 / 1.11, true, gpu));
  }
}

TEST_CASE("cold memory of a GPU is believed up to 105 percent, of a CPU up to 110") {
  // Results may stay in the cache: 50 of their 100 MB.
  CHECK(believed(kStream, 950 / 1.04, true, kGpu));
  CHECK_FALSE(believed(kStream, 950 / 1.06, true, kGpu));
  CHECK(believed(kStream, 950 / 1.09, true, kCpu));
  CHECK_FALSE(believed(kStream, 950 / 1.11, true, kCpu));
}

TEST_CASE("warm caches may hold as much as they are large, or anything where that is not known") {
  CHECK(believed(kStream, 950 / 1.09, false, kGpu));
  CHECK_FALSE(believed(kStream, 950 / 1.11, false, kGpu));
  const Work small{.flops = 1e6, .unique_bytes = 40e6, .cacheable_bytes = 1e6};
  CHECK(believed(small, 1, false, kGpu));
  CHECK_FALSE(believed(small, 1, true, kGpu));
  Physics unknown = kCpu;
  unknown.cache_bytes.reset();
  CHECK(believed(kStream, 1, false, unknown));
  CHECK_FALSE(believed(kStream, 1, true, unknown));
}

TEST_CASE("units that are faster than those of the roofline are no accusation") {
  Physics wide = kCpu;
  wide.faster_units = 32;
  CHECK(believed(kMatrix, 10e3 / 30, true, wide));
  CHECK_FALSE(believed(kMatrix, 10e3 / 36, true, wide));
}

TEST_CASE("the rate of two kinds of work lies between theirs, by the time that each takes") {
  CHECK(mixed_rate(0.5, 3, 1) ==
        doctest::Approx(1.5));  // 1 s for a half of 3, and 3 s for the other
  CHECK(mixed_rate(1, 3, 1) == doctest::Approx(3));
  CHECK(mixed_rate(0, 3, 1) == doctest::Approx(1));
  CHECK(mixed_rate(0.5, 0, 1) == 0);
  CHECK(mixed_rate(0.5, 3, 0) == 0);
}

TEST_CASE("work in no time is not believed, and no work or no ceiling accuses nobody") {
  CHECK_FALSE(believed(kMatrix, 0, true, kGpu));
  CHECK_FALSE(believed(kMatrix, std::nan(""), true, kGpu));
  CHECK(believed({}, 0, true, kGpu));
  CHECK(believed(kMatrix, 1, true, {}));
  CHECK(std::isnan(judge_physics(kMatrix, 1, true, {}).physics_pct));
}

}  // namespace attnbench
