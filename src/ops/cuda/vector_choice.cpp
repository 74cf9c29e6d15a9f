// Alignment as a sum of bits: an address or stride is or-ed to the others, and the lowest bit that
// is set says what all of them are multiples of.
#include "ops/cuda/vector_choice.h"

#include <algorithm>

#include "core/numbers/dtype.h"

namespace attnbench::cuda {

Alignment& Alignment::stride(std::int64_t count, attn::Element element) {
  return bytes(count * size_of_element(element));
}

int Alignment::common_bytes() const { return static_cast<int>(all_ & (~all_ + 1)); }

int size_of_element(attn::Element element) {
  return static_cast<int>(dtype_size(static_cast<Dtype>(element)));
}

std::string short_name(attn::Element element) {
  switch (element) {
    case attn::Element::kF32:
      return "f32";
    case attn::Element::kF16:
      return "f16";
    case attn::Element::kBF16:
      return "bf16";
    case attn::Element::kF64:
      return "f64";
    case attn::Element::kE4M3:
      return "e4m3";
    case attn::Element::kE5M2:
      return "e5m2";
    case attn::Element::kI8:
      return "i8";
    case attn::Element::kI32:
      return "i32";
    case attn::Element::kI64:
      return "i64";
    case attn::Element::kU8:
      return "u8";
  }
  return "";
}

std::string spec_name(attn::Element element) {
  switch (element) {
    case attn::Element::kF32:
      return "attn::Element::kF32";
    case attn::Element::kF16:
      return "attn::Element::kF16";
    case attn::Element::kBF16:
      return "attn::Element::kBF16";
    case attn::Element::kF64:
      return "attn::Element::kF64";
    case attn::Element::kE4M3:
      return "attn::Element::kE4M3";
    case attn::Element::kE5M2:
      return "attn::Element::kE5M2";
    case attn::Element::kI8:
      return "attn::Element::kI8";
    case attn::Element::kI32:
      return "attn::Element::kI32";
    case attn::Element::kI64:
      return "attn::Element::kI64";
    case attn::Element::kU8:
      return "attn::Element::kU8";
  }
  return "";
}

std::string spec_flag(bool value) { return value ? "true" : "false"; }

int widest_vector(int most, std::initializer_list<std::int64_t> widths,
                  std::initializer_list<VectorSide> sides) {
  const auto fits = [&](int vector) {
    return std::all_of(widths.begin(), widths.end(),
                       [&](std::int64_t width) { return width % vector == 0; }) &&
           std::all_of(sides.begin(), sides.end(), [&](const VectorSide& side) {
             return std::min(vector * size_of_element(side.element), 16) <=
                    side.alignment.common_bytes();
           });
  };
  int vector = most;
  while (vector > 1 && !fits(vector)) vector /= 2;
  return vector;
}

bool scales_follow_codes(const CodesAndScales& side) {
  return static_cast<const char*>(side.codes) + side.width ==
             reinterpret_cast<const char*>(side.scales) &&
         side.block_stride == side.scale_block_stride * 4 &&
         side.slot_stride == side.scale_slot_stride * 4 &&
         side.head_stride == side.scale_head_stride * 4;
}

std::int64_t ceil_quotient(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace attnbench::cuda
