#include "backends/refusals.h"

#include <doctest/doctest.h>

namespace attnbench {

using Reasons = std::vector<std::string>;

TEST_CASE("reasons stand in the order in which they came, behind those that were known") {
  Problem problem;
  problem.attention.batch_invariant = true;
  problem.attention.causal = false;
  Refusals reasons(problem, {}, {"no library"});
  CHECK_FALSE(reasons.none());
  reasons.non_causal();
  reasons.add_if(false, "never");
  reasons.batch_invariance();
  reasons.add("last");
  CHECK(reasons.take() == Reasons{"no library", "non-causal attention not supported",
                                  "batch invariance not supported", "last"});
}

TEST_CASE("a row that does not apply to a family adds nothing, whatever the problem says") {
  Problem problem;
  problem.attention.causal = false;
  problem.attention.batch_invariant = true;
  problem.kv_cache.int8_level = 1;
  problem.dcp.world_size = 2;
  Refusals reasons(problem);
  reasons.non_causal(false);
  reasons.batch_invariance(false);
  reasons.int8(false);
  reasons.dcp_without_lse(false);
  CHECK(reasons.none());
  reasons.int8_with_dcp();
  CHECK(reasons.take() == Reasons{"DCP with int8 attention"});
}

TEST_CASE("real ranks are timed as a stream and as a graph") {
  Problem problem;
  problem.dcp.world_size = 2;
  DeviceFacts device;
  device.nccl = device.mpi = {"", 2};
  for (const TimingMode mode : {TimingMode::kStream, TimingMode::kGraph}) {
    problem.timing.mode = mode;
    for (const DcpTransport transport :
         {DcpTransport::kNccl, DcpTransport::kMpi, DcpTransport::kSimulated}) {
      problem.dcp.transport = transport;
      Refusals reasons(problem, device);
      reasons.dcp_transport();
      CHECK(reasons.take().empty());
    }
  }
}

TEST_CASE("a range of one token makes no tokens see each other") {
  Problem problem;
  problem.attention.mm_prefix_ranges = {{0, {{3, 3}}}};
  CHECK_FALSE(has_mm_prefix(problem.attention));
  problem.attention.mm_prefix_ranges = {{0, {{3, 3}}}, {1, {{2, 2}, {4, 9}}}};
  CHECK(has_mm_prefix(problem.attention));
}

TEST_CASE("compute capabilities have a first and a last one") {
  const Problem problem;
  const auto refused = [&](int sm) {
    DeviceFacts device;
    device.sm = sm;
    Refusals reasons(problem, device);
    reasons.compute_capability(80, 90);
    return !reasons.none();
  };
  CHECK(refused(75));
  CHECK_FALSE(refused(80));
  CHECK_FALSE(refused(90));
  CHECK(refused(100));
}

}  // namespace attnbench
