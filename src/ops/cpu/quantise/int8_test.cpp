#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/tensor.h"
#include "ops/ops.h"

namespace attnbench::cpu {
namespace {

using attn::Int8Granularity;

/// Rows [T, h, D] inside a wider buffer, so that every stride is larger than its extent.
struct Quantise {
  int num_tokens, num_heads, head_size;
  Tensor source;
  std::vector<signed char> codes;
  std::vector<float> scale;
  attn::Int8QuantiseParams params{};

  Quantise(Dtype dtype, int t, int h, int d, Int8Granularity granularity)
      : num_tokens(t),
        num_heads(h),
        head_size(d),
        source(dtype, {t, h + 1, d + 3}),
        codes(static_cast<std::size_t>(t * h * d), 99),
        scale(static_cast<std::size_t>(granularity == Int8Granularity::kTokenHead ? t * h : h * d),
              std::numeric_limits<float>::quiet_NaN()) {
    params.source_element = static_cast<attn::Element>(dtype);
    params.source = source.bytes();
    params.source_token_stride = std::int64_t{h + 1} * (d + 3);
    params.source_head_stride = d + 3;
    params.codes = codes.data();
    params.code_token_stride = std::int64_t{h} * d;
    params.code_head_stride = d;
    params.granularity = granularity;
    params.scale = scale.data();
    params.scale_token_stride = h;
    params.scale_head_stride = 1;
    params.num_tokens = t;
    params.num_heads = h;
    params.head_size = d;
  }

  std::int64_t at(int t, int h, int d) const {
    return (std::int64_t{t} * (num_heads + 1) + h) * (head_size + 3) + d;
  }
  float x(int t, int h, int d) const { return source.at(at(t, h, d)); }
  int code(int t, int h, int d) const {
    return codes[static_cast<std::size_t>((t * num_heads + h) * head_size + d)];
  }
  std::vector<int> row(int t, int h) const {
    std::vector<int> result;
    for (int d = 0; d < head_size; ++d) result.push_back(code(t, h, d));
    return result;
  }
  void set_row(int t, int h, std::initializer_list<float> values) {
    int d = 0;
    for (const float value : values) source.set(at(t, h, d++), value);
  }
  void fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::int64_t i = 0; i < source.num_elements(); ++i) {
      source.set(i, static_cast<float>(random() >> 40) * 0x1p-22f - 2.0f);
    }
  }
  void run() { make_cpu_ops(2)->quantise_int8(params); }
};

int nearest_even_i8(float y) {
  if (std::isnan(y)) return 0;
  return static_cast<int>(std::fmin(std::fmax(std::nearbyint(y), -128.0f), 127.0f));
}

}  // namespace

TEST_CASE("int8 quantisation per token and head gives the golden codes and scales") {
  Quantise q(Dtype::kF32, 1, 2, 4, Int8Granularity::kTokenHead);
  q.set_row(0, 0, {1, -2, 0.5f, 0.25f});
  q.set_row(0, 1, {3, -1.5f, 0.75f, 0.1f});
  q.run();
  CHECK(q.row(0, 0) == std::vector<int>{64, -127, 32, 16});
  CHECK(q.row(0, 1) == std::vector<int>{127, -64, 32, 4});
  CHECK(q.scale[0] == 2.0f / 127.0f);
  CHECK(q.scale[1] == 3.0f / 127.0f);
}

TEST_CASE("int8 codes at a tie go to the even neighbour") {
  Quantise q(Dtype::kF32, 1, 1, 5, Int8Granularity::kTokenHead);
  q.set_row(0, 0, {127, 2.5f, -2.5f, 3.5f, -3.5f});
  q.run();
  CHECK(q.row(0, 0) == std::vector<int>{127, 2, -2, 4, -4});
}

TEST_CASE("a vector of zeros gets int8 scale zero and codes zero") {
  Quantise q(Dtype::kBF16, 2, 1, 4, Int8Granularity::kTokenHead);
  q.set_row(1, 0, {0, -4, 0, 0});
  q.run();
  CHECK(q.scale[0] == 0.0f);
  CHECK(q.row(0, 0) == std::vector<int>{0, 0, 0, 0});
  CHECK(q.row(1, 0) == std::vector<int>{0, -127, 0, 0});
}

