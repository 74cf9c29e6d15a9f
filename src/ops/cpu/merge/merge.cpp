// merge_attn_states: two partial results of the same rows into one (semantics §6.3), as of a common
// prefix and of each request's own suffix. Tokens from num_merged on have no prefix: their suffix
// result is the result.
#include <algorithm>
#include <cmath>

#include "core/numbers/dtype.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

/// Both infinities mean "no key was seen" (§3.8).
float sanitised(float lse) { return std::isinf(lse) ? kNegInf : lse; }

struct Weights {
  float prefix = 0.0f;
  float suffix = 0.0f;
  float lse = kNegInf;
};

/// Weights are normalised before the products, as the definition has it; their sum is 1.
Weights merge_weights(float prefix_lse, float suffix_lse) {
  const float p = sanitised(prefix_lse);
  const float s = sanitised(suffix_lse);
  // A NaN is no empty part: it fails this test and propagates below.
  if (p == kNegInf && s == kNegInf) return {};
  const float maximum = p > s ? p : s;
  const float wp = std::exp(p - maximum);
  const float ws = std::exp(s - maximum);
  const float total = wp + ws;
  return {wp / total, ws / total, maximum + std::log(total)};
}

/// A side of weight 0 contributes exactly 0, whatever it holds (§0.6.6).
void add_weighted(float weight, const float* source, int count, float* sum) {
  if (weight == 0.0f) return;
  for (int d = 0; d < count; ++d) sum[d] += weight * source[d];
}

/// One (token, head) row of each tensor. Only the prefix may have padded heads.
struct Rows {
  const char* prefix;
  const char* suffix;
  char* output;
};

Rows rows_at(const attn::MergeParams& params, std::int64_t token, int head) {
  const attn::i64 size = element_size(params.element);
  const attn::i64 row = token * params.num_heads + head;
  return {static_cast<const char*>(params.prefix_output) + row * params.prefix_head_stride * size,
          static_cast<const char*>(params.suffix_output) + row * params.head_size * size,
          static_cast<char*>(params.output) +
              row * params.head_size * element_size(params.output_element)};
}

/// `buffer` has room for two rows: the sum and the part that is added to it.
void merge_row(const attn::MergeParams& params, std::int64_t token, int head, FloatArray& buffer) {
  const std::size_t size = static_cast<std::size_t>(params.head_size);
  float* sum = buffer.data();
  float* part = buffer.data() + size;
  const Rows rows = rows_at(params, token, head);
  const auto dtype = static_cast<Dtype>(params.element);
  const attn::i64 at = head * params.num_tokens + token;
  float lse = params.suffix_lse[at];
  load_floats(dtype, rows.suffix, params.head_size, part);
  if (token >= params.num_merged) {
    std::copy_n(part, size, sum);
  } else {
    const Weights weights = merge_weights(params.prefix_lse[at], lse);
    std::fill_n(sum, size, 0.0f);
    add_weighted(weights.suffix, part, params.head_size, sum);
    load_floats(dtype, rows.prefix, params.head_size, part);
    add_weighted(weights.prefix, part, params.head_size, sum);
    lse = weights.lse;
  }
  if (params.output_scale > 0.0f) {
    const float inverse = 1.0f / params.output_scale;
    for (std::size_t d = 0; d < size; ++d) sum[d] *= inverse;
  }
  store_floats(static_cast<Dtype>(params.output_element), sum, params.head_size, rows.output);
  if (params.output_lse != nullptr) {
    params.output_lse[head * params.output_lse_stride + token] = lse;
  }
}

}  // namespace

void merge(const attn::MergeParams& params, Workers& workers) {
  workers.pool.parallel_for(params.num_tokens, [&](std::int64_t token, int thread) {
    FloatArray& buffer = workers.scratch[static_cast<std::size_t>(thread)].query;
    if (buffer.size() < 2 * static_cast<std::size_t>(params.head_size)) {
      buffer.resize(2 * static_cast<std::size_t>(params.head_size));
    }
    for (int head = 0; head < params.num_heads; ++head) merge_row(params, token, head, buffer);
  });
}

}  // namespace attnbench::cpu
