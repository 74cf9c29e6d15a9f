// Launch of kernels/matmul/matmul.cuh: the product without a library, and the only one for
// batch-invariant runs. A CTA makes one tile of C from beginning to end, so the order of a sum does
// not depend on m or on the number of batches.
#include "ops/cuda/matmul/few_rows.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {

void matmul(Launcher& launcher, const attn::MatmulParams& p) {
  if (prefers_few_rows(p)) return multiply_few_rows(launcher, p);
  const bool is_f32 = p.element == attn::Element::kF32;
  // As in the kernel: 64 rows, of 128 columns or, in f32, 64.
  constexpr std::int64_t kTileM = 64;
  const std::int64_t tile_n = is_f32 ? 64 : 128;
  VectorSide a{p.element, {}};
  a.alignment.pointer(p.a).stride(p.a_batch_stride, p.element).stride(p.a_row_stride, p.element);
  VectorSide b{p.element, {}};
  b.alignment.pointer(p.b).stride(p.b_batch_stride, p.element).stride(p.b_row_stride, p.element);
  // Why only 8 or 1: other alignments are not worth a kernel of their own.
  const auto vector = [&](std::int64_t width, const VectorSide& side) {
    return !is_f32 && widest_vector(8, {width}, {side}) == 8 ? 8 : 1;
  };
  const int vector_a = vector(p.k, a);
  const int vector_b = vector(p.b_transposed != 0 ? p.k : p.n, b);
  const bool pairs = Alignment()
                         .pointer(p.c)
                         .stride(p.c_batch_stride, p.output_element)
                         .stride(p.c_row_stride, p.output_element)
                         .common_bytes() >= 4;
  KernelSpec spec;
  spec.source = "matmul/matmul.cuh";
  spec.function = "attn::matmul";
  spec.constants = {{"attn::Element kElement", spec_name(p.element)},
                    {"attn::Element kOutput", spec_name(p.output_element)},
                    {"bool kTransposed", spec_flag(p.b_transposed != 0)},
                    {"int kVectorA", std::to_string(vector_a)},
                    {"int kVectorB", std::to_string(vector_b)},
                    {"bool kPairs", spec_flag(pairs)}};
  spec.name = "matmul " + short_name(p.element) + " to " + short_name(p.output_element) +
              (p.b_transposed != 0 ? " transposed" : "") + " x" + std::to_string(vector_a) + " x" +
              std::to_string(vector_b);
  LaunchShape shape;
  shape.grid_x = p.num_batches * ceil_quotient(p.m, kTileM) * ceil_quotient(p.n, tile_n);
  shape.threads = 256;
  launch(launcher, spec, shape, p);
}

}  // namespace attnbench::cuda
