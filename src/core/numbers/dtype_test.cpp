#include "core/numbers/dtype.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/enum_names.h"
#include "kernels/common/numeric.cuh"

namespace attnbench {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::array kAllDtypes{Dtype::kF32,  Dtype::kF16, Dtype::kBF16, Dtype::kF64, Dtype::kE4M3,
                                Dtype::kE5M2, Dtype::kI8,  Dtype::kI32,  Dtype::kI64, Dtype::kU8};
static_assert(!is_enumerator<static_cast<Dtype>(kAllDtypes.size())>());

/// A small float format by its definition (semantics §0.3), as a table of values: the oracle.
struct Format {
  int mantissa_bits;
  int bias;
  int largest_code;  // of the finite magnitudes

  double value(int code) const {
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    const int exponent = code >> mantissa_bits;
    const int one = 1 << mantissa_bits;
    return exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                         : std::ldexp(one + mantissa, exponent - bias - mantissa_bits);
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for (int code = 0; code <= largest_code; ++code) all.push_back(value(code));
    return all;
  }
};
constexpr Format kF16{10, 15, 0x7BFF};
constexpr Format kE4M3{3, 7, 0x7E};
constexpr Format kE5M2{2, 15, 0x7B};
constexpr Format kE2M1{1, 1, 0x7};

/// Nearest magnitude code by search in the table, ties to the even code, saturating.
int nearest_code(const std::vector<double>& values, double magnitude) {
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  if (above == values.end()) return static_cast<int>(values.size()) - 1;
  const auto upper = static_cast<int>(above - values.begin());
  if (upper == 0) return 0;
  const double to_upper = *above - magnitude;
  const double to_lower = magnitude - *(above - 1);
  if (to_upper == to_lower) return upper % 2 == 0 ? upper : upper - 1;
  return to_upper < to_lower ? upper : upper - 1;
}

/// Codes, midpoints between codes and the floats next to both: where rounding can go wrong.
std::vector<float> critical_floats(const std::vector<double>& values) {
  std::vector<float> floats{kInf, std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::min(),
                            std::numeric_limits<float>::denorm_min()};
  const auto add = [&](double x) {
    const auto f = static_cast<float>(x);
    floats.insert(floats.end(), {f, std::nextafter(f, kInf), std::nextafter(f, 0.0f)});
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    add(values[i]);
    if (i > 0) add((values[i - 1] + values[i]) / 2);
  }
  add(values.back() * 1.0625);
  add(values.back() * 2);
  return floats;
}

/// Compares an encoder with the search over every critical float, both signs, and a sweep over all
/// exponents.
template <typename Encode>
void check_encoder(const Format& format, int sign_bit, Encode encode) {
  const std::vector<double> values = format.values();
  std::vector<float> floats = critical_floats(values);
  for (std::uint32_t bits = 0; bits < 0x7F800000u; bits += 104729) {
    floats.push_back(std::bit_cast<float>(bits));
  }
  int wrong = 0;
  for (float x : floats) {
    const int expected = nearest_code(values, x);
    wrong += static_cast<int>(encode(x)) != expected;
    wrong += static_cast<int>(encode(-x)) != (expected | sign_bit);
  }
  CHECK(wrong == 0);
}

TEST_CASE("every e4m3 code decodes to the value of its definition and survives a round trip") {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<unsigned char>(code);
    const float value = attn::e4m3_to_float(byte);
    if ((code & 0x7F) == 0x7F) {
      CHECK(std::isnan(value));
      continue;
    }
    const double magnitude = kE4M3.value(code & 0x7F);
    CHECK(value == (code < 128 ? magnitude : -magnitude));
    CHECK(std::signbit(value) == (code >= 128));
    CHECK(attn::e4m3_from_float(value) == byte);
  }
}

TEST_CASE("every e5m2 code decodes to the value of its definition and survives a round trip") {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<unsigned char>(code);
    const float value = attn::e5m2_to_float(byte);
    const int magnitude_code = code & 0x7F;
    if (magnitude_code > 0x7C) {
      CHECK(std::isnan(value));
    } else if (magnitude_code == 0x7C) {
      CHECK(value == (code < 128 ? kInf : -kInf));
    } else {
      const double magnitude = kE5M2.value(magnitude_code);
      CHECK(value == (code < 128 ? magnitude : -magnitude));
      CHECK(attn::e5m2_from_float(value) == byte);
    }
  }
}

TEST_CASE("e4m3 rounds to the nearest code, ties to even, and saturates") {
  check_encoder(kE4M3, 0x80, attn::e4m3_from_float);
}

TEST_CASE("e5m2 rounds to the nearest code, ties to even, and saturates") {
  check_encoder(kE5M2, 0x80, attn::e5m2_from_float);
}

