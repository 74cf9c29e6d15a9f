// Keys and values of slots that both share (semantics §5.8): into their bytes and back. Operations
// of a write are rounded one by one in the order of the definition, because codes on a tie depend
// on it; sums of squares go by pairs, as the passes of the rotation do, so that threads of a GPU
// that have a few columns each come to the same bits.
#include "ops/cpu/quantise/slot_vectors.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/params_rope.h"
#include "ops/cpu/quantise/fp8_code.h"

namespace attnbench::cpu {
namespace {

/// Codes of eight columns at a time; code_of(column) is one.
template <typename CodeOf>
void pack_codes(int width, int bits, attn::u8* to, CodeOf code_of) {
  for (int first = 0; first < width; first += 8) {
    attn::u32 word = 0;
    for (int i = 0; i < 8; ++i) word |= static_cast<attn::u32>(code_of(first + i)) << (i * bits);
    attn::store_eight_codes(word, bits, to + attn::code_bytes(bits, first));
  }
}

/// The values are replaced by sums of their squares.
float norm_in_place(float* values, int width) {
  for (int d = 0; d < width; ++d) values[d] = values[d] * values[d];
  for (int apart = 1; apart < width; apart *= 2) {
    for (int d = 0; d + apart < width; d += 2 * apart) values[d] += values[d + apart];
  }
  return std::sqrt(values[0]);
}

float unit_of(int width) { return 1.0f / std::sqrt(static_cast<float>(width)); }

}  // namespace

void encode_slot_key(float* values, int width, int bits, const float* centroids, attn::u8* to) {
  if (bits == 8) {
    for (int d = 0; d < width; ++d) to[d] = attn::e4m3_from_float(values[d]);
    return;
  }
  float squares[attn::kMaxRotatedHead];
  std::copy(values, values + width, squares);
  const float norm = norm_in_place(squares, width);
  const float divisor = norm + 1e-8f;
  for (int d = 0; d < width; ++d) values[d] /= divisor;
  multiply_hadamard(values, width);
  const float unit = unit_of(width);
  pack_codes(width, bits, to, [&](int column) {
    return attn::centroid_index(values[column] * unit, centroids, bits);
  });
  attn::store_f16_bytes(norm, to + attn::code_bytes(bits, width));
}

void encode_slot_value(const float* values, int width, int bits, attn::u8* to) {
  float least = std::numeric_limits<float>::infinity();
  float most = -least;
  for (int d = 0; d < width; ++d) {
    least = attn::least_of(least, values[d]);
    most = std::fmax(most, values[d]);
  }
  const float step = attn::value_step(least, most, bits);
  pack_codes(width, bits, to,
             [&](int column) { return attn::value_code((values[column] - least) / step, bits); });
  attn::u8* const behind = to + attn::code_bytes(bits, width);
  attn::store_f16_bytes(step, behind);
  attn::store_f16_bytes(least, behind + 2);
}

void decode_slot_key(const attn::u8* from, int width, int bits, const float* centroids,
                     float* destination) {
  if (bits == 8) {
    for (int d = 0; d < width; ++d) destination[d] = attn::e4m3_to_float(from[d]);
    return;
  }
  float squares = 0.0f;
  for (int d = 0; d < width; ++d) {
    destination[d] = centroids[attn::packed_code(from, bits, d)];
    squares += destination[d] * destination[d];
  }
  multiply_hadamard(destination, width);
  const float norm = attn::load_f16_bytes(from + attn::code_bytes(bits, width));
  const float factor = norm / std::sqrt(squares + 1e-16f) * unit_of(width);
  for (int d = 0; d < width; ++d) destination[d] *= factor;
}

void decode_slot_value(const attn::u8* from, int width, int bits, float* destination) {
  const attn::u8* const behind = from + attn::code_bytes(bits, width);
  const float step = attn::load_f16_bytes(behind);
  const float least = attn::load_f16_bytes(behind + 2);
  for (int d = 0; d < width; ++d) {
    destination[d] = static_cast<float>(attn::packed_code(from, bits, d)) * step + least;
  }
}

}  // namespace attnbench::cpu
