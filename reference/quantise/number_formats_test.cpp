#include "reference/quantise/number_formats.h"

#include <cmath>

#include "reference/ops/test_support.h"

namespace attnbench {

using ops_test::kInf;
using ops_test::kNan;

TEST_CASE("e4m3 codes are those of the golden table") {
  CHECK(rn_e4m3(1.0f) == 0x38);
  CHECK(rn_e4m3(-2.0f) == 0xC0);
  CHECK(rn_e4m3(448.0f) == 0x7E);
  CHECK(rn_e4m3(449.0f) == 0x7E);
  CHECK(rn_e4m3(kInf) == 0x7E);
  CHECK(rn_e4m3(-kInf) == 0xFE);
  CHECK(rn_e4m3(0x1p-9f) == 0x01);
  CHECK(rn_e4m3(0x1p-10f) == 0x00);
  CHECK(rn_e4m3(1.5f * 0x1p-10f) == 0x01);
}

TEST_CASE("a NaN of either sign is the one NaN code of e4m3") {
  CHECK(rn_e4m3(kNan) == 0x7F);
  CHECK(rn_e4m3(-kNan) == 0x7F);
}

TEST_CASE("values count as saturated where a plain cast to e4m3 would give NaN") {
  CHECK_FALSE(saturates_e4m3(448.0f));
  CHECK_FALSE(saturates_e4m3(-464.0f));
  CHECK(saturates_e4m3(464.00003f));
  CHECK(saturates_e4m3(-kInf));
  CHECK_FALSE(saturates_e4m3(kNan));
}

TEST_CASE("e2m1 ties go to the even code and large values saturate at 6") {
  const auto rounded = [](float x) { return e2m1_value(rn_e2m1(x)); };
  CHECK(rounded(0.25f) == 0.0f);
  CHECK(rounded(0.75f) == 1.0f);
  CHECK(rounded(1.25f) == 1.0f);
  CHECK(rounded(1.75f) == 2.0f);
  CHECK(rounded(2.5f) == 2.0f);
  CHECK(rounded(3.5f) == 4.0f);
  CHECK(rounded(5.0f) == 4.0f);
  CHECK(rounded(-5.0f) == -4.0f);
  CHECK(rounded(100.0f) == 6.0f);
  CHECK(rounded(-kInf) == -6.0f);
  CHECK(rn_e2m1(-0.0f) == 8);
}

TEST_CASE("int8 codes are nearest even and saturate") {
  CHECK(rn_i8(2.5f) == 2);
  CHECK(rn_i8(3.5f) == 4);
  CHECK(rn_i8(-2.5f) == -2);
  CHECK(rn_i8(200.0f) == 127);
  CHECK(rn_i8(-200.0f) == -128);
  CHECK(rn_i8(kNan) == 0);
}

TEST_CASE("ue8m0 scales are rounded up to a power of two") {
  CHECK(ue8m0_scale(1.0f) == 1.0f);
  CHECK(ue8m0_scale(1.1f) == 2.0f);
  CHECK(ue8m0_scale(0.0045f) == 0.0078125f);
  CHECK(ue8m0_scale(1e-10f) == 0x1p-33f);
  CHECK(ue8m0_scale(0.0f) == 0x1p-33f);
  CHECK(ue8m0_scale(1e-40f) == 0x1p-33f);
}

TEST_CASE("ue8m0 is exact one step beside every power of two") {
  for (int exponent = -32; exponent < 120; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    CHECK(ue8m0_scale(power) == power);
    CHECK(ue8m0_scale(std::nextafterf(power, kInf)) == 2.0f * power);
    CHECK(ue8m0_scale(std::nextafterf(power, 0.0f)) == power);
  }
}

TEST_CASE("zero stays zero when the reciprocal of a tiny scale is infinite") {
  CHECK(scaled_by(0.0f, kInf) == 0.0f);
  CHECK(std::signbit(scaled_by(-0.0f, kInf)));
  CHECK(scaled_by(1e-40f, kInf) == kInf);
  CHECK(std::isnan(scaled_by(kNan, 2.0f)));
}

TEST_CASE("the largest magnitude ignores NaN and sees infinity") {
  CHECK(max_abs(std::vector<float>{}) == 0.0f);
  CHECK(max_abs(std::vector{1.0f, -3.0f, kNan, 2.0f}) == 3.0f);
  CHECK(max_abs(std::vector{kNan, -kInf}) == kInf);
}

}  // namespace attnbench