TEST_CASE("e2m1 rounds to the nearest code, ties to even, and saturates") {
  check_encoder(kE2M1, 0x8, attn::e2m1_from_float);
  const float codes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (unsigned char code = 0; code < 8; ++code) {
    CHECK(attn::e2m1_to_float(code) == codes[code]);
    CHECK(attn::e2m1_to_float(code | 8) == -codes[code]);
  }
  const std::pair<float, float> ties[] = {{0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2},
                                          {2.5f, 2},  {3.5f, 4},  {5, 4}};
  for (const auto& [x, rounded] : ties) {
    CHECK(attn::e2m1_to_float(attn::e2m1_from_float(x)) == rounded);
  }
}

TEST_CASE("the golden fp8 codes of the semantics hold") {
  const std::pair<float, int> e4m3[] = {{1.0f, 0x38},     {-2.0f, 0xC0},     {448.0f, 0x7E},
                                        {449.0f, 0x7E},   {465.0f, 0x7E},    {1e30f, 0x7E},
                                        {kInf, 0x7E},     {-kInf, 0xFE},     {0x1p-9f, 0x01},
                                        {0x1p-10f, 0x00}, {0x1.8p-10f, 0x01}};
  for (const auto& [x, code] : e4m3) CHECK(attn::e4m3_from_float(x) == code);
  CHECK(attn::e4m3_from_float(kNan) == 0x7F);
  CHECK(attn::e5m2_from_float(1.0f) == 0x3C);
  CHECK(attn::e5m2_from_float(57344.0f) == 0x7B);
  CHECK(attn::e5m2_from_float(1e6f) == 0x7B);
  CHECK(attn::e5m2_from_float(kInf) == 0x7B);
  CHECK(std::isnan(attn::e5m2_to_float(attn::e5m2_from_float(kNan))));
}

TEST_CASE("every float16 code decodes to the value of its definition and survives a round trip") {
  int wrong = 0;
  for (int code = 0; code < 0x7C00; ++code) {
    const float value = attn::f16_to_float(static_cast<std::uint16_t>(code));
    wrong += value != kF16.value(code);
    wrong += attn::f16_to_float(static_cast<std::uint16_t>(code | 0x8000)) != -value;
    wrong += attn::f16_from_float(value) != code;
    wrong += attn::f16_from_float(-value) != (code | 0x8000);
  }
  CHECK(wrong == 0);
  CHECK(attn::f16_to_float(0x7C00) == kInf);
  CHECK(attn::f16_to_float(0xFC00) == -kInf);
  for (int code = 0x7C01; code < 0x8000; ++code) {
    CHECK(std::isnan(attn::f16_to_float(static_cast<std::uint16_t>(code))));
  }
}

TEST_CASE("float16 rounds to the nearest code, ties to even, and overflows to infinity") {
  const std::vector<double> values = kF16.values();
  std::vector<float> floats = critical_floats(values);
  for (std::uint32_t bits = 0; bits < 0x7F800000u; bits += 251) {
    floats.push_back(std::bit_cast<float>(bits));
  }
  int wrong = 0;
  for (float x : floats) {
    // 65520 is halfway between the largest number and 2^16.
    const int expected = x >= 65520.0f ? 0x7C00 : nearest_code(values, x);
    wrong += attn::f16_from_float(x) != expected;
    wrong += attn::f16_from_float(-x) != (expected | 0x8000);
  }
  CHECK(wrong == 0);
  CHECK(std::isnan(attn::f16_to_float(attn::f16_from_float(-kNan))));
}

#if defined(__GNUC__) && !defined(__clang__)
TEST_CASE("float16 agrees with the compiler's own half type on a sweep of all floats") {
  __extension__ using Half = _Float16;
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x7F800000u; bits += 509) {
    const auto x = std::bit_cast<float>(bits);
    wrong += attn::f16_from_float(x) != std::bit_cast<std::uint16_t>(static_cast<Half>(x));
  }
  CHECK(wrong == 0);
}
#endif

