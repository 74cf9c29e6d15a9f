#include "reference/quantise/amax_history.h"

#include <cmath>

#include "reference/ops/test_support.h"
#include "reference/quantise/encoder.h"

namespace attnbench {

using ops_test::kInf;
using ops_test::kNan;
using ops_test::tensor_of;

namespace {

/// Scale of Q after these calls.
float scale_after(const std::vector<float>& amax) {
  AmaxHistory history;
  for (float value : amax) history.update({value, 0.0f, 0.0f});
  return history.scales()[0];
}

}  // namespace

TEST_CASE("scales are 1.0 before the first call") {
  CHECK(AmaxHistory().scales() == std::array{1.0f, 1.0f, 1.0f});
}

TEST_CASE("the scale follows the largest of the last 16 calls") {
  CHECK(scale_after({1.0f, 2.0f, 3.0f}) == 3.0f / 448.0f);
  std::vector<float> calls{1.0f, 2.0f, 3.0f};
  calls.resize(18, 0.5f);
  CHECK(scale_after(calls) == 3.0f / 448.0f);  // call 3 is still in the ring
  calls.resize(19, 0.5f);
  CHECK(scale_after(calls) == 0.5f / 448.0f);
}

TEST_CASE("the least scale is a subnormal that is not flushed to zero") {
  const float floor = scale_after({0.0f});
  CHECK(floor > 0.0f);
  CHECK(floor == doctest::Approx(2.6238713e-41).epsilon(1e-4));
  CHECK_FALSE(std::isnormal(floor));
  // The nearest multiple of 2^-149: 2^23 / 448 = 18724.57.
  CHECK(floor == 18725.0f * 0x1p-149f);
}

TEST_CASE("a negative maximum counts as nothing until the history has only negative ones") {
  std::vector<float> calls{2.0f};
  calls.resize(16, -5.0f);
  CHECK(scale_after(calls) == 2.0f / 448.0f);
  calls.push_back(-5.0f);
  CHECK(scale_after(calls) == scale_after({0.0f}));
}

TEST_CASE("Q, K and V have rings of their own") {
  AmaxHistory history;
  history.update({1.0f, 20.0f, 300.0f});
  history.update({2.0f, 10.0f, 100.0f});
  CHECK(history.scales() == std::array{2.0f / 448.0f, 20.0f / 448.0f, 300.0f / 448.0f});
}

TEST_CASE("the ring wraps on calls 16, 32, ... and only the first is the first") {
  AmaxHistory history;
  for (int call = 1; call <= 48; ++call) {
    const auto update = history.update({1.0f, 1.0f, 1.0f});
    CHECK(update.wrapped == (call % 16 == 0));
    CHECK(update.first_wrap == (call == 16));
    CHECK(history.position() == call % 16);
  }
}

TEST_CASE("the signed maximum overlooks large negative values, which then saturate") {
  const Tensor x = tensor_of({1.0f, -8.0f, 0.5f, 0.25f}, {1, 1, 4});
  CHECK(tensor_amax(view_of(x), AmaxKind::kAbs) == 8.0f);
  CHECK(tensor_amax(view_of(x), AmaxKind::kSigned) == 1.0f);
  const float signed_scale = scale_after({tensor_amax(view_of(x), AmaxKind::kSigned)});
  const float abs_scale = scale_after({tensor_amax(view_of(x), AmaxKind::kAbs)});
  const MmQuantised lost = quantise_fp8_maybe_pad_head_dim(view_of(x), signed_scale, false);
  CHECK(lost.saturated == 1);
  CHECK(lost.codes.at(1) == -448.0f);
  CHECK(quantise_fp8_maybe_pad_head_dim(view_of(x), abs_scale, false).saturated == 0);
}

TEST_CASE("the maximum of an all-negative tensor keeps its sign when signed") {
  const Tensor x = tensor_of({-3.0f, -2.0f}, {1, 1, 2});
  CHECK(tensor_amax(view_of(x), AmaxKind::kSigned) == -2.0f);
}

TEST_CASE("the maximum of nothing is 0 and NaN is not overlooked") {
  CHECK(tensor_amax(view_of(Tensor(Dtype::kF32, {0, 2, 8})), AmaxKind::kSigned) == 0.0f);
  CHECK(std::isnan(tensor_amax(view_of(tensor_of({kNan, 1.0f}, {2})), AmaxKind::kAbs)));
  CHECK(std::isnan(tensor_amax(view_of(tensor_of({1.0f, kNan}, {2})), AmaxKind::kSigned)));
  CHECK(tensor_amax(view_of(tensor_of({1.0f, -kInf}, {2})), AmaxKind::kAbs) == kInf);
  CHECK(std::isnan(scale_after({1.0f, kNan, 2.0f})));
}

}  // namespace attnbench
