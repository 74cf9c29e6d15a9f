#include "metadata/parts/dcp_model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

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

TEST_CASE("the slowest rank takes its share of the context, and half of what two ranks share") {
  const Problem problem = two_ranks(DcpComm::kAgRs);
  const DcpLink link{10, 100};
  const std::vector<DcpStep> steps{{"write_cache", 4},      {"all_gather_query", 1000},
                                   {"attend_context", 148}, {"all_gather_lse", 1000},
                                   {"correct", 8},          {"reduce_scatter", 1000},
                                   {"attend_new", 6},       {"merge", 2}};
  // Contexts of 99 and 49 tokens: rank 0 has 50 and 25, which is 75 of 148. What the exchanges cost
  // on one device does not count.
  const double expected = 75 + (4 + 8 + 6 + 2) / 2.0 + dcp_exchange_us(dcp_messages(problem), link);
  CHECK(dcp_critical_path_us(problem, steps, link) == doctest::Approx(expected));
  Problem one = problem;
  one.dcp.world_size = 1;
  CHECK(std::isnan(dcp_critical_path_us(one, steps, link)));
}

TEST_CASE("steps over more ranks are those of docs/dcp-model.md") {
  Problem problem = two_ranks(DcpComm::kAgRs);
  AttentionSpec& a = problem.attention;
  a.num_heads = 64;
  a.num_kv_heads = 8;
  a.head_size = a.v_head_size = 128;
  problem.dcp.interleave_size = 1;
  problem.batch.assign(16, {1, 131072});
  const auto step = [&](int ranks) {
    return dcp_step_us(problem, ranks, kH200Rank, ranks > kMostNvLinkRanks ? kNetwork : kNvLink);
  };
  for (const auto& [ranks, us] :
       {std::pair{1, 1955}, {2, 1039}, {4, 558}, {8, 317}, {16, 254}, {32, 195}, {64, 168}}) {
    CAPTURE(ranks);
    CHECK(std::round(step(ranks)) == us);
  }
}

TEST_CASE("a step takes the longer one of reading and computing, and the kernels around it") {
  Problem problem = two_ranks(DcpComm::kAgRs);
  problem.attention.type = AttentionType::kMla;
  problem.attention.num_heads = 8;
  problem.mla.kv_lora_rank = 48;
  problem.mla.qk_rope_head_dim = 16;
  problem.batch = {{1, 1001}};
  // 500 tokens on a rank, of 64 elements each; for 8 heads 64 + 48 products and as many sums.
  const double read = 500.0 * 64 * 2;
  const double computed = 2.0 * 500 * 8 * (64 + 48);
  const DcpLink link{10, 100};
  const double around = 7 + 4 + dcp_exchange_us(dcp_messages(problem), link);
  CHECK(dcp_step_us(problem, 2, {1, 1e3, 5, 7, 3, 4}, link) ==
        doctest::Approx(read / 1e3 + around));
  CHECK(dcp_step_us(problem, 2, {1e3, 1e-3, 5, 7, 3, 4}, link) ==
        doctest::Approx(computed / 1e3 + around));
  CHECK(dcp_step_us(problem, 1, {1, 1e3, 5, 7, 3, 4}, link) == doctest::Approx(2 * read / 1e3 + 7));
  problem.attention.type = AttentionType::kDecoder;
  problem.attention.num_kv_heads = 1;
  problem.attention.head_size = problem.attention.v_head_size = 32;
  CHECK(dcp_step_us(problem, 1, {1, 1e3, 5, 7, 3, 4}, link) == doctest::Approx(2 * read / 1e3 + 5));
  CHECK(dcp_step_us(problem, 2, {1, 1e3, 5, 7, 3, 4}, link) ==
        doctest::Approx(read / 1e3 + 5 + 3 + dcp_exchange_us(dcp_messages(problem), link)));
}

TEST_CASE("a query that is gathered beside the new tokens costs what they do not hide") {
  Problem problem = two_ranks(DcpComm::kA2a);
  problem.attention.head_size = problem.attention.v_head_size = 64;
  const DcpLink link{10, 100};
  const DcpMessages messages = dcp_messages(problem);
  const double gather = dcp_gather_us(messages, link);
  CHECK(gather == doctest::Approx(10 + messages.query / 100e3));
  for (const double fresh : {4.0, 400.0}) {
    const std::vector<DcpStep> steps{{"all_gather_query", 1000}, {"attend_new", 2 * fresh},
                                     {"await_query", 1000},      {"attend_context", 148},
                                     {"all_to_all", 1000},       {"merge", 2}};
    problem.dcp.overlap = false;
    const double apart = dcp_critical_path_us(problem, steps, link);
    problem.dcp.overlap = true;
    const double beside = dcp_critical_path_us(problem, steps, link);
    CHECK(apart - beside == doctest::Approx(std::min(fresh, gather)));
    CHECK(beside == doctest::Approx(75 + 1 + std::max(fresh, gather) +
                                    dcp_exchange_us(messages, link) - gather));
  }
}

TEST_CASE("prefills of MLA share the heads and gather their context") {
  Problem problem = two_ranks(DcpComm::kAgRs);
  problem.attention.type = AttentionType::kMla;
  problem.mla.kv_lora_rank = 48;
  problem.mla.qk_rope_head_dim = 16;
  problem.batch = {{20, 1020}};
  const std::vector<DcpStep> steps{
      {"all_gather_context", 70}, {"attend_context", 100}, {"all_gather_context", 70}};
  // Half of 1000 entries of 64 elements of 2 bytes, in two messages.
  CHECK(dcp_critical_path_us(problem, steps, {10, 100}) ==
        doctest::Approx(50 + 2 * 10 + 1000 * 64 * 2 / 2 / 100e3));
}

TEST_CASE("messages of a step are those of its kind of attention") {
  Problem problem = two_ranks(DcpComm::kAgRs);
  problem.attention.head_size = problem.attention.v_head_size = 64;
  CHECK(dcp_messages(problem).total() == dcp_messages(problem, 2, 64, 64).total());
  problem.attention.type = AttentionType::kMla;
  problem.mla.kv_lora_rank = 48;
  problem.mla.qk_rope_head_dim = 16;
  problem.batch.push_back({9, 100});  // a prefill, whose query stays where it is
  CHECK(dcp_messages(problem).total() == dcp_messages(problem, 2, 64, 48).total());
}

}  // namespace attnbench