TEST_CASE("bfloat16 rounds to the nearer neighbour, ties to even") {
  int wrong = 0;
  for (std::uint32_t upper = 0; upper < 0x7F80u; ++upper) {
    for (std::uint32_t lower : {0x0u, 0x1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const auto x = std::bit_cast<float>(upper << 16 | lower);
      const double below = std::bit_cast<float>(upper << 16);
      // The code above the largest finite one stands for 2^128 when distances are compared.
      const double above = upper == 0x7F7F ? 0x1p128 : std::bit_cast<float>((upper + 1) << 16);
      const bool tie = x - below == above - x;
      const bool up = tie ? upper % 2 == 1 : x - below > above - x;
      const std::uint32_t expected = upper + (up ? 1 : 0);
      wrong += attn::bf16_from_float(x) != expected;
      wrong += attn::bf16_from_float(-x) != (expected | 0x8000u);
    }
  }
  CHECK(wrong == 0);
  CHECK(attn::bf16_from_float(kInf) == 0x7F80);
  CHECK(attn::bf16_to_float(0x3F80) == 1.0f);
}

TEST_CASE("a NaN of either sign has one code in the 8-bit and 4-bit formats") {
  for (const float nan : {kNan, -kNan}) {
    CHECK(attn::e4m3_from_float(nan) == 0x7F);
    CHECK(attn::e5m2_from_float(nan) == 0x7F);
    CHECK(attn::e2m1_from_float(nan) == 7);
  }
}

TEST_CASE("a NaN stays a NaN in bfloat16 even when its payload sits in the lower bits") {
  for (std::uint32_t bits : {0x7F800001u, 0x7FFFFFFFu, 0xFF800001u, 0x7FC00000u}) {
    CHECK(std::isnan(attn::bf16_to_float(attn::bf16_from_float(std::bit_cast<float>(bits)))));
  }
}

TEST_CASE("ue8m0 codes are powers of two") {
  for (int code = 0; code < 255; ++code) {
    CHECK(attn::ue8m0_to_float(static_cast<unsigned char>(code)) == std::ldexp(1.0f, code - 127));
  }
  CHECK(std::isnan(attn::ue8m0_to_float(255)));
}

TEST_CASE("int8 conversions round, truncate and saturate as defined") {
  int wrong = 0;
  for (int i = -300 * 64; i <= 300 * 64; ++i) {
    const float x = static_cast<float>(i) / 64.0f;  // exact, so that ties are ties
    const auto saturated = [](double y) {
      return static_cast<int>(y < -128 ? -128 : (y > 127 ? 127 : y));
    };
    wrong += attn::i8_nearest_even(x) != saturated(std::nearbyint(double{x}));
    wrong += attn::i8_half_away(x) != saturated(std::round(double{x}));
    wrong += attn::i8_truncate(x) != saturated(std::trunc(double{x}));
  }
  CHECK(wrong == 0);
  CHECK(attn::i8_nearest_even(2.5f) == 2);
  CHECK(attn::i8_nearest_even(3.5f) == 4);
  CHECK(attn::i8_nearest_even(-2.5f) == -2);
  CHECK(attn::i8_nearest_even(200) == 127);
  CHECK(attn::i8_nearest_even(-200) == -128);
  CHECK(attn::i8_nearest_even(-kInf) == -128);
  CHECK(attn::i8_nearest_even(kNan) == 0);
  CHECK(attn::i8_half_away(2.5f) == 3);
  CHECK(attn::i8_half_away(-2.5f) == -3);
  CHECK(attn::i8_half_away(kInf) == 127);
  CHECK(attn::i8_truncate(2.9f) == 2);
}

TEST_CASE("names of dtypes round trip and unknown names are refused") {
  for (Dtype dtype : kAllDtypes) {
    CHECK(dtype_from_safetensors_name(safetensors_name(dtype)) == dtype);
  }
  CHECK(safetensors_name(Dtype::kE4M3) == "F8_E4M3");
  CHECK(dtype_name(Dtype::kBF16) == "bfloat16");
  CHECK_FALSE(dtype_from_safetensors_name("F8_E9M9").has_value());
  CHECK_FALSE(dtype_from_safetensors_name("").has_value());
}

TEST_CASE(
    "a small integer survives being stored and loaded in every dtype, next to its neighbours") {
  for (Dtype dtype : kAllDtypes) {
    const std::size_t size = dtype_size(dtype);
    std::vector<unsigned char> bytes(3 * size, 0xAB);
    store_float(dtype, bytes.data(), 1, 5.0f);
    CHECK(load_float(dtype, bytes.data(), 1) == 5.0f);
    for (std::size_t i = 0; i < size; ++i) {
      CHECK(bytes[i] == 0xAB);
      CHECK(bytes[2 * size + i] == 0xAB);
    }
  }
}

TEST_CASE("rows convert as single values do") {
  const std::vector<float> values{0, -1.5f, 3.14159f, 1e5f, -1e-6f, 120.4f};
  for (Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kE4M3, Dtype::kE5M2,
                      Dtype::kF64, Dtype::kI8}) {
    const auto count = static_cast<std::int64_t>(values.size());
    std::vector<unsigned char> row(values.size() * 8);
    std::vector<float> loaded(values.size());
    store_floats(dtype, values.data(), count, row.data());
    load_floats(dtype, row.data(), count, loaded.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      CHECK(loaded[i] == round_to(dtype, values[i]));
      CHECK(loaded[i] == load_float(dtype, row.data(), static_cast<std::int64_t>(i)));
    }
  }
}

TEST_CASE("stored values saturate or overflow by their dtype") {
  CHECK(round_to(Dtype::kF16, 1e5f) == kInf);
  CHECK(round_to(Dtype::kE4M3, 1e5f) == 448.0f);
  CHECK(round_to(Dtype::kE5M2, -1e5f) == -57344.0f);
  CHECK(round_to(Dtype::kI8, 1e5f) == 127.0f);
  CHECK(round_to(Dtype::kF64, 0.1f) == 0.1f);
}

}  // namespace
}  // namespace attnbench
