// Launches of kernels/move/rearrange.cuh, a thread for each vector of the output. A vector never
// reaches across a part of a row: it divides every width that is copied.
#include <algorithm>

#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {

void copy(Launcher& launcher, const attn::CopyParams& params) {
  VectorSide source{params.source_element, {}};
  VectorSide output{params.output_element, {}};
  source.alignment.pointer(params.source);
  output.alignment.pointer(params.output);
  for (int i = 0; i < 3; ++i) {
    source.alignment.stride(params.source_strides[i], params.source_element);
    output.alignment.stride(params.output_strides[i], params.output_element);
  }
  // Why by the larger element: either side has at most 16 bytes a vector.
  const int most =
      16 / std::max(size_of_element(params.source_element), size_of_element(params.output_element));
  const int vector = widest_vector(most, {params.width}, {source, output});
  const std::string name = "copy " + short_name(params.source_element) + " to " +
                           short_name(params.output_element) + " x" + std::to_string(vector);
  const std::int64_t rows = params.extents[0] * params.extents[1] * params.extents[2];
  launch(launcher,
         simple_spec("move/rearrange.cuh", "copy",
                     {{"attn::Element kSource", spec_name(params.source_element)},
                      {"attn::Element kOutput", spec_name(params.output_element)},
                      {"int kVector", std::to_string(vector)}},
                     name),
         simple_shape(rows * (params.width / vector)), params);
}

void concat(Launcher& launcher, const attn::ConcatParams& params) {
  const attn::Element element = params.element;
  VectorSide all{element, {}};
  all.alignment.pointer(params.output)
      .stride(params.output_token_stride, element)
      .stride(params.output_head_stride, element);
  // An empty part may have any address, and a part that is not there has none.
  if (params.first_size > 0) {
    all.alignment.pointer(params.first)
        .stride(params.first_token_stride, element)
        .stride(params.first_head_stride, element);
  }
  if (params.second != nullptr) {
    all.alignment.pointer(params.second)
        .stride(params.second_token_stride, element)
        .stride(params.second_head_stride, element);
  }
  const int vector =
      widest_vector(16 / size_of_element(element), {params.first_size, params.second_size}, {all});
  const std::int64_t row = (params.first_size + params.second_size) / vector;
  launch(launcher,
         simple_spec("move/rearrange.cuh", "concat",
                     {{"attn::Element kElement", spec_name(element)},
                      {"int kVector", std::to_string(vector)}},
                     "concat " + short_name(element) + " x" + std::to_string(vector)),
         simple_shape(params.num_tokens * params.num_heads * row), params);
}

void gather_rows(Launcher& launcher, const attn::GatherRowsParams& params) {
  const attn::Element element = params.element;
  VectorSide all{element, {}};
  all.alignment.pointer(params.source)
      .pointer(params.output)
      .stride(params.source_row_stride, element)
      .stride(params.output_row_stride, element);
  const int vector = widest_vector(16 / size_of_element(element), {params.width}, {all});
  launch(launcher,
         simple_spec("move/rearrange.cuh", "gather_rows",
                     {{"attn::Element kElement", spec_name(element)},
                      {"int kVector", std::to_string(vector)}},
                     "gather_rows " + short_name(element) + " x" + std::to_string(vector)),
         simple_shape(params.num_rows * (params.width / vector)), params);
}

}  // namespace attnbench::cuda
