// Rotary position embedding in place, and with a cache write after it (semantics §12). The fused
// forms are the two operations in turn here, which is what their kernels are compared with.
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

/// Query or key: heads of every token that turn by the same angles. Only the first rotary_dim
/// elements of a head do; the rest is not touched.
struct RotaryHeads {
  void* base;
  attn::i64 token_stride;
  attn::i64 head_stride;
  int num_heads;
};

/// values [rot]; cos_sin [rot], cosines then sines.
void rotate_halves(const float* cos_sin, int rot, float* values) {
  const int half = rot / 2;
  for (int k = 0; k < half; ++k) {
    const float x = values[k];
    const float y = values[k + half];
    values[k] = x * cos_sin[k] - y * cos_sin[half + k];
    values[k + half] = y * cos_sin[k] + x * cos_sin[half + k];
  }
}
/// The same for pairs that lie next to each other (GPT-J); rotate_halves() is NeoX.
void rotate_neighbours(const float* cos_sin, int rot, float* values) {
  const int half = rot / 2;
  for (int k = 0; k < half; ++k) {
    const float x = values[2 * k];
    const float y = values[2 * k + 1];
    values[2 * k] = x * cos_sin[k] - y * cos_sin[half + k];
    values[2 * k + 1] = y * cos_sin[k] + x * cos_sin[half + k];
  }
}

void rotate_token(const attn::RopeParams& params, const RotaryHeads& side, std::int64_t token,
                  const float* cos_sin, float* values) {
  const int rot = params.rotary_dim;
  for (int head = 0; head < side.num_heads; ++head) {
    void* row =
        element_at(params.element, side.base, token * side.token_stride + head * side.head_stride);
    load_wide_row(params.element, row, rot, values);
    if (params.is_neox != 0) {
      rotate_halves(cos_sin, rot, values);
    } else {
      rotate_neighbours(cos_sin, rot, values);
    }
    store_row(params.element, values, rot, row);
  }
}

}  // namespace

void rope(const attn::RopeParams& params, Workers& workers) {
  const RotaryHeads query{params.query, params.query_token_stride, params.query_head_stride,
                          params.num_heads};
  const RotaryHeads key{params.key, params.key_token_stride, params.key_head_stride,
                        params.key == nullptr ? 0 : params.num_kv_heads};
  workers.pool.parallel_for(params.num_tokens, [&](std::int64_t token, int thread) {
    Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
    scratch.reserve(params.rotary_dim, params.rotary_dim, 0);
    float* values = scratch.line.data();
    float* cos_sin = scratch.key.data();
    const attn::i64 first = params.positions[token] * params.rotary_dim;
    load_wide_row(params.cache_element,
                  element_at(params.cache_element, params.cos_sin_cache, first), params.rotary_dim,
                  cos_sin);
    for (const RotaryHeads& side : {query, key}) rotate_token(params, side, token, cos_sin, values);
  });
}

void rope_and_write_cache(const attn::RopeParams& params, const attn::CacheWriteParams& write,
                          Workers& workers) {
  rope(params, workers);
  write_cache(write, workers);
}

void rope_and_write_mla_cache(const attn::RopeParams& params,
                              const attn::MlaCacheWriteParams& write, Workers& workers) {
  rope(params, workers);
  write_mla_cache(write, workers);
}

}  // namespace attnbench::cpu
