#include "metadata/parts/dcp.h"

#include <numeric>

#include "metadata/test_support.h"

namespace attnbench {
namespace {

using Ints = std::vector<int32_t>;

TEST_CASE("local lengths match the golden values") {
  const auto lens = [](int32_t length, int world, int interleave) {
    return dcp_local_seq_lens(Ints{length}, {world, interleave});
  };
  CHECK(lens(0, 4, 1) == Ints{0, 0, 0, 0});
  CHECK(lens(1, 4, 1) == Ints{1, 0, 0, 0});
  CHECK(lens(10, 4, 1) == Ints{3, 3, 2, 2});
  CHECK(lens(10, 2, 4) == Ints{6, 4});
  CHECK(lens(17, 4, 4) == Ints{5, 4, 4, 4});
  CHECK(lens(65, 4, 16) == Ints{17, 16, 16, 16});
  CHECK(lens(100, 2, 16) == Ints{52, 48});
}

TEST_CASE("local lengths of a batch are one row a request, or one column for a rank") {
  CHECK(dcp_local_seq_lens(Ints{10, 1}, {4, 1}) == Ints{3, 3, 2, 2, 1, 0, 0, 0});
  CHECK(dcp_local_seq_lens(Ints{10, 1}, 3, {4, 1}) == Ints{2, 0});
  CHECK(dcp_local_seq_lens(Ints{10, 1}, {1, 1}) == Ints{10, 1});
}

TEST_CASE("local lengths count the positions of a rank, sum to the length and keep the bound") {
  Draw draw(3);
  for (int round = 0; round < 3000; ++round) {
    const DcpGroup group = {draw(1, 9), draw(1, 20)};
    const int32_t length = draw(0, 400);
    Ints counted(static_cast<size_t>(group.world_size), 0);
    for (int64_t p = 0; p < length; ++p) {
      const int rank = dcp_rank_of(p, group);
      REQUIRE(dcp_local_index(p, group) == counted[static_cast<size_t>(rank)]);
      REQUIRE(dcp_global_position(dcp_local_index(p, group), rank, group) == p);
      ++counted[static_cast<size_t>(rank)];
    }
    const Ints lens = dcp_local_seq_lens(Ints{length}, group);
    REQUIRE(lens == counted);
    REQUIRE(std::accumulate(lens.begin(), lens.end(), 0) == length);
    for (const int32_t len : lens) REQUIRE(len <= dcp_max_local_seq_len(length, group));
  }
}

TEST_CASE("heads are dealt out evenly and bad groups are refused") {
  CHECK(dcp_heads_of_rank(32, 3, 4) == HeadSpan{24, 32});
  CHECK(error_of([] { dcp_heads_of_rank(30, 0, 4); }) == "E-SHAPE");
  CHECK(error_of([] { dcp_heads_of_rank(32, 4, 4); }) == "E-VALUE");
  CHECK(error_of([] { dcp_local_seq_len(-1, 0, {2, 1}); }) == "E-VALUE");
  CHECK(error_of([] { dcp_local_seq_len(1, 2, {2, 1}); }) == "E-VALUE");
  CHECK(error_of([] { check_dcp_group({2, 16}, 16); }) == "none");
  CHECK(error_of([] { check_dcp_group({0, 1}, 16); }) == "E-CONFIG");
  CHECK(error_of([] { check_dcp_group({2, 0}, 16); }) == "E-CONFIG");
  CHECK(error_of([] { check_dcp_group({2, 3}, 16); }) == "E-CONFIG");
  CHECK(error_of([] { check_dcp_group({2, 32}, 16); }) == "E-CONFIG");
}

}  // namespace
}  // namespace attnbench
