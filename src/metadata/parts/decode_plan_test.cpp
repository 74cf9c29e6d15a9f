#include "metadata/parts/decode_plan.h"

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

TEST_CASE("every block is in exactly one part, and splits count the parts of a request") {
  Draw draw(8);
  for (int round = 0; round < 2000; ++round) {
    Ints lens(static_cast<size_t>(draw(1, 12)));
    for (auto& len : lens) len = draw(0, 3) == 0 ? 0 : draw(1, 4000);
    const DecodePlan plan = plan_decode(lens, draw(1, 40), draw(0, 6));
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
