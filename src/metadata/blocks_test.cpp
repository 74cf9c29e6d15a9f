#include "metadata/blocks.h"

#include "metadata/test_support.h"

namespace attnbench {
namespace {

using Ints = std::vector<int32_t>;
using Rules = std::vector<BlockSizeRule>;

const Rules kIxRules = {{16}, {32}, {64}};
const Rules kAny16 = {{16, true}};
const Rules kMla = {{64}};

TEST_CASE("a manager block becomes a run of kernel blocks") {
  CHECK(map_to_kernel_blocks(Ints{3, 0}, 64, 16) == Ints{12, 13, 14, 15, 0, 1, 2, 3});
  CHECK(map_to_kernel_blocks(Ints{3, 1}, 64, 64) == Ints{3, 1});
  CHECK(error_of([] { map_to_kernel_blocks(Ints{3}, 64, 48); }) == "E-CONFIG");
  CHECK(error_of([] { map_to_kernel_blocks(Ints{1 << 30}, 64, 16); }) == "E-CAPACITY");
}

TEST_CASE("a block size is supported when it is a multiple of any listed size") {
  CHECK(supports_block_size(std::nullopt, kMla));
  CHECK(supports_block_size(128, kMla));
  CHECK(supports_block_size(48, kIxRules));
  CHECK_FALSE(supports_block_size(32, kMla));
}

TEST_CASE("the common size is the manager's own where listed, else the largest that divides it") {
  CHECK(select_common_block_size(32, std::vector<Rules>{kIxRules, kAny16}) == 32);
  CHECK(select_common_block_size(48, std::vector<Rules>{kAny16}) == 48);
  CHECK(select_common_block_size(128, std::vector<Rules>{kIxRules}) == 64);
  CHECK(select_common_block_size(128, std::vector<Rules>{{{64}, {16}, {32}}}) == 64);
  CHECK(select_common_block_size(96, std::vector<Rules>{kIxRules, kAny16}) == 32);
  CHECK(select_common_block_size(128, std::vector<Rules>{kIxRules, kMla}) == 64);
  CHECK(error_of([] {
          select_common_block_size(32, std::vector<Rules>{kIxRules, kMla});
        }) == "E-CONFIG");
}

}  // namespace
}  // namespace attnbench
