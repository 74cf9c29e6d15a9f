// Addresses of rows in typed memory, room for them, and their encoding.
#pragma once

#include <cstdint>

#include "kernels/params.h"
#include "ops/cpu/element.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// Address of element `index` of an array of `element`.
inline const char* element_at(attn::Element element, const void* base, attn::i64 index) {
  return static_cast<const char*>(base) + index * element_size(element);
}
inline char* element_at(attn::Element element, void* base, attn::i64 index) {
  return static_cast<char*>(base) + index * element_size(element);
}

/// Grows `array` to at least `size` and returns its start.
inline float* room_for(FloatArray& array, std::int64_t size) {
  if (static_cast<std::int64_t>(array.size()) < size) array.resize(static_cast<std::size_t>(size));
  return array.data();
}

/// load_floats, quickly for f16 and bf16. No one-byte elements.
inline void load_wide_row(attn::Element element, const void* source, std::int64_t count,
                          float* destination) {
  static const CodeTable kUnused{};
  decode_row(element, source, static_cast<int>(count), kUnused, destination);
}

/// store_floats, quickly for f16 and bf16; only the payload of an f16 NaN may differ.
void store_row(attn::Element element, const float* source, std::int64_t count, void* destination);

}  // namespace attnbench::cpu
