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

}  // namespace attnbench
