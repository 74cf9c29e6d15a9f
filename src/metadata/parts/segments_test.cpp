#include "metadata/parts/segments.h"

#include "metadata/test_support.h"

namespace attnbench {
namespace {

TEST_CASE("the 3D threshold is 128 over the KV heads, moved to the nearest capture size") {
  CHECK(seq_threshold_3d(8) == 16);
  CHECK(seq_threshold_3d(1) == 128);
  CHECK(seq_threshold_3d(3) == 42);
  CHECK(seq_threshold_3d(129) == 0);
  CHECK(seq_threshold_3d(6, std::vector<int>{1, 2, 4, 8, 16, 24}) == 24);
  CHECK(seq_threshold_3d(8, std::vector<int>{8, 24}) == 8);
  CHECK(seq_threshold_3d(8, std::vector<int>{24, 8}) == 24);
  CHECK(error_of([] { seq_threshold_3d(0); }) == "E-SHAPE");
}

TEST_CASE("3D serves small decode batches only") {
  CHECK(use_3d_path({}, 1, 16, 16, false));
  CHECK_FALSE(use_3d_path({}, 1, 17, 16, false));
  CHECK_FALSE(use_3d_path({}, 2, 16, 16, false));
  CHECK_FALSE(use_3d_path({}, 1, 16, 16, true));
  CHECK(use_3d_path(true, 1, 1000, 16, false));
  CHECK_FALSE(use_3d_path(false, 1, 1, 16, false));
  CHECK(error_of([] { use_3d_path(true, 2, 1, 16, false); }) == "E-CONFIG");
  CHECK(error_of([] { use_3d_path(false, 2, 1, 16, false); }) == "none");
}

TEST_CASE("few decodes have more segments than Triton's where the device has places for them") {
  CHECK(num_softmax_segments(1, 8, 132) == 32);
  CHECK(num_softmax_segments(2, 8, 132) == 16);
  CHECK(num_softmax_segments(1, 8, 127) == 16);
  CHECK(num_softmax_segments(1, 8, 128) == 32);
  CHECK(num_softmax_segments(1, 4, 132) == 64);
  CHECK(num_softmax_segments(1, 1, 132) == 64);
  CHECK(num_softmax_segments(4, 1, 132) == 64);
  CHECK(num_softmax_segments(16, 8, 132) == 16);
  CHECK(num_softmax_segments(0, 8, 132) == 64);
}

TEST_CASE("segment plans match the golden values") {
  struct Golden {
    int64_t seq_len, tiles_per_segment;
    int num_active;
  };
  for (const Golden& golden :
       {Golden{100, 1, 7}, {1000, 4, 16}, {5000, 20, 16}, {1, 1, 1}, {0, 0, 0}}) {
    const SegmentPlan plan = plan_segments(golden.seq_len, 16, 16);
    CHECK(plan.tiles_per_segment == golden.tiles_per_segment);
    CHECK(plan.num_active == golden.num_active);
  }
}

TEST_CASE("active segments cover every key once and the others none") {
  Draw draw(5);
  for (int round = 0; round < 2000; ++round) {
    const int64_t seq_len = draw(0, 3000);
    const SegmentPlan plan = plan_segments(seq_len, 16 * draw(1, 2), draw(1, 20));
    int64_t next = 0;
    for (int g = 0; g < plan.num_active; ++g) {
      const KeySegment keys = segment_keys(plan, g);
      REQUIRE(keys.begin == next);
      REQUIRE(keys.end > keys.begin);
      next = keys.end;
    }
    REQUIRE(next == seq_len);
    const KeySegment idle = segment_keys(plan, plan.num_active);
    REQUIRE(idle.begin == idle.end);
  }
  CHECK(error_of([] { plan_segments(5, 0); }) == "E-CONFIG");
  CHECK(error_of([] { plan_segments(-1, 16); }) == "E-VALUE");
}

}  // namespace
}  // namespace attnbench
