// int8 quantisation of attention inputs (semantics §11.2), with a scale for each token and head,
// made here, or for each channel, made here or given. Channels need two passes over the tensor: no
// code is known before the largest value of all tokens is.
#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

constexpr float kMaxCode = 127.0f;

/// Where the codes of a token and head go; load_row() reads where they come from.
signed char* code_row(const attn::Int8QuantiseParams& params, std::int64_t token, int head) {
  return params.codes + token * params.code_token_stride + head * params.code_head_stride;
}

void load_row(const attn::Int8QuantiseParams& params, std::int64_t token, int head, float* values) {
  const attn::i64 first = token * params.source_token_stride + head * params.source_head_stride;
  load_wide_row(params.source_element, element_at(params.source_element, params.source, first),
                params.head_size, values);
}

/// max(running, |value|), NaN passed over like CUDA's fmaxf.
float larger_magnitude(float running, float value) {
  const float magnitude = std::fabs(value);
  return magnitude > running ? magnitude : running;
}

/// rn_i8 of every value. Why not attn::i8_nearest_even: its early returns do not vectorise.
void store_codes(const float* values, int count, signed char* codes) {
  for (int d = 0; d < count; ++d) {
    float y = values[d] == values[d] ? values[d] : 0.0f;
    y = y > kMaxCode ? kMaxCode : y;
    y = y < -128.0f ? -128.0f : y;
    // The sum has no room for a fraction and rounds to the nearest even whole number.
    constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23
    codes[d] = static_cast<signed char>(static_cast<int>((y + kRounder) - kRounder));
  }
}

/// The factor is 127 / largest and not 1 / scale: the two differ by a rounding (§11.2).
void quantise_token_head(const attn::Int8QuantiseParams& params, std::int64_t token, int head,
                         float* values) {
  load_row(params, token, head, values);
  const float largest = reduce_lanes(values, params.head_size, 0.0f, larger_magnitude);
  params.scale[token * params.scale_token_stride + head * params.scale_head_stride] =
      largest / kMaxCode;
  signed char* codes = code_row(params, token, head);
  if (largest == 0.0f) {
    std::fill_n(codes, params.head_size, static_cast<signed char>(0));
    return;
  }
  const float factor = kMaxCode / largest;
  for (int d = 0; d < params.head_size; ++d) values[d] *= factor;
  store_codes(values, params.head_size, codes);
}

/// Scales [D] of one head over all tokens.
void make_channel_scales(const attn::Int8QuantiseParams& params, int head, Scratch& scratch) {
  float* scale = params.scale + std::int64_t{head} * params.head_size;
  std::fill_n(scale, params.head_size, 0.0f);
  for (std::int64_t token = 0; token < params.num_tokens; ++token) {
    load_row(params, token, head, scratch.line.data());
    const float* values = scratch.line.data();
    for (int d = 0; d < params.head_size; ++d) scale[d] = larger_magnitude(scale[d], values[d]);
  }
  for (int d = 0; d < params.head_size; ++d) scale[d] /= kMaxCode;
}

/// Divides by the scale of each channel; a channel of zeros has scale 0 and code 0.
void quantise_by_channel(const attn::Int8QuantiseParams& params, std::int64_t token, int head,
                         float* values) {
  load_row(params, token, head, values);
  const float* scale = params.scale + std::int64_t{head} * params.head_size;
  for (int d = 0; d < params.head_size; ++d) {
    const float quotient = values[d] / scale[d];
    values[d] = scale[d] == 0.0f ? 0.0f : quotient;
  }
  store_codes(values, params.head_size, code_row(params, token, head));
}

}  // namespace

void quantise_int8(const attn::Int8QuantiseParams& params, Workers& workers) {
  const auto scratch_of = [&](int thread) -> Scratch& {
    Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
    scratch.reserve(params.head_size, params.head_size, 0);
    return scratch;
  };
  if (params.granularity == attn::Int8Granularity::kChannelDynamic) {
    workers.pool.parallel_for(params.num_heads, [&](std::int64_t head, int thread) {
      make_channel_scales(params, static_cast<int>(head), scratch_of(thread));
    });
  }
  const bool by_token = params.granularity == attn::Int8Granularity::kTokenHead;
  workers.pool.parallel_for(params.num_tokens, [&](std::int64_t token, int thread) {
    float* values = scratch_of(thread).line.data();
    for (int head = 0; head < params.num_heads; ++head) {
      if (by_token) {
        quantise_token_head(params, token, head, values);
      } else {
        quantise_by_channel(params, token, head, values);
      }
    }
  });
}

}  // namespace attnbench::cpu
