#include "metadata/parts/dcp_model.h"

#include <doctest/doctest.h>

namespace attnbench {
namespace {

/// Two decodes of 100 and 50 tokens, 8 heads of 64 elements in bfloat16 over two ranks.
Problem two_ranks(DcpComm comm) {
  Problem problem;
  problem.attention.num_heads = 8;
  problem.attention.dtype = Dtype::kBF16;
  problem.batch = {{1, 100}, {1, 50}};
  problem.dcp.world_size = 2;
  problem.dcp.comm = comm;
  return problem;
}

}  // namespace

TEST_CASE("a rank receives the query heads in 16 bits and the partial outputs in 32") {
  const DcpMessages ag_rs = dcp_messages(two_ranks(DcpComm::kAgRs), 2, 64, 64);
  CHECK(ag_rs.query == 2 * 4 * 64 * 2);
  CHECK(ag_rs.lse == 2 * 8 * 4);
  CHECK(ag_rs.output == 2 * 4 * 64 * 4);
  CHECK(ag_rs.count() == 3);
}

TEST_CASE("an all-reduce moves the outputs twice, an all-to-all the LSEs of own heads with them") {
  CHECK(dcp_messages(two_ranks(DcpComm::kAgAr), 2, 64, 64).output == 2 * 2 * 4 * 64 * 4);
  const DcpMessages a2a = dcp_messages(two_ranks(DcpComm::kA2a), 2, 64, 64);
  CHECK(a2a.output == 2 * 4 * (64 + 1) * 4);
  CHECK(a2a.lse == 0);
  CHECK(a2a.count() == 2);
}

TEST_CASE("one rank exchanges nothing") {
  Problem problem = two_ranks(DcpComm::kAgRs);
  problem.dcp.world_size = 1;
  CHECK(dcp_exchange_us(dcp_messages(problem, 2, 64, 64), {10, 100}) == 0);
}

TEST_CASE("a step's exchanges cost a latency each, and their bytes") {
  DcpMessages messages;
  messages.query = 400e3;
  messages.output = 600e3;
  CHECK(dcp_exchange_us(messages, {10, 100}) == doctest::Approx(2 * 10 + 10));
}

TEST_CASE("the slowest rank reads the context tokens that are on it") {
  // Contexts of 99 and 49 tokens: rank 0 has 50 and 25 of them.
  CHECK(dcp_context_bytes(two_ranks(DcpComm::kAgRs), 10) == 750);
}

}  // namespace attnbench
