#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/tensor.h"
#include "ops/ops.h"

namespace attnbench::cpu {
namespace {

/// Of head 1 and 2 of a [T, 4, D] tensor.
float amax_of(const Tensor& x, bool is_signed) {
  float result = -1.0f;
  attn::AmaxParams params{};
  params.element = static_cast<attn::Element>(x.dtype());
  params.source = x.bytes() + x.dim(2) * static_cast<std::int64_t>(dtype_size(x.dtype()));
  params.token_stride = 4 * x.dim(2);
  params.head_stride = x.dim(2);
  params.num_tokens = x.dim(0);
  params.num_heads = 2;
  params.head_size = static_cast<int>(x.dim(2));
  params.is_signed = is_signed ? 1 : 0;
  params.amax = &result;
  make_cpu_ops(2)->amax(params);
  return result;
}

struct History {
  std::array<float, 1> amax{};
  std::array<float, attn::kAmaxHistoryLength> ring{};
  float scale = 1.0f;
  int calls = 0;
  float record(float value) {
    amax[0] = value;
    make_cpu_ops(1)->update_amax_history(
        {amax.data(), ring.data(), &scale, calls++ % attn::kAmaxHistoryLength, 1});
    return scale;
  }
};

}  // namespace

TEST_CASE("amax finds the largest element of a strided view in any token and head") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    for (int token = 0; token < 5; ++token) {
      for (int head = 0; head < 4; ++head) {
        Tensor x(dtype, {5, 4, 6});
        const bool seen = head == 1 || head == 2;
        x.set((token * 4 + head) * 6 + 5, -3.0f);
        x.set((token * 4 + 1) * 6 + 2, 2.0f);
        CHECK(amax_of(x, false) == (seen ? 3.0f : 2.0f));
        CHECK(amax_of(x, true) == 2.0f);
      }
    }
  }
}

TEST_CASE("signed amax of an all-negative tensor is negative") {
  Tensor x(Dtype::kF32, {2, 4, 3});
  for (std::int64_t i = 0; i < x.num_elements(); ++i) x.set(i, -2.0f - static_cast<float>(i));
  CHECK(amax_of(x, true) == -5.0f);
  CHECK(amax_of(x, false) == 22.0f);
}

TEST_CASE("amax of an empty tensor is zero and one NaN makes it NaN") {
  CHECK(amax_of(Tensor(Dtype::kF16, {0, 4, 8}), true) == 0.0f);
  for (const int token : {0, 2}) {
    Tensor x(Dtype::kBF16, {3, 4, 8});
    x.set((token * 4 + 2) * 8 + 1, std::numeric_limits<float>::quiet_NaN());
    x.set(9, 5.0f);
    CHECK(std::isnan(amax_of(x, false)));
    CHECK(std::isnan(amax_of(x, true)));
  }
}

TEST_CASE("the encoder's scale follows the largest of the last 16 calls") {
  History history;
  CHECK(history.record(1) == 1.0f / 448.0f);
  CHECK(history.record(2) == 2.0f / 448.0f);
  CHECK(history.record(3) == 3.0f / 448.0f);
  CHECK(history.ring[0] == 1.0f);
  CHECK(history.ring[2] == 3.0f);
  CHECK(history.ring[3] == 0.0f);
  for (int call = 4; call <= 18; ++call) CHECK(history.record(0.5f) == 3.0f / 448.0f);
  CHECK(history.record(0.5f) == 0.5f / 448.0f);
}

TEST_CASE("the encoder's scale has a subnormal floor, also when a full ring is negative") {
  History history;
  CHECK(history.record(0) == 2.6238713e-41f);
  for (int call = 0; call < 20; ++call) CHECK(history.record(-7) == 2.6238713e-41f);
}

TEST_CASE("a NaN amax makes the encoder's scale NaN until it leaves the ring") {
  History history;
  CHECK(std::isnan(history.record(std::numeric_limits<float>::quiet_NaN())));
  for (int call = 0; call < 15; ++call) CHECK(std::isnan(history.record(1)));
  CHECK(history.record(1) == 1.0f / 448.0f);
}

TEST_CASE("cache scales are amax over 200, 200 and 100, and 1 where nothing was seen") {
  const std::array<float, 3> seen{3.7f, 0.0f, 5.1f};
  std::array<float, 3> scale{};
  make_cpu_ops(1)->calc_kv_scales({seen.data(), scale.data(), {200, 200, 100}});
  CHECK(scale[0] == 3.7f / 200.0f);
  CHECK(scale[1] == 1.0f);
  CHECK(scale[2] == 5.1f / 100.0f);
}

}  // namespace attnbench::cpu
