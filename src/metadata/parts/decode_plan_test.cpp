#include "metadata/parts/decode_plan.h"

#include <algorithm>
#include <array>

#include "metadata/test_support.h"

namespace attnbench {
namespace {

using Ints = std::vector<int32_t>;

void check_part(const DecodePart& part, const Ints& expected) {
  CHECK(Ints{part.begin_req, part.end_req, part.begin_block, part.end_block, part.begin_split} ==
        expected);
}

TEST_CASE("decode plans match the golden values") {
  const DecodePlan plan = plan_decode(Ints{1000, 64, 0, 300}, 3, kDecodePlanDenseOverhead);
  CHECK(plan.num_blocks == Ints{16, 1, 1, 5});
  CHECK(plan.payload == 20);
  CHECK(plan.num_splits == Ints{0, 2, 3, 4, 5});
  REQUIRE(plan.parts.size() == 3);
  check_part(plan.parts[0], {0, 0, 0, 15, 0});
  check_part(plan.parts[1], {0, 2, 15, 0, 1});
  check_part(plan.parts[2], {3, 3, 0, 5, 0});
  CHECK(plan.parts[0].first_req_split == 1);
  CHECK(plan.parts[0].last_req_split == 1);
  CHECK(plan.parts[1].first_req_split == 1);
  CHECK(plan.parts[1].last_req_split == 0);
  CHECK(plan.parts[2].first_req_split == 0);
  CHECK(plan.parts[2].last_req_split == 0);
}

TEST_CASE("one long request is split over all parts as in the golden values") {
  const DecodePlan plan = plan_decode(Ints{4096}, 4, 5);
  CHECK(plan.payload == 23);
  CHECK(plan.num_splits == Ints{0, 4});
  check_part(plan.parts[0], {0, 0, 0, 18, 0});
  check_part(plan.parts[1], {0, 0, 18, 36, 1});
  check_part(plan.parts[2], {0, 0, 36, 54, 2});
  check_part(plan.parts[3], {0, 0, 54, 64, 3});
}

TEST_CASE("parts without work have an empty request range") {
  const DecodePlan plan = plan_decode(Ints{64}, 3, 5);
  check_part(plan.parts[0], {0, 0, 0, 1, 0});
  for (size_t i = 1; i < 3; ++i) CHECK(plan.parts[i].begin_req > plan.parts[i].end_req);
  const DecodePlan empty = plan_decode(Ints{}, 2, 5);
  CHECK(empty.num_splits == Ints{0});
  for (const DecodePart& part : empty.parts) CHECK(part.begin_req > part.end_req);
}

TEST_CASE("a sparse plan takes a count of 0 as one index") {
  CHECK(plan_decode(Ints{0}, 1, 5, false).parts[0].end_block == 0);
  CHECK(plan_decode(Ints{0}, 1, 5, true).parts[0].end_block == 1);
}

/// Every block is in exactly one part, and the splits of a request are the parts that have it.
void check_deals_out(const Ints& lens, const DecodePlan& plan) {
  std::vector<Ints> covered;
  for (const int32_t blocks : plan.num_blocks) {
    covered.emplace_back(static_cast<size_t>(blocks), 0);
  }
  Ints parts_of_request(lens.size(), 0);
  for (const DecodePart& part : plan.parts) {
    for (int32_t req = part.begin_req; req <= part.end_req; ++req) {
      const auto r = static_cast<size_t>(req);
      const int32_t begin = req == part.begin_req ? part.begin_block : 0;
      int32_t end = req == part.end_req ? part.end_block : plan.num_blocks[r];
      if (lens[r] == 0) end = 1;  // its single block holds nothing
      if (req == part.begin_req) REQUIRE(part.begin_split == parts_of_request[r]);
      ++parts_of_request[r];
      for (int32_t block = begin; block < end; ++block) {
        ++covered[r].at(static_cast<size_t>(block));
      }
    }
  }
  for (size_t r = 0; r < lens.size(); ++r) {
    REQUIRE(covered[r] == Ints(covered[r].size(), 1));
    REQUIRE(plan.num_splits[r + 1] - plan.num_splits[r] == parts_of_request[r]);
  }
  for (const DecodePart& part : plan.parts) {
    if (part.begin_req > part.end_req) continue;
    const auto first = static_cast<size_t>(part.begin_req);
    const auto last = static_cast<size_t>(part.end_req);
    REQUIRE((part.first_req_split == 1) == (parts_of_request[first] > 1));
    REQUIRE((part.last_req_split == 1) ==
            (parts_of_request[last] > 1 && lens[last] != 0 &&
             (part.end_block != plan.num_blocks[last] || part.begin_req == part.end_req)));
  }
}

Ints draw_lens(Draw& draw) {
  Ints lens(static_cast<size_t>(draw(1, 12)));
  for (auto& len : lens) len = draw(0, 3) == 0 ? 0 : draw(1, 4000);
  return lens;
}

TEST_CASE("every block is in exactly one part, and splits count the parts of a request") {
  Draw draw(8);
  for (int round = 0; round < 2000; ++round) {
    const Ints lens = draw_lens(draw);
    check_deals_out(lens, plan_decode(lens, draw(1, 40), draw(0, 6)));
  }
}

/// Blocks and overhead of the fullest part.
int64_t fullest(const DecodePlan& plan) {
  int64_t most = 0;
  for (const DecodePart& part : plan.parts) {
    int64_t load = 0;
    for (int32_t req = part.begin_req; req <= part.end_req; ++req) {
      const int32_t begin = req == part.begin_req ? part.begin_block : 0;
      const auto blocks = plan.num_blocks[static_cast<size_t>(req)];
      load += (req == part.end_req ? part.end_block : blocks) - begin + kDecodePlanDenseOverhead;
    }
    most = std::max(most, load);
  }
  return most;
}

TEST_CASE("a dense decode takes whole requests where they fill the parts") {
  const DecodePlan plan = plan_dense_decode(Ints(128, 4096), 66);
  CHECK(plan.payload == 2 * (64 + kDecodePlanDenseOverhead));
  CHECK(plan.num_splits.back() == 128);
  check_part(plan.parts[0], {0, 1, 0, 64, 0});
  check_part(plan.parts[63], {126, 127, 0, 64, 0});
  CHECK(plan.parts[64].begin_req > plan.parts[64].end_req);
  // 522 blocks against 517 in splits: the five cost less than partial results do.
  CHECK(plan_dense_decode(Ints(128, 16384), 66).num_splits.back() == 128);
}

TEST_CASE("a dense decode splits requests where whole ones would leave parts without work") {
  for (const auto& [requests, len, parts] :
       std::vector<std::array<int, 3>>{{64, 4096, 132}, {32, 32768, 66}, {1, 131072, 66}}) {
    const Ints lens(static_cast<size_t>(requests), len);
    const DecodePlan plan = plan_dense_decode(lens, parts);
    CHECK(plan.num_splits.back() > requests);
    CHECK(plan.payload <= plan_decode(lens, parts, kDecodePlanDenseOverhead).payload);
  }
  Ints skewed(64, 100);
  skewed[17] = 100000;
  CHECK(plan_dense_decode(skewed, 66).num_splits.back() > 64);
}

TEST_CASE("a dense decode in splits has the least payload that is enough") {
  const DecodePlan plan = plan_dense_decode(Ints(64, 4096), 132);
  CHECK(plan.payload == 32 + kDecodePlanDenseOverhead);
  check_part(plan.parts[0], {0, 0, 0, 32, 0});
  check_part(plan.parts[127], {63, 63, 32, 64, 1});
  CHECK(plan.parts[128].begin_req > plan.parts[128].end_req);
  CHECK(plan.is_split());
  CHECK(plan_decode(Ints(64, 4096), 132, kDecodePlanDenseOverhead).parts[0].end_block == 34);
  CHECK_FALSE(plan_dense_decode(Ints(128, 4096), 132).is_split());
  CHECK_FALSE(plan_dense_decode(Ints{}, 3).is_split());
}

TEST_CASE("plans of dense decodes deal out every block, and none is much fuller than with splits") {
  Draw draw(9);
  int whole = 0;
  int split = 0;
  for (int round = 0; round < 2000; ++round) {
    const Ints lens = draw_lens(draw);
    const int parts = draw(1, 12);
    const DecodePlan plan = plan_dense_decode(lens, parts);
    REQUIRE(plan.parts.size() == static_cast<size_t>(parts));
    check_deals_out(lens, plan);
    const DecodePlan even = plan_decode(lens, parts, kDecodePlanDenseOverhead);
    REQUIRE(fullest(plan) <= even.payload + kDecodePlanSplitCost);
    ++(plan.num_splits.back() == static_cast<int32_t>(lens.size()) ? whole : split);
  }
  CHECK(whole > 100);
  CHECK(split > 100);
}

TEST_CASE("part counts follow the launch formulas") {
  CHECK(dense_decode_parts(132, 1, 128, 1) == 66);
  CHECK(dense_decode_parts(132, 2, 128, 1) == 33);
  CHECK(dense_decode_parts(132, 1, 16, 1) == 132);
  CHECK(dense_decode_parts(4, 8, 128, 1) == 1);
  CHECK(sparse_decode_parts(132, 1, 128) == 66);
  CHECK(sparse_decode_parts(132, 2, 64) == 66);
  CHECK(error_of([] { sparse_decode_parts(132, 1, 16); }) == "E-SHAPE");
  CHECK(error_of([] { dense_decode_parts(132, 0, 16, 1); }) == "E-SHAPE");
  CHECK(error_of([] { plan_decode(Ints{1}, 0, 5); }) == "E-CONFIG");
  CHECK(error_of([] { plan_decode(Ints{-1}, 1, 5); }) == "E-VALUE");
}

}  // namespace
}  // namespace attnbench
