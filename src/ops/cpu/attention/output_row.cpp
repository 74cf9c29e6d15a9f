#include "ops/cpu/attention/output_row.h"

#include "core/numbers/dtype.h"
#include "ops/cpu/element.h"

namespace attnbench::cpu {

void store_output_row(const attn::AttendParams& params, std::int64_t token, int head,
                      float* values) {
  if (params.output_scale > 0.0f) {
    // Why: the spec multiplies by the reciprocal; the conversion to e4m3 saturates.
    const float factor = 1.0f / params.output_scale;
    for (int d = 0; d < params.v_head_size; ++d) values[d] *= factor;
  }
  const attn::i64 offset = token * params.output_token_stride + head * params.output_head_stride;
  store_floats(static_cast<Dtype>(params.output_element), values, params.v_head_size,
               static_cast<char*>(params.output) + offset * element_size(params.output_element));
}

void store_lse(const attn::AttendParams& params, std::int64_t token, int head, float lse) {
  if (params.lse != nullptr) params.lse[head * params.lse_stride + token] = lse;
}

}  // namespace attnbench::cpu
