#include "metadata/mask/mm_prefix.h"

#include "metadata/test_support.h"

namespace attnbench {
namespace {

using Ranges = std::vector<MmRange>;

TEST_CASE("ranges are packed to the longest list with (0, 0) as padding") {
  const auto packed = pack_mm_ranges(std::vector<Ranges>{{{1, 4}}, {}, {{2, 3}, {7, 9}}});
  REQUIRE(packed);
  CHECK(packed->num_requests == 3);
  CHECK(packed->max_ranges == 2);
  CHECK(packed->values == std::vector<int32_t>{1, 4, 0, 0, 0, 0, 0, 0, 2, 3, 7, 9});
}

TEST_CASE("no tensor is built when every request is trivial") {
  CHECK_FALSE(pack_mm_ranges(std::vector<Ranges>{}));
  CHECK_FALSE(pack_mm_ranges(std::vector<Ranges>{{}, {{0, 0}}}));
  CHECK(pack_mm_ranges(std::vector<Ranges>{{}, {{3, 3}}}));
}

TEST_CASE("only ranges of two tokens or more take effect, cut at the sequence end") {
  CHECK(effective_mm_ranges(Ranges{{0, 0}, {3, 3}, {1, 4}, {4, 99}, {6, 8}}, 6) ==
        Ranges{{1, 4}, {4, 5}});
}

TEST_CASE("negative and reversed ranges are refused") {
  CHECK(error_of([] { effective_mm_ranges(Ranges{{-1, 4}}, 6); }) == "E-VALUE");
  CHECK(error_of([] { effective_mm_ranges(Ranges{{4, 3}}, 6); }) == "E-VALUE");
  CHECK(error_of([] { pack_mm_ranges(std::vector<Ranges>{{{4, 3}}}); }) == "E-VALUE");
  CHECK(error_of([] {
          pack_mm_ranges(std::vector<Ranges>{{{4, int64_t{1} << 40}}});
        }) == "E-CAPACITY");
}

}  // namespace
}  // namespace attnbench
