#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/tensor.h"
#include "kernels/common/numeric.cuh"
#include "ops/ops.h"

namespace attnbench::cpu {
namespace {

struct PadQuantise {
  int num_tokens, num_heads, head_size, padded;
  Tensor source;  // [S, 3, H, D]: K of an interleaved QKV buffer is read
  std::vector<std::uint8_t> codes;
  float scale = 1.0f;
  attn::i64 saturated = 0;
  attn::PadQuantiseParams params{};

  PadQuantise(Dtype dtype, int s, int h, int d)
      : num_tokens(s),
        num_heads(h),
        head_size(d),
        padded((d + 15) / 16 * 16),
        source(dtype, {s, 3, h, d}),
        codes(static_cast<std::size_t>(s * h * padded), 0xEE) {
    params.source_element = static_cast<attn::Element>(dtype);
    params.source = source.bytes() + h * d * static_cast<int>(dtype_size(dtype));
    params.source_token_stride = 3 * std::int64_t{h} * d;
    params.source_head_stride = d;
    params.codes = codes.data();
    params.scale = &scale;
    params.num_saturated = &saturated;
    params.num_tokens = s;
    params.num_heads = h;
    params.head_size = d;
    params.padded_head_size = padded;
  }
  std::int64_t at(int t, int h, int d) const {
    return ((std::int64_t{t} * 3 + 1) * num_heads + h) * head_size + d;
  }
  int code(int t, int h, int d) const {
    return codes[static_cast<std::size_t>((t * num_heads + h) * padded + d)];
  }
  void fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::int64_t i = 0; i < source.num_elements(); ++i) {
      source.set(i, static_cast<float>(random() >> 40) * 0x1p-21f - 4.0f);
    }
  }
  void run() { make_cpu_ops(2)->quantise_pad_fp8(params); }
};

}  // namespace

TEST_CASE("a padded head size divides by the fp8 scale and an unpadded one multiplies") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    for (const int d : {16, 40, 64, 72, 80, 256}) {
      PadQuantise q(dtype, 7, 3, d);
      q.fill(static_cast<std::uint64_t>(d));
      q.scale = 0.0037f;
      q.run();
      for (int t = 0; t < 7; ++t) {
        for (int h = 0; h < 3; ++h) {
          for (int k = 0; k < q.padded; ++k) {
            const float x = k < d ? q.source.at(q.at(t, h, k)) : 0.0f;
            const float y = d % 16 == 0 ? x * (1.0f / q.scale) : x / q.scale;
            REQUIRE(q.code(t, h, k) == attn::e4m3_from_float(y));
          }
        }
      }
    }
  }
}

TEST_CASE("division and reciprocal of the fp8 scale differ where they must") {
  // x / s is the tie 17 (to even: 16) but x * (1 / s) falls just above it, or the other way round.
  const float scale = 0.0037f;
  const float inverse = 1.0f / scale;
  float x = 0;
  for (float tie : {17.0f, 19.0f, 21.0f, 25.0f, 34.0f, 38.0f}) {
    const float candidate = tie * scale;
    if (attn::e4m3_from_float(candidate / scale) != attn::e4m3_from_float(candidate * inverse)) {
      x = candidate;
    }
  }
  REQUIRE(x != 0.0f);
  PadQuantise unpadded(Dtype::kF32, 1, 1, 16), padded(Dtype::kF32, 1, 1, 8);
  for (PadQuantise* q : {&unpadded, &padded}) {
    q->scale = scale;
    q->source.set(q->at(0, 0, 0), x);
    q->run();
  }
  CHECK(unpadded.code(0, 0, 0) == attn::e4m3_from_float(x * inverse));
  CHECK(padded.code(0, 0, 0) == attn::e4m3_from_float(x / scale));
}

TEST_CASE("without a scale the fp8 codes are the plain saturating cast") {
  for (const int d : {16, 24}) {
    PadQuantise q(Dtype::kF32, 1, 1, d);
    q.params.scale = nullptr;
    const float values[] = {1.0f, -2.0f, 448.0f, 464.0f, 464.5f, -1e30f, INFINITY, 0x1p-10f};
    for (int k = 0; k < 8; ++k) q.source.set(q.at(0, 0, k), values[k]);
    q.source.set(q.at(0, 0, 8), -std::numeric_limits<float>::quiet_NaN());
    q.run();
    const int expected[] = {0x38, 0xC0, 0x7E, 0x7E, 0x7E, 0xFE, 0x7E, 0x00, 0x7F};
    for (int k = 0; k < 9; ++k) CHECK(q.code(0, 0, k) == expected[k]);
    CHECK(q.saturated == 3);
  }
}

TEST_CASE("zeros stay zero under the smallest dynamic fp8 scale") {
  for (const int d : {16, 24}) {
    PadQuantise q(Dtype::kBF16, 2, 2, d);
    q.scale = 0x1p-126f / 448.0f;
    q.source.set(q.at(1, 1, 3), 1.0f);
    q.run();
    CHECK(q.code(0, 0, 0) == 0);
    CHECK(q.code(1, 1, 3) == 0x7E);
    CHECK(q.saturated == 1);
  }
}

TEST_CASE("fp8 quantisation of no tokens writes nothing") {
  PadQuantise q(Dtype::kF16, 0, 2, 40);
  q.run();
  CHECK(q.saturated == 0);
}

}  // namespace attnbench::cpu
