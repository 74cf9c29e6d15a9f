#include "reference/quantise/encoder.h"

#include <doctest/doctest.h>

namespace attnbench {

TEST_CASE("an encoder forward keeps D columns of code times scale, and skips a loaded scale of 1") {
  // One token, one head, D 3, padded to 16; without a scale 500 is lost to saturation.
  const Tensor x = Tensor::from_f32(std::vector<float>{1.0f, -2.0f, 500.0f}, {1, 1, 3});
  const std::array<StridedTensor, 3> sources{view_of(x), view_of(x), view_of(x)};
  MmScales scales;
  scales.scale = {1.0f, 1.0f, 2.0f};
  scales.skip = {true, false, false};
  const MmForward forward = quantise_mm_forward(sources, scales);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(forward.codes[i].shape() == std::vector<std::int64_t>{1, 1, 16});
    CHECK(forward.dequantized[i].shape() == std::vector<std::int64_t>{1, 1, 3});
    CHECK(forward.dequantized[i].at(0) == 1.0f);
    CHECK(forward.dequantized[i].at(1) == -2.0f);
  }
  CHECK(forward.codes[0].data<std::uint8_t>()[0] == 0x38);
  CHECK(forward.codes[2].data<std::uint8_t>()[0] == 0x30);
  CHECK(forward.codes[2].data<std::uint8_t>()[3] == 0x00);
  CHECK(forward.dequantized[0].at(2) == 448.0f);
  CHECK(forward.dequantized[2].at(2) == 512.0f);  // 250 is nearest to 256 among steps of 16
  CHECK(forward.saturated == std::array<std::int64_t, 3>{1, 1, 0});
}

}  // namespace attnbench
