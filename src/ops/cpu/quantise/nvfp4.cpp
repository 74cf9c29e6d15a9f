// NVFP4 quantisation of the attention output (semantics §9.4): two e2m1 codes a byte, low nibble
// first, and an e4m3 scale for each 16 columns, which lie row by row or swizzled as tensor cores
// read them.
#include <cmath>

#include "kernels/common/numeric.cuh"
#include "kernels/params_quant.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/quantise/fp8_code.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {

attn::u8 quantise_nvfp4_block(const float* values, float global_scale, attn::u8* packed) {
  float largest = 0.0f;
  for (int i = 0; i < attn::kNvfp4Block; ++i) largest = std::fmax(largest, std::fabs(values[i]));
  const attn::u8 scale_code = encode_e4m3(global_scale * (largest / 6.0f));
  // Why from the code: readers multiply by the scale that was stored, not by the one that was
  // meant.
  const float scale = attn::e4m3_to_float(scale_code);
  const float factor = scale == 0.0f ? 0.0f : 1.0f / (scale / global_scale);
  for (int i = 0; i < attn::kNvfp4Block; i += 2) {
    const unsigned even = attn::e2m1_from_float(scaled_by(values[i], factor));
    const unsigned odd = attn::e2m1_from_float(scaled_by(values[i + 1], factor));
    packed[i / 2] = static_cast<attn::u8>(even | odd << 4);
  }
  return scale_code;
}

void quantise_nvfp4(const attn::Nvfp4QuantiseParams& params, Workers& workers) {
  const attn::i64 num_blocks = params.num_columns / attn::kNvfp4Block;
  const attn::i64 tiles_across = (num_blocks + 3) / 4;
  const float global_scale = params.global_scale[0];
  workers.pool.parallel_for(params.num_rows, [&](std::int64_t row, int thread) {
    float* values =
        room_for(workers.scratch[static_cast<std::size_t>(thread)].line, params.num_columns);
    load_wide_row(params.source_element,
                  element_at(params.source_element, params.source, row * params.source_row_stride),
                  params.num_columns, values);
    attn::u8* packed = params.packed + row * params.packed_row_stride;
    for (attn::i64 block = 0; block < num_blocks; ++block) {
      const attn::i64 at = params.swizzled != 0
                               ? attn::nvfp4_swizzled_offset(row, block, tiles_across)
                               : row * num_blocks + block;
      params.scales[at] = quantise_nvfp4_block(values + block * attn::kNvfp4Block, global_scale,
                                               packed + block * (attn::kNvfp4Block / 2));
    }
  });
}

}  // namespace attnbench::cpu
