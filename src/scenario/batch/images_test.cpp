#include "scenario/batch/images.h"

#include <doctest/doctest.h>

#include "core/error.h"

namespace attnbench {
namespace {

std::vector<Request> sequences(std::vector<std::array<std::int64_t, 2>> images, int patch,
                               std::optional<int> window = {}) {
  MmEncoderSpec spec;
  spec.images = std::move(images);
  spec.patch_size = patch;
  spec.window = window;
  return image_requests(spec);
}

TEST_CASE("without window each image is one sequence of its patches") {
  CHECK(sequences({{448, 672}, {224, 224}}, 14) == std::vector<Request>{{1536, 1536}, {256, 256}});
  CHECK(sequences({{30, 45}}, 14) == std::vector<Request>{{6, 6}});
}

TEST_CASE("window attention cuts the grid into squares, smaller ones at the border") {
  // Grid 10 x 7, window 4: columns 4 + 3; rows 4 + 4 + 2.
  CHECK(sequences({{100, 70}}, 10, 4) ==
        std::vector<Request>{{16, 16}, {12, 12}, {16, 16}, {12, 12}, {8, 8}, {6, 6}});
  CHECK(sequences({{28, 28}}, 14, 8) == std::vector<Request>{{4, 4}});
}

TEST_CASE("images below one patch and floods of windows are refused") {
  CHECK_THROWS_WITH_AS(sequences({{448, 13}}, 14),
                       "expected images of at least one patch of 14 x 14, found 448 x 13", Error);
  CHECK_THROWS_AS(sequences({{1048576, 1048576}}, 1, 1), Error);
}

}  // namespace
}  // namespace attnbench
