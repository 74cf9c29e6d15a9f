// What the products of SM 9.0 read and how they sum, on emulated threads: operands in shared memory
// as matrix descriptors say they lie, elements by their codes, and what a step leaves in an
// accumulator. Descriptors and swizzles are decoded from the PTX manual's description, not by the
// functions that the kernels make them with.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "ops/cuda/testing/emulated_cta_testing.h"

namespace attnbench::cuda {

/// The exchange of 16-byte pieces for lines of `span` bytes: address bits from 4 on take those from
/// 7 on.
inline std::uint32_t exchanged(std::uint32_t address, int span) {
  const std::uint32_t pieces = span == 128 ? 7 : (span == 64 ? 3 : (span == 32 ? 1 : 0));
  return address ^ ((address >> 7 & pieces) << 4);
}

/// What a matrix descriptor says.
struct EmulatedOperand {
  std::uint32_t start;
  std::uint32_t leading;
  std::uint32_t stride;
  int span;
  explicit EmulatedOperand(std::uint64_t descriptor)
      : start(static_cast<std::uint32_t>(descriptor & 0x3FFF) << 4),
        leading(static_cast<std::uint32_t>(descriptor >> 16 & 0x3FFF) << 4),
        stride(static_cast<std::uint32_t>(descriptor >> 32 & 0x3FFF) << 4) {
    const auto mode = static_cast<int>(descriptor >> 62);
    span = mode == 1 ? 128 : (mode == 2 ? 64 : (mode == 3 ? 32 : 0));
    if (span == 0) throw std::logic_error("a descriptor without swizzle");
    if (start % 16 != 0) throw std::logic_error("a descriptor off 16 bytes");
  }
  /// K-major: lines are rows; 32 bytes of the contraction lie in one.
  template <typename T>
  T along(int row, int k) const {
    const std::uint32_t at =
        start + static_cast<std::uint32_t>(row / 8) * stride +
        static_cast<std::uint32_t>(row % 8 * span + k * static_cast<int>(sizeof(T)));
    return element<T>(at);
  }
  /// MN-major: lines are steps of the contraction, spans follow one another by the leading stride.
  template <typename T>
  T across(int k, int column) const {
    const int elements = span / 2;
    const std::uint32_t at = start + static_cast<std::uint32_t>(column / elements) * leading +
                             static_cast<std::uint32_t>(k / 8) * stride +
                             static_cast<std::uint32_t>(k % 8 * span + column % elements * 2);
    return element<T>(at);
  }

 private:
  /// Descriptors know no ranks: they are of the CTA's own memory.
  template <typename T>
  T element(std::uint32_t at) const {
    T value;
    std::memcpy(&value, running_cta->shared() + exchanged(at, span), sizeof value);
    return value;
  }
};

/// Elements of products as they lie in operands.
template <attn::Element kElement>
using ElementCode = std::conditional_t<kElement == attn::Element::kE4M3, attn::u8, attn::u16>;
/// Elements of a step of the contraction.
template <attn::Element kElement>
constexpr int kProductDepth = 32 / static_cast<int>(sizeof(ElementCode<kElement>));

/// By code. A product of a warp decodes each element of its operands many times over.
inline const std::array<double, 256> e4m3_numbers = [] {
  std::array<double, 256> numbers{};
  for (unsigned code = 0; code < 256; ++code) {
    numbers[code] = double{attn::e4m3_to_float(static_cast<attn::u8>(code))};
  }
  return numbers;
}();

template <attn::Element kElement>
double number_of(ElementCode<kElement> code) {
  if constexpr (kElement == attn::Element::kE4M3) return e4m3_numbers[code];
  if constexpr (kElement == attn::Element::kBF16) return double{attn::bf16_to_float(code)};
  if constexpr (kElement == attn::Element::kF16) return double{attn::f16_to_float(code)};
}

/// What a step leaves in an accumulator. Sums of e4m3 products are those of SM 9.0, as measured:
/// all terms are cut to 13 bits below the largest of them.
template <attn::Element kElement>
float sum_of_products(double before, const double* terms) {
  constexpr int kDepth = kProductDepth<kElement>;
  if constexpr (kElement == attn::Element::kE4M3) {
    // Four sums side by side do not wait for each other. In whatever order: what has been cut adds
    // up without rounding.
    double most[4] = {std::fabs(before), 0, 0, 0};
    for (int k = 0; k < kDepth; ++k) most[k % 4] = std::max(most[k % 4], std::fabs(terms[k]));
    const double largest = std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
    if (std::isnormal(largest)) {
      const double unit = std::ldexp(1.0, std::ilogb(largest) - 13);
      const double units = 1.0 / unit;  // exact: a power of two
      double sums[4] = {std::trunc(before * units), 0, 0, 0};
      for (int k = 0; k < kDepth; ++k) sums[k % 4] += std::trunc(terms[k] * units);
      return static_cast<float>(((sums[0] + sums[1]) + (sums[2] + sums[3])) * unit);
    }
  }
  double sum = before;
  for (int k = 0; k < kDepth; ++k) sum += terms[k];
  return static_cast<float>(sum);
}

}  // namespace attnbench::cuda
