// Verdicts on bytes: what is the same, what is one step beside, and the words for what is neither.
#include "metrics/byte_verdicts.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

namespace attnbench {
namespace {

Tensor codes(Dtype dtype, std::vector<std::int64_t> shape, std::uint8_t value) {
  Tensor tensor(dtype, std::move(shape));
  for (std::size_t i = 0; i < tensor.size_bytes(); ++i) tensor.bytes()[i] = std::byte{value};
  return tensor;
}

void set(Tensor& tensor, std::size_t byte, std::uint8_t value) {
  tensor.bytes()[byte] = std::byte{value};
}

}  // namespace

TEST_CASE("equal bytes pass, with NaN among them, and match in full") {
  Tensor expected = codes(Dtype::kE4M3, {2, 3}, 0x38);
  set(expected, 4, 0x7F);
  const ByteVerdict verdict = compare_bytes(expected, expected, ByteRule::kEqual);
  CHECK(verdict.passed);
  CHECK(verdict.first.empty());
  CHECK(verdict.stats.nan_count == 1);
  CHECK(verdict.stats.matched_pct == 100);
  CHECK(verdict.stats.max_abs == 0);
  CHECK(first_difference(expected, expected).empty());
}

TEST_CASE("a byte that differs fails, and the first one is named by its coordinates") {
  const Tensor expected = codes(Dtype::kE4M3, {2, 3}, 0x38);  // 1
  Tensor actual = expected;
  set(actual, 4, 0x40);  // 2
  set(actual, 5, 0x39);
  const ByteVerdict verdict = compare_bytes(actual, expected, ByteRule::kEqual);
  CHECK_FALSE(verdict.passed);
  CHECK(verdict.differing == 2);
  CHECK(verdict.first == "[1, 1] is 0x40, expected 0x38");
  CHECK(first_difference(actual, expected) == verdict.first);
  CHECK(verdict.stats.worst_index == std::vector<std::int64_t>{1, 1});
  CHECK(verdict.stats.max_abs == 1);
  CHECK(verdict.stats.matched_pct == doctest::Approx(100.0 * 4 / 6));
}

TEST_CASE("a saturated code is another code than the largest below it, however near their values") {
  const Tensor expected = codes(Dtype::kE4M3, {4}, 0x7D);  // 416
  Tensor actual = expected;
  set(actual, 2, 0x7E);  // 448
  CHECK_FALSE(compare_bytes(actual, expected, ByteRule::kEqual).passed);
  CHECK(first_difference(actual, expected) == "[2] is 0x7e, expected 0x7d");
}

TEST_CASE("a zero of the other sign is another byte, though it is the same value") {
  const Tensor expected = codes(Dtype::kE4M3, {3}, 0x00);
  Tensor actual = expected;
  set(actual, 1, 0x80);
  const ByteVerdict verdict = compare_bytes(actual, expected, ByteRule::kEqual);
  CHECK_FALSE(verdict.passed);
  CHECK(verdict.stats.max_abs == 0);
  CHECK(verdict.stats.matched_pct == doctest::Approx(100.0 * 2 / 3));
}

TEST_CASE("padding that was written differs like any other byte") {
  const Tensor expected = codes(Dtype::kU8, {2, 4}, 0xFF);
  Tensor actual = expected;
  set(actual, 7, 0x00);
  CHECK(check_equal_bytes("codes", actual, expected, "") == "codes: byte 7 is 0x00, expected 0xff");
}

TEST_CASE("wide elements are compared whole and named from the highest byte on") {
  const Tensor expected = Tensor::from_f32(std::vector<float>{1, 2, 3});
  const Tensor actual = Tensor::from_f32(std::vector<float>{1, 2, -3});
  CHECK(compare_bytes(actual, expected, ByteRule::kEqual).first ==
        "[2] is 0xc0400000, expected 0x40400000");
}

TEST_CASE("e2m1 steps count codes of one sign by their order, and both zeros as one place") {
  const std::array<std::uint8_t, 4> expected{0x00, 0x70, 0x09, 0x01};
  const std::array<std::uint8_t, 4> actual{0x80, 0x60, 0x01, 0x03};
  const E2m1Steps steps = count_e2m1_steps(actual, expected);
  CHECK(steps.different == 3);  // 0x8 is a zero like 0x0
  CHECK(steps.far == 2);        // -0.5 and 0.5 are two steps apart, 1 and 3 too
  CHECK(steps.first_far == 2);
}

TEST_CASE("one e2m1 step is allowed in a thousandth of the codes and in no more") {
  const Tensor expected = codes(Dtype::kU8, {1000}, 0x22);
  Tensor actual = expected;
  set(actual, 10, 0x23);
  set(actual, 20, 0x12);
  CHECK(compare_bytes(actual, expected, ByteRule::kE2m1Steps).passed);
  CHECK(check_e2m1_codes("output", actual, expected).empty());
  CHECK_FALSE(compare_bytes(actual, expected, ByteRule::kEqual).passed);
  set(actual, 30, 0x21);
  CHECK_FALSE(compare_bytes(actual, expected, ByteRule::kE2m1Steps).passed);
  CHECK(check_e2m1_codes("output", actual, expected) ==
        "output: 3 of 2000 codes are one step off, more than 0.1 %");
}

TEST_CASE("two e2m1 steps are not allowed anywhere") {
  const Tensor expected = codes(Dtype::kU8, {1000}, 0x22);
  Tensor actual = expected;
  set(actual, 999, 0x42);
  CHECK_FALSE(compare_bytes(actual, expected, ByteRule::kE2m1Steps).passed);
  CHECK(check_e2m1_codes("output", actual, expected) == "output: byte 999 is 0x42, expected 0x22");
}

TEST_CASE("tensors of other sizes or types are told apart before any byte is read") {
  const Tensor expected = codes(Dtype::kE4M3, {2, 3}, 0);
  CHECK(first_difference(codes(Dtype::kE4M3, {3, 2}, 0), expected) == "wrong extents");
  CHECK(check_equal_bytes("output", codes(Dtype::kU8, {2, 2}, 0), expected, " from here") ==
        "output: expected 6 bytes of " + std::string(dtype_name(Dtype::kE4M3)) + ", got 4 of " +
            std::string(dtype_name(Dtype::kU8)));
  CHECK(check_equal_bytes("output", expected, expected, " from here").empty());
  Tensor other = expected;
  set(other, 0, 1);
  CHECK(check_equal_bytes("output", other, expected, " from here") ==
        "output: byte 0 is 0x01, expected 0x00 from here");
}

TEST_CASE("a second run that gives other bytes is described by values, equal NaN are no change") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor first = Tensor::from_f32(std::vector<float>{nan, 1, 2, 3}, {2, 2});
  CHECK(describe_change("lse", first, first).empty());
  const Tensor second = Tensor::from_f32(std::vector<float>{nan, 1, 2.5, 3}, {2, 2});
  CHECK(describe_change("lse", first, second) == "lse[1, 0] is 2, then 2.5");
  CHECK(describe_change("lse", first, Tensor::from_f32(std::vector<float>{1})) ==
        "lse has 16 bytes, then 4");
}

}  // namespace attnbench
