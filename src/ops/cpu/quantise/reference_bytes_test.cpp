// Quantisation, scales and RoPE byte for byte against the reference, on random tensors with zeros,
// NaN and infinities.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/tensor.h"
#include "ops/ops.h"
#include "reference/ops/rope.h"
#include "reference/quantise/amax_history.h"
#include "reference/quantise/encoder.h"
#include "reference/quantise/int8.h"

namespace attnbench::cpu {
namespace {

struct Case {
  Tensor x;  // [T, H, D]
  float magnitude = 1.0f;
  int num_tokens = 0;
  int num_heads = 0;
  int head_size = 0;
  attn::Element element() const { return static_cast<attn::Element>(x.dtype()); }
};

Case random_case(std::mt19937_64& random, bool with_nonfinite) {
  Case c;
  c.num_tokens = static_cast<int>(random() % 7);
  c.num_heads = 1 + static_cast<int>(random() % 4);
  c.head_size = 1 + static_cast<int>(random() % 100);
  c.magnitude = std::exp2(static_cast<float>(static_cast<int>(random() % 30) - 15));
  c.x = Tensor(static_cast<Dtype>(random() % 3), {c.num_tokens, c.num_heads, c.head_size});
  const bool zero_heads = random() % 6 == 0;
  for (std::int64_t i = 0; i < c.x.num_elements(); ++i) {
    const bool zero = random() % 40 == 0 || (zero_heads && i / c.head_size % 2 == 0);
    const float value = static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f;
    c.x.set(i, zero ? 0.0f : c.magnitude * value);
    if (with_nonfinite && random() % 400 == 0) {
      c.x.set(i, random() % 2 == 0 ? -std::numeric_limits<float>::infinity() : std::nanf(""));
    }
  }
  return c;
}

bool same(const void* actual, const Tensor& expected) {
  return expected.empty() || std::memcmp(actual, expected.bytes(), expected.size_bytes()) == 0;
}

void compare_int8(const Case& c, attn::Int8Granularity granularity, bool transposed, Ops& ops) {
  const bool by_token = granularity == attn::Int8Granularity::kTokenHead;
  Tensor given(Dtype::kF32, {c.num_heads, c.head_size});
  for (std::int64_t i = 0; i < given.num_elements(); ++i) {
    given.set(i, c.magnitude * static_cast<float>(1 + i % 37) * 0.003f);
  }
  const bool is_static = granularity == attn::Int8Granularity::kChannelStatic;
  const Int8Quantised expected =
      scaled_int8_quant_for_attn(c.x, by_token ? 2 : 0, transposed, is_static ? &given : nullptr);
  Tensor codes(Dtype::kI8, c.x.shape());
  Tensor scale = is_static ? given : Tensor(Dtype::kF32, expected.scale.shape());
  ops.quantise_int8({c.element(), c.x.bytes(), std::int64_t{c.num_heads} * c.head_size, c.head_size,
                     codes.data<signed char>(), std::int64_t{c.num_heads} * c.head_size,
                     c.head_size, granularity, scale.data<float>(), transposed ? 1 : c.num_heads,
                     transposed ? c.num_tokens : 1, c.num_tokens, c.num_heads, c.head_size});
  CHECK(same(codes.bytes(), expected.codes));
  CHECK(same(scale.bytes(), expected.scale));
}

void compare_fp8(const Case& c, float scale, bool skip, Ops& ops) {
  const MmQuantised expected = quantise_fp8_maybe_pad_head_dim(view_of(c.x), scale, skip);
  const int padded = (c.head_size + 15) / 16 * 16;
  Tensor codes(Dtype::kE4M3, {c.num_tokens, c.num_heads, padded});
  attn::i64 saturated = 0;
  ops.quantise_pad_fp8({c.element(), c.x.bytes(), std::int64_t{c.num_heads} * c.head_size,
                        c.head_size, codes.data<unsigned char>(), skip ? nullptr : &scale,
                        &saturated, c.num_tokens, c.num_heads, c.head_size, padded});
  CHECK(same(codes.bytes(), expected.codes));
  CHECK(saturated == expected.saturated);
}

void compare_amax(const Case& c, bool is_signed, Ops& ops) {
  float actual = 0;
  ops.amax({c.element(), c.x.bytes(), std::int64_t{c.num_heads} * c.head_size, c.head_size,
            c.num_tokens, c.num_heads, c.head_size, is_signed ? 1 : 0, &actual});
  const float expected = tensor_amax(view_of(c.x), is_signed ? AmaxKind::kSigned : AmaxKind::kAbs);
  CHECK((actual == expected || (std::isnan(actual) && std::isnan(expected))));
}

}  // namespace

TEST_CASE("int8 and fp8 quantisation and amax give the bytes of the reference") {
  std::mt19937_64 random(1);
  const auto ops = make_cpu_ops(2);
  for (int i = 0; i < 300; ++i) {
    const Case c = random_case(random, i % 3 == 0);
    CAPTURE(i);
    compare_int8(c, attn::Int8Granularity::kTokenHead, false, *ops);
    compare_int8(c, attn::Int8Granularity::kTokenHead, true, *ops);
    compare_int8(c, attn::Int8Granularity::kChannelDynamic, false, *ops);
    compare_int8(c, attn::Int8Granularity::kChannelStatic, false, *ops);
    compare_fp8(c, 0x1p-126f / 448.0f, false, *ops);
    compare_fp8(c, c.magnitude * 0.0037f, false, *ops);
    compare_fp8(c, 1.0f, true, *ops);
    compare_amax(c, false, *ops);
    compare_amax(c, true, *ops);
  }
}

TEST_CASE("rope gives the bytes of the reference") {
  std::mt19937_64 random(2);
  const auto ops = make_cpu_ops(2);
  for (int i = 0; i < 300; ++i) {
    Case c = random_case(random, false);
    CAPTURE(i);
    const int rot =
        2 * static_cast<int>(random() % static_cast<std::uint64_t>(c.head_size / 2 + 1));
    const bool neox = random() % 2 == 0;
    const Tensor cache = make_cos_sin_cache(64, rot, random() % 2 == 0 ? c.x.dtype() : Dtype::kF32);
    std::vector<std::int64_t> positions;
    for (int t = 0; t < c.num_tokens; ++t) {
      positions.push_back(static_cast<std::int64_t>(random() % 64));
    }
    const std::vector<attn::i64> device_positions(positions.begin(), positions.end());
    Tensor expected = c.x;
    apply_rope(positions, cache, neox ? RopeStyle::kNeox : RopeStyle::kGptJ, expected);
    ops->rope({c.element(), static_cast<attn::Element>(cache.dtype()), device_positions.data(),
               cache.bytes(), c.x.bytes(), std::int64_t{c.num_heads} * c.head_size, c.head_size,
               nullptr, 0, 0, c.num_tokens, c.num_heads, 0, rot, neox ? 1 : 0});
    CHECK(same(c.x.bytes(), expected));
  }
}

TEST_CASE("the encoder's dynamic scales follow the reference over three turns of the ring") {
  std::mt19937_64 random(3);
  const auto ops = make_cpu_ops(1);
  AmaxHistory reference;
  std::array<float, 3 * attn::kAmaxHistoryLength> ring{};
  std::array<float, 3> scale{};
  for (int call = 0; call < 50; ++call) {
    const std::array<float, 3> amax{static_cast<float>(random() % 100) * 0.1f - 2.0f,
                                    static_cast<float>(random() % 100) * 0.1f - 20.0f,
                                    static_cast<float>(random() % 10) * 1e-39f};
    reference.update(amax);
    ops->update_amax_history(
        {amax.data(), ring.data(), scale.data(), call % attn::kAmaxHistoryLength, 3});
    CHECK(scale == reference.scales());
  }
}

}  // namespace attnbench::cpu
