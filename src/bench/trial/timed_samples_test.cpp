#include "bench/trial/timed_samples.h"

#include <doctest/doctest.h>

#include <string>

#include "backends/backend.h"

namespace attnbench {
namespace {

/// Memory at 1 GB/s behind a cache of that size, and any arithmetic.
class SlowMemory final : public DeviceSpeed {
 public:
  explicit SlowMemory(double cache_bytes) : cache_bytes_(cache_bytes) {}
  Ceilings ceilings(const Problem&, const Backend&) override { return {1e6, 1, 0}; }
  Physics physics(const Problem&, const Backend&) override {
    return {{1e6, 1, 0}, 1, cache_bytes_, true};
  }
  void measure_again() override {}

 private:
  double cache_bytes_;
};

Problem over(DcpTransport transport) {
  Problem problem;
  problem.attention.num_heads = 8;
  problem.attention.num_kv_heads = 2;
  problem.attention.head_size = problem.attention.v_head_size = 64;
  problem.attention.scale = 0.125;
  problem.batch = {{1, 700}};
  problem.kv_cache.num_blocks = 100;
  problem.dcp.world_size = 2;
  problem.dcp.transport = transport;
  return problem;
}

/// With a time of 0.6 of what one device takes at least. Returns the accusation.
std::string judge_at_060(const Problem& problem, Result& result, const char* l2 = "warm",
                         double cache_bytes = 0) {
  const Backend& backend = *find_backend("FLASH_ATTN");
  SlowMemory speed(cache_bytes);
  result.timing.emplace();
  result.timing->l2 = l2;
  result.timing->median_us = 1;
  judge_speed(problem, backend, nullptr, result);
  result.timing->median_us = 0.6 * result.throughput->bytes / 1e3;
  return judge_speed(problem, backend, &speed, result);
}

}  // namespace

TEST_CASE("real ranks have the ceilings of all their devices, simulated ones those of one") {
  Result simulated;
  const std::string accusation = judge_at_060(over(DcpTransport::kSimulated), simulated);
  CHECK(accusation.find("faster than the device can be") != std::string::npos);
  CHECK(simulated.throughput->roofline_pct == doctest::Approx(100 / 0.6));
  for (const DcpTransport transport : {DcpTransport::kNccl, DcpTransport::kMpi}) {
    Result real;
    CHECK(judge_at_060(over(transport), real).empty());
    CHECK(real.throughput->roofline_pct == doctest::Approx(50 / 0.6));
  }
}

TEST_CASE("the caches of ranks over MPI count as warm, because only those of rank 0 are emptied") {
  for (const DcpTransport transport :
       {DcpTransport::kSimulated, DcpTransport::kNccl, DcpTransport::kMpi}) {
    for (const std::string l2 : {"cold", "clean"}) {
      Timing timing;
      timing.l2 = l2;
      note_ranks(over(transport), timing);
      CHECK(timing.l2 == (transport == DcpTransport::kMpi ? "warm" : l2));
    }
  }
}

TEST_CASE("of a time on clean caches as much is believed as of one on cold caches") {
  const auto share = [](const char* l2) {
    Result result;
    judge_at_060(over(DcpTransport::kSimulated), result, l2, /*cache_bytes=*/1e5);
    return result.throughput->by_name.at("physics_pct");
  };
  CHECK(share("clean") == share("cold"));
  CHECK(share("clean") != share("warm"));
}

}  // namespace attnbench
