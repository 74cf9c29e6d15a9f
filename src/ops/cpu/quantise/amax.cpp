// Largest elements of tensors and the quantisation scales made of them (semantics §5.4, §10.6). A
// NaN anywhere makes the result NaN, so that it is seen and not scaled away.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/quantise/fp8_code.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

/// The larger one, or NaN if either is: a maximum in any order gives the same.
float nan_max(float running, float value) {
  return (value != value) | (value > running) ? value : running;
}

/// The largest of `largest` and of a row's elements, or of their magnitudes.
float row_amax(const float* values, int count, bool is_signed, float largest) {
  if (is_signed) return reduce_lanes(values, count, largest, nan_max);
  return reduce_lanes(values, count, largest, [](float running, float value) {
    return nan_max(running, std::fabs(value));
  });
}

}  // namespace

void amax(const attn::AmaxParams& params, Workers& workers) {
  if (params.num_tokens * params.num_heads * params.head_size == 0) {
    *params.amax = 0.0f;
    return;
  }
  const float least = params.is_signed != 0 ? -std::numeric_limits<float>::infinity() : 0.0f;
  std::vector<float> largest(workers.scratch.size(), least);
  workers.pool.parallel_for(params.num_tokens, [&](std::int64_t token, int thread) {
    Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
    scratch.reserve(params.head_size, params.head_size, 0);
    float& mine = largest[static_cast<std::size_t>(thread)];
    for (int head = 0; head < params.num_heads; ++head) {
      const attn::i64 first = token * params.token_stride + head * params.head_stride;
      load_wide_row(params.element, element_at(params.element, params.source, first),
                    params.head_size, scratch.line.data());
      mine = row_amax(scratch.line.data(), params.head_size, params.is_signed != 0, mine);
    }
  });
  float result = least;
  for (const float value : largest) result = nan_max(result, value);
  *params.amax = result;
}

void update_amax_history(const attn::AmaxHistoryParams& params, Workers&) {
  for (int i = 0; i < params.num_tensors; ++i) {
    float* ring = params.history + std::int64_t{i} * attn::kAmaxHistoryLength;
    ring[params.position] = params.amax[i];
    float largest = std::numeric_limits<float>::min();  // 2^-126, the least normal float
    for (int k = 0; k < attn::kAmaxHistoryLength; ++k) largest = nan_max(largest, ring[k]);
    params.scale[i] = largest / kE4m3Max;
  }
}

void encoder_scales(const attn::EncoderScalesParams& params, Workers& workers) {
  for (int i = 0; i < 3; ++i) {
    const attn::EncoderTensor& tensor = params.tensors[i];
    amax({params.element, tensor.source, tensor.token_stride, tensor.head_stride, tensor.num_tokens,
          tensor.num_heads, params.head_size, params.is_signed, params.amax + i},
         workers);
  }
  update_amax_history({params.amax, params.history, params.scale, params.position, 3}, workers);
  if (params.kv_scales == nullptr) return;
  for (int head = 0; head < params.num_kv_heads; ++head) {
    params.kv_scales[head] = params.scale[0] * params.scale[1];
    params.kv_scales[params.num_kv_heads + head] = params.scale[2];
  }
}

void count_patterns(const attn::PatternCountParams& params, Workers& workers) {
  constexpr std::size_t kPatterns = std::size_t{1} << 16;
  const auto* const source = static_cast<const std::uint16_t*>(params.source);
  workers.pool.parallel_for(params.num_heads, [&](std::int64_t head, int) {
    attn::i64* const counts = params.counts + head * static_cast<std::int64_t>(kPatterns);
    for (attn::i64 token = 0; token < params.num_tokens; ++token) {
      const attn::i64 first = (token * params.num_heads + head) * params.head_size;
      for (int d = 0; d < params.head_size; ++d) ++counts[source[first + d]];
    }
  });
}

void calc_kv_scales(const attn::KvScaleParams& params, Workers&) {
  for (int i = 0; i < 3; ++i) {
    const float scale = params.amax[i] / params.range[i];
    params.scale[i] = scale == 0.0f ? 1.0f : scale;
  }
}

}  // namespace attnbench::cpu
