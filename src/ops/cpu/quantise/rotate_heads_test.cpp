#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/common/packed_codes.cuh"
#include "ops/cpu/quantise/fp8_code.h"

namespace attnbench::cpu {

TEST_CASE("a rotation is the matrix of Hadamard times the signs, and its inverse undoes it") {
  for (const int width : {8, 32, 128, 512}) {
    CAPTURE(width);
    std::mt19937 random(static_cast<unsigned>(width));
    std::normal_distribution<float> normal;
    std::vector<float> source(static_cast<std::size_t>(width));
    for (float& value : source) value = normal(random);
    std::vector<float> rotated = source;
    rotate_head(rotated.data(), width, false);
    for (int row = 0; row < width; ++row) {
      double sum = 0;
      for (int d = 0; d < width; ++d) {
        const bool odd = std::popcount(static_cast<unsigned>(row & d)) % 2 == 1;
        const bool negative = odd != attn::rotation_is_negative(d);
        const double value = source[static_cast<std::size_t>(d)];
        sum += negative ? -value : value;
      }
      CHECK(rotated[static_cast<std::size_t>(row)] == doctest::Approx(sum).epsilon(1e-4));
    }
    rotate_head(rotated.data(), width, true);
    for (std::size_t d = 0; d < source.size(); ++d) {
      CHECK(std::fabs(rotated[d] - source[d]) < 1e-5);
    }
  }
}

}  // namespace attnbench::cpu
