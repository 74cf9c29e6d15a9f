// Rows of typed memory: their addresses, room for them in the scratch, decoding to float32,
// encoding from it, and reductions over them. Every CPU operation reads and writes its tensors
// through these, so that it computes in float32 whatever the element type, and rounds once when it
// stores.
//
// The quick ways for f16 and bf16 give the bits of load_floats and store_floats of core/dtype.h,
// which define what a code means; only the payload of an f16 NaN may differ.
#pragma once

#include <array>
#include <cstdint>

#include "core/numbers/dtype.h"
#include "kernels/params.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// Bytes of one element. Signed, because strides are and their products may be negative.
inline std::int64_t element_size(attn::Element element) {
  return static_cast<std::int64_t>(dtype_size(static_cast<Dtype>(element)));
}

/// Address of element `index` of an array of `element`.
inline const char* element_at(attn::Element element, const void* base, attn::i64 index) {
  return static_cast<const char*>(base) + index * element_size(element);
}
inline char* element_at(attn::Element element, void* base, attn::i64 index) {
  return static_cast<char*>(base) + index * element_size(element);
}

/// Grows `array` to at least `size` and returns its start. Never shrinks: one thread's scratch goes
/// from operation to operation, and only the first of a size allocates.
inline float* room_for(FloatArray& array, std::int64_t size) {
  if (static_cast<std::int64_t>(array.size()) < size) array.resize(static_cast<std::size_t>(size));
  return array.data();
}

/// destination [count]; `codes` holds the values of one-byte formats, which may include a scale,
/// and is unused for others.
void decode_row(attn::Element element, const void* source, int count, const CodeTable& codes,
                float* destination);

/// decode_row() for callers without a table of codes: no one-byte elements.
inline void load_wide_row(attn::Element element, const void* source, std::int64_t count,
                          float* destination) {
  static const CodeTable kUnused{};
  decode_row(element, source, static_cast<int>(count), kUnused, destination);
}

/// Encodes source [count] by the rules of store_floats, which rounds once.
void store_row(attn::Element element, const float* source, std::int64_t count, void* destination);

/// fold(running, value) over values [count], beginning with `start`. It runs in kLanes independent
/// lanes, which are folded into each other at the end, because one running value does not
/// vectorise; `fold` must give the same in every order, as a maximum does and a sum does not.
template <typename Fold>
float reduce_lanes(const float* values, int count, float start, const Fold& fold) {
  std::array<float, kLanes> lanes;
  lanes.fill(start);
  const int whole = count / kLanes * kLanes;
  for (int d = 0; d < whole; d += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l)
      lanes[l] = fold(lanes[l], values[d + static_cast<int>(l)]);
  }
  for (int d = whole; d < count; ++d) lanes[0] = fold(lanes[0], values[d]);
  for (std::size_t l = 1; l < kLanes; ++l) lanes[0] = fold(lanes[0], lanes[l]);
  return lanes[0];
}

}  // namespace attnbench::cpu
