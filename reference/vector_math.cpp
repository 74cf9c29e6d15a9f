// e^x = 2^n * e^r with |r| <= ln 2 / 2 and a polynomial for e^r; tanh and the rounding to narrow
// formats work on the same bits. Loops have no branches, since one would keep them from
// vectorising.
#include "reference/vector_math.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace attnbench {
namespace {

template <typename Real>
struct ExpFacts;

template <>
struct ExpFacts<double> {
  using Bits = std::int64_t;
  static constexpr int kMantissaBits = 52;
  static constexpr int kExponentBias = 1023;
  static constexpr double kLn2High = 0x1.62e42feep-1;  // 31 bits, so that n * kLn2High is exact
  static constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kLeast = -746;  // e^-746 rounds to 0
  static constexpr int kHeadroom = 100;
  static constexpr int kDegree = 13;
};

template <>
struct ExpFacts<float> {
  using Bits = std::int32_t;
  static constexpr int kMantissaBits = 23;
  static constexpr int kExponentBias = 127;
  static constexpr float kLn2High = 0x1.62e4p-1f;  // 15 bits
  static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr float kLeast = -105;
  static constexpr int kHeadroom = 40;
  static constexpr int kDegree = 7;
};

constexpr double inverse_factorial(int n) {
  double product = 1;
  for (int i = 2; i <= n; ++i) product *= i;
  return 1 / product;
}

/// Σ_{k >= K} r^(k-K) / k!, the tail of e^r, by Horner's rule.
template <typename Real, int K>
inline Real exp_tail(Real r) {
  constexpr Real kCoefficient = static_cast<Real>(inverse_factorial(K));
  if constexpr (K == ExpFacts<Real>::kDegree) {
    return kCoefficient;
  } else {
    return kCoefficient + r * exp_tail<Real, K + 1>(r);
  }
}

/// e^x = 2^n (1 + fraction), |n ln 2 - x| <= ln 2 / 2; `biased_power` has n in its low bits.
template <typename Real>
struct ExpParts {
  Real fraction;
  Real biased_power;
};

template <typename Real>
inline ExpParts<Real> exp_parts(Real x) {
  using Facts = ExpFacts<Real>;
  // Adding 1.5 * 2^mantissa rounds to an integer that is then in the low bits.
  constexpr Real kShift =
      static_cast<Real>(Real{3} / 2 * (std::int64_t{1} << Facts::kMantissaBits));
  constexpr Real kLog2E = static_cast<Real>(1.4426950408889634);
  const Real biased_power = x * kLog2E + kShift;
  const Real n = biased_power - kShift;
  const Real r = (x - n * Facts::kLn2High) - n * Facts::kLn2Low;
  return {r + r * r * exp_tail<Real, 2>(r), biased_power};
}

/// 2^(n + offset) from the low bits of biased_power; the result must be a normal number.
template <typename Real>
inline Real power_of_two(Real biased_power, int offset) {
  using Facts = ExpFacts<Real>;
  using Unsigned = std::make_unsigned_t<typename Facts::Bits>;
  const Unsigned exponent =
      std::bit_cast<Unsigned>(biased_power) + static_cast<Unsigned>(Facts::kExponentBias + offset);
  return std::bit_cast<Real>(static_cast<Unsigned>(exponent << Facts::kMantissaBits));
}

template <typename Real>
inline Real exp_not_positive(Real x) {
  using Facts = ExpFacts<Real>;
  constexpr Real kUndoHeadroom = Real{1} /
                                 static_cast<Real>(std::int64_t{1} << (Facts::kHeadroom / 2)) /
                                 static_cast<Real>(std::int64_t{1} << (Facts::kHeadroom / 2));
  const Real clamped = x < Facts::kLeast ? Facts::kLeast : x;  // NaN passes
  const ExpParts<Real> parts = exp_parts(clamped);
  // Why two factors: 2^n by itself may be subnormal, which the bit trick cannot form.
  const Real scale = power_of_two(parts.biased_power, Facts::kHeadroom);
  return (scale + scale * parts.fraction) * kUndoHeadroom;
}

template <typename Real>
inline Real tanh_value(Real x) {
  constexpr Real kSaturated = -40;  // tanh(20) rounds to 1
  const Real doubled = -2 * std::abs(x);
  const ExpParts<Real> parts = exp_parts(doubled < kSaturated ? kSaturated : doubled);
  const Real scale = power_of_two(parts.biased_power, 0);
  // e^(-2|x|) - 1 without cancellation, so that small scores keep their relative precision.
  const Real exp_minus_one = scale * parts.fraction + (scale - 1);
  return std::copysign(-exp_minus_one / (2 + exp_minus_one), x);
}

/// Rounds to a format of kMantissaBits and the given least normal exponent, unbounded above.
template <int kMantissaBits, int kMinExponent>
inline float round_mantissa(float magnitude) {
  constexpr int kDropped = 23 - kMantissaBits;
  constexpr std::uint32_t kHalf = (std::uint32_t{1} << (kDropped - 1)) - 1;
  constexpr std::uint32_t kMask = ~((std::uint32_t{1} << kDropped) - 1);
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  const float normal = std::bit_cast<float>((bits + kHalf + ((bits >> kDropped) & 1u)) & kMask);
  if constexpr (kMinExponent <= -126) {
    return normal;  // as wide as f32: its subnormals are rounded by the same carry
  } else {
    // Adding a number whose ulp is the subnormal step rounds to that step.
    constexpr auto kStep = static_cast<std::uint32_t>(kMinExponent + kDropped + 127) << 23;
    constexpr float kAddend = std::bit_cast<float>(kStep);
    constexpr float kLeastNormal =
        std::bit_cast<float>(static_cast<std::uint32_t>(kMinExponent + 127) << 23);
    const float subnormal = (magnitude + kAddend) - kAddend;
    return magnitude < kLeastNormal ? subnormal : normal;
  }
}

/// `overflow` replaces what rounds above `greatest`: infinity, or greatest itself to saturate.
template <int kMantissaBits, int kMinExponent>
void round_array(float* values, std::int64_t count, float greatest, float overflow) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float magnitude = std::abs(values[i]);
    const float rounded = round_mantissa<kMantissaBits, kMinExponent>(magnitude);
    const float bounded = rounded > greatest ? overflow : rounded;
    values[i] = magnitude == magnitude ? std::copysign(bounded, values[i]) : values[i];
  }
}

