// Single operations that quantise the output of attention for the next layer (semantics §9): e4m3
// with one static scale or one for each group of columns, NVFP4 with a scale for each block of 16.
// Pipelines that end with a quantisation have the same formats (backends/output_quant.h); here the
// strides of the scales are needed too, as the kernels take them. Rates of these operations are
// bandwidth, so the timed step does nothing else: static scales are uploaded before it.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/op/pipeline.h"

namespace attnbench {

/// K = N * V columns of a row, G groups or blocks of it:
///
///   fp8_group64/128   codes e4m3 [T, N, V], scales f32 [T, G]
///   ... column-major  scales [G, T]; TMA-aligned [G, T rounded up to 4]
///   nvfp4             codes u8 [T, K / 2], two in a byte, scales e4m3 [T, K / 16]
///   ... swizzled      scales [T rounded up to 128, K / 16 rounded up to 4] in the tiles of
///                     Blackwell's matrix units; padding is zero
///
/// The scales of quantised output: the extents of their buffer, and how far apart, in elements,
/// those of neighbouring rows and groups lie. The tiles of swizzled NVFP4 have no strides: both are
/// 0, and attn::nvfp4_swizzled_offset() says where a scale is.
struct OutputScaleLayout {
  std::vector<std::int64_t> shape;
  std::int64_t row_stride = 0;
  std::int64_t group_stride = 0;
};
/// Of a quantisation with groups or blocks. Column-major scales [groups, rows] may have their rows
/// padded to a multiple of 4, as TMA reads them.
OutputScaleLayout output_scale_layout(const Problem& problem);

/// "input" [T, N, V] into codes ("output") and "output_scales", by output_quant.type. A static
/// scale is an operand; how many values it saturated is an output. Scales begin as poison,
/// those of padding in the swizzled layout as zeros, which must stay. E-INTERNAL for type none.
void queue_output_quant(OpPipeline& op);

}  // namespace attnbench
