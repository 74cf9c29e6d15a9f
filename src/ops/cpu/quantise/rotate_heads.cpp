// Rotation by signs and the matrix of Hadamard (semantics §5.6). The passes over a head are sums
// and differences only, in the order of the definition, so that the bits are those of the kernels.
#include <algorithm>

#include "kernels/common/packed_codes.cuh"
#include "kernels/params_rope.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/quantise/fp8_code.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

void apply_signs(float* values, int width) {
  for (int first = 0; first < width; first += 32) {
    const attn::u32 signs = attn::rotation_signs_of(first / 32);
    for (int d = first; d < std::min(first + 32, width); ++d) {
      if ((signs >> (d - first) & 1u) != 0u) values[d] = -values[d];
    }
  }
}

}  // namespace

void multiply_hadamard(float* values, int width) {
  for (int apart = 1; apart < width; apart *= 2) {
    for (int first = 0; first < width; first += 2 * apart) {
      for (int d = first; d < first + apart; ++d) {
        const float lower = values[d];
        const float upper = values[d + apart];
        values[d] = lower + upper;
        values[d + apart] = lower - upper;
      }
    }
  }
}

void rotate_head(float* values, int width, bool inverse) {
  if (!inverse) apply_signs(values, width);
  multiply_hadamard(values, width);
  if (!inverse) return;
  apply_signs(values, width);
  for (int d = 0; d < width; ++d) values[d] /= static_cast<float>(width);
}

void rotate_heads(const attn::RotateHeadsParams& params, Workers& workers) {
  workers.pool.parallel_for(params.num_tokens, [&](std::int64_t token, int thread) {
    float* values =
        room_for(workers.scratch[static_cast<std::size_t>(thread)].line, params.head_size);
    for (attn::i64 head = 0; head < params.num_heads; ++head) {
      load_wide_row(
          params.element,
          element_at(params.element, params.source,
                     token * params.source_token_stride + head * params.source_head_stride),
          params.head_size, values);
      rotate_head(values, params.head_size, params.inverse != 0);
      store_row(params.element, values, params.head_size,
                element_at(params.element, params.output,
                           token * params.output_token_stride + head * params.output_head_stride));
    }
  });
}

}  // namespace attnbench::cpu
