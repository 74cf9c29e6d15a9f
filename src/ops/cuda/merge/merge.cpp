// Launch of kernels/merge/merge.cuh: a thread has one or two vectors of a row and computes the
// row's two weights for itself, which is cheaper than passing them on.
#include "ops/cuda/operations.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {

void merge(Launcher& launcher, const attn::MergeParams& params) {
  constexpr int kThreads = 256;
  const int in_bytes = Alignment()
                           .pointer(params.prefix_output)
                           .pointer(params.suffix_output)
                           .stride(params.head_size, params.element)
                           .stride(params.prefix_head_stride, params.element)
                           .common_bytes();
  const int out_bytes = Alignment()
                            .pointer(params.output)
                            .stride(params.head_size, params.output_element)
                            .common_bytes();
  // Loads of 16 bytes at most; the store must fit its alignment too, whatever its element.
  int vector = 16 / size_of_element(params.element);
  while (vector > 1 && (in_bytes < vector * size_of_element(params.element) ||
                        out_bytes < vector * size_of_element(params.output_element))) {
    vector /= 2;
  }
  // Two vectors a thread where a row has an even number of them: their loads overlap.
  const int loads = params.head_size / vector % 2 == 0 ? 2 : 1;
  KernelSpec spec;
  spec.source = "merge/merge.cuh";
  spec.function = "attn::merge";
  spec.constants = {{"attn::Element kElement", spec_name(params.element)},
                    {"attn::Element kOutput", spec_name(params.output_element)},
                    {"int kVector", std::to_string(vector)},
                    {"int kLoads", std::to_string(loads)},
                    {"int kThreads", std::to_string(kThreads)}};
  spec.name = "merge " + short_name(params.element) + " to " + short_name(params.output_element) +
              " x" + std::to_string(vector);
  LaunchShape shape;
  const std::int64_t threads =
      params.num_tokens * params.num_heads * (params.head_size / (vector * loads));
  shape.grid_x = ceil_quotient(threads, kThreads);
  shape.threads = kThreads;
  cuda::launch(launcher, spec, shape, params);
}

}  // namespace attnbench::cuda
