// The tensors that a quantised attention output consists of (semantics §9), and the bytes that they
// must hold. A pipeline that quantises as its last step allocates by this layout, and the judge
// compares byte for byte with what quantise_output() makes of the unquantised output: quantisation
// has one right answer, so no tolerance applies to it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"

namespace attnbench {

/// As they are saved. T rows of K = N * V columns.
struct OutputQuantLayout {
  Dtype code_dtype = Dtype::kE4M3;
  std::vector<std::int64_t> code_shape;  // e4m3 [T, N, V]; NVFP4: u8 [T, K / 2]
  Dtype scale_dtype = Dtype::kF32;
  /// fp8_static [1]; groups [T, G], column-major [G, T], TMA-aligned [G, T rounded up to 4];
  /// NVFP4 e4m3 [T up to 128, K / 16 up to 4] swizzled, else [T, K / 16].
  std::vector<std::int64_t> scale_shape;
};
/// The problem has an output_quant.
OutputQuantLayout output_quant_layout(const Problem& problem);

/// Columns of a group: 128, 64 or, for NVFP4, 16. E-INTERNAL for fp8_static, which has no groups,
/// and for none.
int output_quant_group(OutputQuantType type);

/// Codes and scales as OutputQuantLayout has them, on the host.
struct OutputQuantTensors {
  Tensor codes;
  Tensor scales;
};
/// The bytes that `output` [T, N, V] must give, by the reference. Scales that stand for no row are
/// 0xFF, or 0 in the swizzled layout.
OutputQuantTensors quantise_output(const Problem& problem, const Tensor& output);

}  // namespace attnbench
