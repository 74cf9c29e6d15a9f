// How many bytes a thread may load and store at a time, given the addresses of an operation, and
// how specs call element types.
//
// A load of 16 bytes must lie on a multiple of 16, or the kernel faults. Problems come with any
// strides, views into captured tensors among them, so every launcher collects what it will address
// and takes the widest vector that fits all of it. Only multiples count and not the addresses, so a
// problem gets the same kernel wherever its buffers are.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/params.h"

namespace attnbench::cuda {

/// What every address of an operation is a multiple of: pointers and strides are added one by one.
class Alignment {
 public:
  Alignment& pointer(const void* address) {
    return bytes(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address)));
  }
  /// A stride of `count` elements.
  Alignment& stride(std::int64_t count, attn::Element element);
  Alignment& bytes(std::int64_t count) {
    all_ |= static_cast<std::uint64_t>(count);
    return *this;
  }
  /// The largest power of two up to 16 that divides all of them.
  int common_bytes() const;

 private:
  std::uint64_t all_ = 16;
};

/// Bytes of one element.
int size_of_element(attn::Element element);
/// "attn::Element::kBF16", as a spec writes it.
std::string spec_name(attn::Element element);
/// "true" or "false", as a spec writes it.
std::string spec_flag(bool value);
/// "bf16", for the names of kernels.
std::string short_name(attn::Element element);

/// One of the places that an operation reads or writes by vectors.
struct VectorSide {
  attn::Element element;
  Alignment alignment;
};
/// The largest power of two up to `most` that divides every width and whose bytes, or 16 of them
/// where that is less, fit the alignment of every side.
int widest_vector(int most, std::initializer_list<std::int64_t> widths,
                  std::initializer_list<VectorSide> sides);

/// Keys or values of a cache with a scale for every token and head.
struct CodesAndScales {
  const void* codes;
  int width;  // codes of a token and head
  const float* scales;
  std::int64_t block_stride, slot_stride, head_stride;                    // bytes
  std::int64_t scale_block_stride, scale_slot_stride, scale_head_stride;  // floats
};
/// Whether every scale lies right behind its codes (semantics §5.5).
bool scales_follow_codes(const CodesAndScales& side);

/// a / b rounded up, for a >= 0 and b > 0.
std::int64_t ceil_quotient(std::int64_t a, std::int64_t b);

}  // namespace attnbench::cuda
