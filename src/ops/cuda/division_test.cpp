// The divisions of the kernels, on the CPU, against those of the language.
#include "kernels/common/division.cuh"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/common/numeric.cuh"

namespace attnbench::cuda {

TEST_CASE("a quotient of integers is the same below and above 2^32") {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto a = static_cast<attn::i64>(random() >> (random() % 40 + 1));
    const auto b = static_cast<attn::i64>((random() >> (random() % 40 + 24)) + 1);
    CHECK(attn::quotient(a, b) == a / b);
  }
}

TEST_CASE("a quotient by way of the reciprocal is the correctly rounded one") {
  std::mt19937 random(2);
  for (int i = 0; i < 300000; ++i) {
    const float x = attn::float_from_bits(static_cast<attn::u32>(random()));
    const float divisor = attn::float_from_bits(static_cast<attn::u32>(random() & 0x7FFFFFFFu));
    if (!attn::has_exact_reciprocal_step(divisor)) continue;
    const float exact = x / divisor;
    const float found = attn::quotient_by_reciprocal(x, divisor, 1.0f / divisor);
    // Where it is not, both have one code.
    CHECK(attn::e4m3_from_float(found) == attn::e4m3_from_float(exact));
    CHECK(attn::e5m2_from_float(found) == attn::e5m2_from_float(exact));
    if (std::fabs(exact) > 0x1p-29f && std::fabs(exact) < 0x1p29f) CHECK(found == exact);
  }
}

TEST_CASE("every bfloat16 divided by ordinary scales has the code of the exact quotient") {
  for (const float divisor : {0.03f, 0.5f, 1e-3f, 7.5f, 1.0f, 0.1f, 3.3333333f, 448.0f}) {
    REQUIRE(attn::has_exact_reciprocal_step(divisor));
    for (unsigned code = 0; code < 65536; ++code) {
      const float x = attn::bf16_to_float(static_cast<attn::u16>(code));
      const float found = attn::quotient_by_reciprocal(x, divisor, 1.0f / divisor);
      if (attn::e4m3_from_float(found) != attn::e4m3_from_float(x / divisor)) {
        CAPTURE(x);
        CHECK(attn::e4m3_from_float(found) == attn::e4m3_from_float(x / divisor));
      }
      if (attn::e5m2_from_float(found) != attn::e5m2_from_float(x / divisor)) {
        CAPTURE(x);
        CHECK(attn::e5m2_from_float(found) == attn::e5m2_from_float(x / divisor));
      }
    }
  }
}

TEST_CASE("scales too small, too large or with a significand of ones are divided the slow way") {
  for (const float divisor :
       {0x1p-61f, 0x1p61f, 1e-40f, 0.0f, std::numeric_limits<float>::infinity(), 0x1.fffffep0f}) {
    CHECK_FALSE(attn::has_exact_reciprocal_step(divisor));
  }
}

}  // namespace attnbench::cuda
