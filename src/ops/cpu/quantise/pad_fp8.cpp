// fp8 quantisation of the multimodal encoder's inputs with a padded head size (semantics §10.5).
// Padded columns are zero, which changes no score; what saturates is counted for the warning about
// signed amax.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/common/numeric.cuh"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

/// From halfway between 448 and the next code that e4m3 would have, a cast without saturation is
/// NaN (§0.4).
constexpr float kLastRounded = 464.0f;

/// Divides where the head size is padded and multiplies by the reciprocal where it is not: upstream
/// has two kernels, and codes on a tie differ. No scale = codes of the values themselves.
void apply_scale(const attn::PadQuantiseParams& params, float* values) {
  if (params.scale == nullptr) return;
  const float scale = params.scale[0];
  if (params.padded_head_size != params.head_size) {
    for (int d = 0; d < params.head_size; ++d) values[d] /= scale;
    return;
  }
  const float inverse = 1.0f / scale;
  // Why: below 2^-128 the reciprocal is infinite, and 0 * inf would make NaN of a zero tensor.
  for (int d = 0; d < params.head_size; ++d) {
    values[d] = values[d] == 0.0f ? values[d] : values[d] * inverse;
  }
}

/// Returns how many values are lost to saturation.
attn::i64 encode(const float* values, int count, attn::u8* codes) {
  attn::i64 saturated = 0;
  for (int d = 0; d < count; ++d) {
    saturated += std::fabs(values[d]) > kLastRounded ? 1 : 0;
    codes[d] = std::isnan(values[d]) ? attn::u8{0x7F} : attn::e4m3_from_float(values[d]);
  }
  return saturated;
}

}  // namespace

void quantise_pad_fp8(const attn::PadQuantiseParams& params, Workers& workers) {
  std::atomic<attn::i64> total = 0;
  workers.pool.parallel_for(params.num_tokens, [&](std::int64_t token, int thread) {
    Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
    scratch.reserve(params.head_size, params.head_size, 0);
    attn::i64 saturated = 0;
    for (int head = 0; head < params.num_heads; ++head) {
      const attn::i64 first = token * params.source_token_stride + head * params.source_head_stride;
      load_wide_row(params.source_element, element_at(params.source_element, params.source, first),
                    params.head_size, scratch.line.data());
      apply_scale(params, scratch.line.data());
      attn::u8* codes = params.codes + (token * params.num_heads + head) * params.padded_head_size;
      saturated += encode(scratch.line.data(), params.head_size, codes);
      std::fill(codes + params.head_size, codes + params.padded_head_size, attn::u8{0});
    }
    total += saturated;
  });
  if (params.num_saturated != nullptr) *params.num_saturated += total;
}

void quantise_encoder(const attn::EncoderQuantiseParams& params, Workers& workers) {
  for (int i = 0; i < 3; ++i) {
    const attn::EncoderTensor& tensor = params.tensors[i];
    attn::i64* const saturated =
        params.num_saturated == nullptr ? nullptr : params.num_saturated + i;
    quantise_pad_fp8({params.source_element, tensor.source, tensor.token_stride, tensor.head_stride,
                      params.codes[i], params.scale[i], saturated, tensor.num_tokens,
                      tensor.num_heads, params.head_size, params.padded_head_size},
                     workers);
  }
}

}  // namespace attnbench::cpu