inline float f16_value(std::uint16_t code) {
  const std::uint32_t magnitude = code & 0x7FFFu;
  // The f16 exponent in the f32 field is 112 too small; the product is exact, subnormals included.
  const float finite = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special = magnitude >= 0x7C00u ? 0x7F800000u : 0u;
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x8000u) << 16;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(finite) | special | sign);
}

inline float bf16_value(std::uint16_t code) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
}

/// Value of every code of a one-byte format.
std::array<float, 256> byte_values(Dtype dtype) {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    values[code] = load_float(dtype, &byte, 0);
  }
  return values;
}

template <typename Code, typename Real, typename Value>
void load_codes(const void* data, std::int64_t first, std::int64_t count, Real* destination,
                const Value& value) {
  const Code* codes = static_cast<const Code*>(data) + first;
  for (std::int64_t i = 0; i < count; ++i) destination[i] = static_cast<Real>(value(codes[i]));
}

}  // namespace

template <typename Real>
void exp_minus(Real* values, std::int64_t count, Real maximum) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = exp_not_positive(values[i] - maximum);
}
template void exp_minus(double*, std::int64_t, double);
template void exp_minus(float*, std::int64_t, float);

template <typename Real>
void soft_cap(Real* values, std::int64_t count, Real cap) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = cap * tanh_value(values[i] / cap);
}
template void soft_cap(double*, std::int64_t, double);
template void soft_cap(float*, std::int64_t, float);

void round_values(Dtype dtype, float* values, std::int64_t count) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  switch (dtype) {
    case Dtype::kF32:
    case Dtype::kF64:
      return;
    case Dtype::kF16:
      return round_array<10, -14>(values, count, 65504, kInfinity);
    case Dtype::kBF16:
      return round_array<7, -126>(values, count, kInfinity, kInfinity);
    case Dtype::kE4M3:
      return round_array<3, -6>(values, count, 448, 448);
    case Dtype::kE5M2:
      return round_array<2, -14>(values, count, 57344, 57344);
    case Dtype::kI8:
    case Dtype::kI32:
    case Dtype::kI64:
    case Dtype::kU8:
      for (std::int64_t i = 0; i < count; ++i) values[i] = round_to(dtype, values[i]);
  }
}

template <typename Real>
void load_values(Dtype dtype, const void* data, std::int64_t first, std::int64_t count,
                 Real* destination) {
  static const std::array<float, 256> kE4M3Values = byte_values(Dtype::kE4M3);
  static const std::array<float, 256> kE5M2Values = byte_values(Dtype::kE5M2);
  const auto same = [](auto value) { return value; };
  switch (dtype) {
    case Dtype::kF64:
      return load_codes<double>(data, first, count, destination, same);
    case Dtype::kF32:
      return load_codes<float>(data, first, count, destination, same);
    case Dtype::kF16:
      return load_codes<std::uint16_t>(data, first, count, destination, f16_value);
    case Dtype::kBF16:
      return load_codes<std::uint16_t>(data, first, count, destination, bf16_value);
    case Dtype::kE4M3:
      return load_codes<std::uint8_t>(data, first, count, destination,
                                      [](std::uint8_t code) { return kE4M3Values[code]; });
    case Dtype::kE5M2:
      return load_codes<std::uint8_t>(data, first, count, destination,
                                      [](std::uint8_t code) { return kE5M2Values[code]; });
    case Dtype::kI8:
    case Dtype::kI32:
    case Dtype::kI64:
    case Dtype::kU8:
      for (std::int64_t i = 0; i < count; ++i) {
        destination[i] = static_cast<Real>(load_float(dtype, data, first + i));
      }
  }
}
template void load_values(Dtype, const void*, std::int64_t, std::int64_t, double*);
template void load_values(Dtype, const void*, std::int64_t, std::int64_t, float*);

}  // namespace attnbench