TEST_CASE("int8 scales per token and head lie [T, h] or transposed [h, T]") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    for (const bool transposed : {false, true}) {
      Quantise q(dtype, 5, 3, 24, Int8Granularity::kTokenHead);
      q.fill(7);
      if (transposed) {
        q.params.scale_token_stride = 1;
        q.params.scale_head_stride = q.num_tokens;
      }
      q.run();
      for (int t = 0; t < q.num_tokens; ++t) {
        for (int h = 0; h < q.num_heads; ++h) {
          float largest = 0;
          for (int d = 0; d < q.head_size; ++d)
            largest = std::fmax(largest, std::fabs(q.x(t, h, d)));
          const int at = transposed ? h * q.num_tokens + t : t * q.num_heads + h;
          CHECK(q.scale[static_cast<std::size_t>(at)] == largest / 127.0f);
          for (int d = 0; d < q.head_size; ++d) {
            CHECK(q.code(t, h, d) == nearest_even_i8(q.x(t, h, d) * (127.0f / largest)));
          }
        }
      }
    }
  }
}

TEST_CASE("dynamic channel scales come from the largest token of each head and dimension") {
  Quantise q(Dtype::kF16, 9, 2, 16, Int8Granularity::kChannelDynamic);
  q.fill(3);
  for (int t = 0; t < 9; ++t) q.source.set(q.at(t, 1, 5), 0.0f);
  q.run();
  for (int h = 0; h < q.num_heads; ++h) {
    for (int d = 0; d < q.head_size; ++d) {
      float largest = 0;
      for (int t = 0; t < 9; ++t) largest = std::fmax(largest, std::fabs(q.x(t, h, d)));
      const float scale = q.scale[static_cast<std::size_t>(h * 16 + d)];
      CHECK(scale == largest / 127.0f);
      for (int t = 0; t < 9; ++t) {
        CHECK(q.code(t, h, d) == (scale == 0.0f ? 0 : nearest_even_i8(q.x(t, h, d) / scale)));
      }
    }
  }
  CHECK(q.scale[16 + 5] == 0.0f);
}

TEST_CASE("dynamic channel scales of no tokens are zero") {
  Quantise q(Dtype::kF32, 0, 2, 4, Int8Granularity::kChannelDynamic);
  q.run();
  CHECK(q.scale == std::vector<float>(8, 0.0f));
}

TEST_CASE("a channel whose int8 scale underflows to zero gets codes zero") {
  Quantise q(Dtype::kF32, 2, 1, 2, Int8Granularity::kChannelDynamic);
  q.set_row(1, 0, {std::numeric_limits<float>::denorm_min(), 1});
  q.run();
  CHECK(q.scale == std::vector<float>{0.0f, 1.0f / 127.0f});
  CHECK(q.row(1, 0) == std::vector<int>{0, 127});
}

TEST_CASE("static channel scales divide, saturate on both sides and are left alone") {
  Quantise q(Dtype::kF32, 64, 1, 4, Int8Granularity::kChannelStatic);
  q.fill(11);
  q.scale = {0.1f, 0.003f, 0.7f, 0.049f};
  const std::vector<float> given = q.scale;
  q.source.set(q.at(0, 0, 0), 2.5f * 0.1f);
  q.source.set(q.at(1, 0, 1), -100.0f);
  q.source.set(q.at(2, 0, 1), 100.0f);
  q.run();
  CHECK(q.scale == given);
  CHECK(q.code(1, 0, 1) == -128);
  CHECK(q.code(2, 0, 1) == 127);
  for (int t = 0; t < 64; ++t) {
    for (int d = 0; d < 4; ++d) {
      CHECK(q.code(t, 0, d) == nearest_even_i8(q.x(t, 0, d) / given[static_cast<std::size_t>(d)]));
    }
  }
}

}  // namespace attnbench::cpu
