// Offsets of rows are found by division, axis by axis from the last, since rows are visited in
// chunks by several threads and none of them has the index before.
#include "reference/quantise/strided_tensor.h"

#include "core/error.h"

namespace attnbench {

StridedTensor view_of(const Tensor& tensor) {
  StridedTensor view{tensor.dtype(), tensor.bytes(), tensor.shape(), tensor.shape()};
  std::int64_t stride = 1;
  for (std::size_t axis = view.shape.size(); axis-- > 0;) {
    view.strides[axis] = stride;
    stride *= view.shape[axis];
  }
  return view;
}

std::int64_t num_rows(const StridedTensor& view) {
  std::int64_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < view.shape.size(); ++axis) rows *= view.shape[axis];
  return rows;
}

std::int64_t row_offset(const StridedTensor& view, std::int64_t row) {
  std::int64_t offset = 0;
  for (std::size_t axis = view.shape.size() - 1; axis-- > 0;) {
    offset += row % view.shape[axis] * view.strides[axis];
    row /= view.shape[axis];
  }
  return offset;
}

void check_view(const StridedTensor& view) {
  if (view.shape.empty() || view.strides.size() != view.shape.size()) {
    fail(ErrorKind::kShape, "a view needs a stride for each of its {} axes, got {}",
         view.shape.size(), view.strides.size());
  }
  if (view.strides.back() != 1) {
    fail(ErrorKind::kShape, "the last stride of a view must be 1, got {}", view.strides.back());
  }
}

}  // namespace attnbench
