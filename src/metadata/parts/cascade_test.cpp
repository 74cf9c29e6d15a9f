#include "metadata/parts/cascade.h"

#include "metadata/test_support.h"

namespace attnbench {
namespace {

using Ints = std::vector<int32_t>;

CascadeQuestion question(int64_t prefix, const Ints& query_lens, int heads = 32, int kv_heads = 8) {
  return {.common_prefix_len = prefix,
          .query_lens = query_lens,
          .num_heads = heads,
          .num_kv_heads = kv_heads};
}

TEST_CASE("the cascade heuristic matches the golden values") {
  const Ints q8(8, 1), q16(16, 1), q32(32, 1), q64(64, 1), q256(256, 1), long8(8, 4);
  CHECK_FALSE(use_cascade_attention(question(255, q64)));
  CHECK_FALSE(use_cascade_attention(question(256, q8)));
  CHECK_FALSE(use_cascade_attention(question(1024, q8)));
  CHECK_FALSE(use_cascade_attention(question(4096, q16)));
  CHECK(use_cascade_attention(question(4096, q32)));
  CHECK(use_cascade_attention(question(4096, q64)));
  CHECK(use_cascade_attention(question(2048, q256, 64)));
  CHECK(use_cascade_attention(question(512, long8)));
}

TEST_CASE("features that cascade cannot serve and small batches turn it off") {
  const Ints lens(32, 1), seven(7, 4);
  const auto with = [&](auto change) {
    CascadeQuestion q = question(4096, lens);
    change(q);
    return use_cascade_attention(q);
  };
  CHECK(with([](CascadeQuestion&) {}));
  CHECK_FALSE(with([](CascadeQuestion& q) { q.use_alibi = true; }));
  CHECK_FALSE(with([](CascadeQuestion& q) { q.use_sliding_window = true; }));
  CHECK_FALSE(with([](CascadeQuestion& q) { q.use_local_attention = true; }));
  CHECK_FALSE(with([](CascadeQuestion& q) { q.dcp_world_size = 2; }));
  CHECK_FALSE(with([&](CascadeQuestion& q) { q.query_lens = seven; }));
}

TEST_CASE("without grouped heads flash decoding is no rival, so cascade is taken") {
  const Ints lens(8, 1);
  CHECK(use_cascade_attention(question(256, lens, 8, 8)));
}

TEST_CASE("a prefix is whole blocks, inside every context, and shared by every row") {
  const Ints contexts = {40, 32};
  const Ints table = {4, 5, 9, 4, 5, 8};  // [2, 3]
  const auto check = [&](int64_t prefix) {
    return error_of([&] { check_cascade_prefix(prefix, 16, contexts, table, 3); });
  };
  CHECK(check(16) == "none");
  CHECK(check(32) == "none");
  CHECK(check(0) == "E-CONFIG");
  CHECK(check(24) == "E-CONFIG");
  CHECK(check(48) == "E-CONFIG");
  const Ints unshared = {4, 5, 9, 4, 6, 8};
  CHECK(error_of([&] { check_cascade_prefix(32, 16, contexts, unshared, 3); }) == "E-VALUE");
  CHECK(error_of([&] { check_cascade_prefix(16, 16, contexts, table, 2); }) == "E-SHAPE");
  CHECK(cascade_suffix_lens(Ints{41, 33}, 32) == Ints{9, 1});
  CHECK(error_of([] { cascade_suffix_lens(Ints{31}, 32); }) == "E-CONFIG");
}

}  // namespace
TEST_CASE("prefix groups are those of the scenario, or one of all requests") {
  Problem problem;
  problem.batch.assign(8, {1, 600});
  CHECK(prefix_groups(problem).empty());
  CHECK(shared_prefixes(problem)[3].group == -1);
  problem.cascade.common_prefix_len = 512;
  REQUIRE(prefix_groups(problem).size() == 1);
  CHECK(prefix_groups(problem)[0].num_requests == 8);
  CHECK(shared_prefixes(problem)[7].num_keys == 512);
  problem.cascade.common_prefix_len = 0;
  problem.cascade.groups = {{3, 512}, {4, 256}};
  const std::vector<PrefixGroup> groups = prefix_groups(problem);
  REQUIRE(groups.size() == 2);
  CHECK(groups[1].first_request == 3);
  CHECK(groups[1].num_requests == 4);
  const std::vector<SharedPrefix> shared = shared_prefixes(problem);
  CHECK(shared[2].num_keys == 512);
  CHECK(shared[2].first_key == 0);
  CHECK(shared[3].num_keys == 256);
  CHECK(shared[3].first_key == 512);
  CHECK(shared[7].num_keys == 0);
}

TEST_CASE("of several groups the heuristic has to say yes for each, with the device's SMs") {
  Problem problem;
  problem.attention.num_heads = 32;
  problem.attention.num_kv_heads = 8;
  problem.batch.assign(96, {1, 5000});
  CHECK_FALSE(heuristic_cascades(problem, 132));
  problem.cascade.common_prefix_len = 4096;
  CHECK(heuristic_cascades(problem, 132));
  problem.cascade.common_prefix_len = 0;
  problem.cascade.groups = {{32, 4096}, {64, 4096}};
  CHECK(heuristic_cascades(problem, 132));
  problem.cascade.groups = {{16, 4096}, {64, 4096}};  // 16 requests alone: no
  CHECK_FALSE(heuristic_cascades(problem, 132));
  CHECK(heuristic_cascades(problem, 20));  // fewer waves at once
  problem.attention.sink_values = {std::numeric_limits<double>::infinity()};
  CHECK_FALSE(heuristic_cascades(problem, 20));
}

}  // namespace attnbench
