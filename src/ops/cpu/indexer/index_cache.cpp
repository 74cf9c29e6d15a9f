// Keys of the sparse indexer into their cache (semantics §8.10): the codes of a block's keys lie
// side by side, behind all of them the scales, as DeepGEMM reads both.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/params_indexer.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/quantise/fp8_code.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

constexpr float kLeastAmax = 1e-4f;

/// The least power of two that is no less than x > 0.
float power_of_two_from(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);  // x = fraction * 2^exponent, from 1/2 on
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

/// A key without numbers has the scale of zeros: a maximum of NaN is the other one here.
float scale_of(const float* values, bool ue8m0) {
  float amax = kLeastAmax;
  for (int d = 0; d < attn::kIndexKey; ++d) amax = std::fmax(amax, std::fabs(values[d]));
  const float scale = amax / kE4m3Max;
  return ue8m0 ? power_of_two_from(scale) : scale;
}

}  // namespace

void write_index_cache(const attn::IndexCacheWriteParams& params, Workers& workers) {
  workers.pool.parallel_for(params.num_slots, [&](std::int64_t token, int thread) {
    const attn::i64 slot = params.slot_mapping[token];
    if (slot < 0) return;
    float* values =
        room_for(workers.scratch[static_cast<std::size_t>(thread)].line, attn::kIndexKey);
    load_wide_row(params.source_element,
                  element_at(params.source_element, params.key, token * params.key_token_stride),
                  attn::kIndexKey, values);
    const float scale = scale_of(values, params.ue8m0 != 0);
    unsigned char* block = params.cache + slot / params.block_size * params.block_stride;
    const attn::i64 offset = slot % params.block_size;
    unsigned char* codes = block + attn::index_codes_at(offset);
    for (int d = 0; d < attn::kIndexKey; ++d) codes[d] = encode_e4m3(values[d] / scale);
    std::memcpy(block + attn::index_scale_at(params.block_size, offset), &scale, sizeof scale);
  });
}

}  // namespace attnbench::cpu
