// Scales from the data of a case. A maximum that meets a NaN is NaN, as upstream's is; store_kv
// then refuses the scale with its value instead of storing a cache of NaN.
#include "inputs/cache/kv_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace attnbench {
namespace {

/// Largest magnitude of rows [begin, end); NaN when any element is.
float largest(const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return 0.0f;
  const std::int64_t width = tensor.num_elements() / tensor.dim(0);
  float result = 0.0f;
  for (std::int64_t i = begin * width; i < end * width; ++i) {
    const float value = std::fabs(tensor.at(i));
    if (std::isnan(value) || value > result) result = value;
    if (std::isnan(result)) break;
  }
  return result;
}

/// Of the rows [S, ...] that the step writes.
float largest_new(const Problem& problem, const std::vector<std::int64_t>& starts,
                  const Tensor& tensor) {
  float result = 0.0f;
  const std::vector<PositionRange> fresh = new_key_ranges(problem);
  for (std::size_t b = 0; b < fresh.size() && !std::isnan(result); ++b) {
    const float of_request = largest(tensor, starts[b] + fresh[b].begin, starts[b] + fresh[b].end);
    if (!(of_request <= result)) result = of_request;
  }
  return result;
}

double scale_of(float amax, float range, const char* name, std::vector<std::string>& notices) {
  const float scale = amax / range;
  if (scale != 0.0f) return scale;
  notices.push_back(
      fmt::format("calculate_kv_scales: {} is 1, there is nothing but zeros to make it of", name));
  return 1.0;
}

void adopt(float query, float key, float value, Problem& problem,
           std::vector<std::string>& notices) {
  KvCacheSpec& cache = problem.kv_cache;
  const KvScaleConstants by = kv_scale_constants(problem);
  cache.q_scale = scale_of(query, by.query, "q_scale", notices);
  cache.k_scale = {scale_of(key, by.key, "k_scale", notices)};
  cache.v_scale = {scale_of(value, by.value, "v_scale", notices)};
}

}  // namespace

KvScaleConstants kv_scale_constants(const Problem& problem) {
  const KvCacheSpec& cache = problem.kv_cache;
  return {static_cast<float>(cache.q_scale_constant), static_cast<float>(cache.k_scale_constant),
          static_cast<float>(cache.v_scale_constant)};
}

bool calculates_kv_scales(const Problem& problem) {
  const KvCacheSpec& cache = problem.kv_cache;
  return cache.calculate_kv_scales && has_tensor_scales(cache.dtype) && cache.int8_level == 0;
}

void adopt_calculated_scales(AttentionInputs& inputs, Problem& problem) {
  if (!calculates_kv_scales(problem) || problem.inputs.shapes_only) return;
  adopt(largest(inputs.query, 0, inputs.num_tokens()),
        largest_new(problem, inputs.key_start_loc, inputs.key),
        largest_new(problem, inputs.key_start_loc, inputs.value), problem, inputs.notices);
}

void adopt_calculated_scales(MlaInputs& inputs, Problem& problem) {
  if (!calculates_kv_scales(problem) || problem.inputs.shapes_only) return;
  const float latent = largest_new(problem, inputs.key_start_loc, inputs.kv_c);
  adopt(largest(inputs.query, 0, inputs.num_tokens()), latent, latent, problem, inputs.notices);
}

Tensor kv_scales_of(const Problem& problem) {
  const KvCacheSpec& cache = problem.kv_cache;
  return Tensor::from_f32(std::vector<float>{static_cast<float>(cache.q_scale),
                                             static_cast<float>(cache.k_scale.at(0)),
                                             static_cast<float>(cache.v_scale.at(0))});
}

}  // namespace attnbench
