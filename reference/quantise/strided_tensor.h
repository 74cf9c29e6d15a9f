// A borrowed view of a tensor whose rows need not be contiguous, e.g. the value part of an
// interleaved QKV buffer. The last axis is always dense; all others may have any stride.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace attnbench {

struct StridedTensor {
  Dtype dtype = Dtype::kF32;
  const std::byte* data = nullptr;    // first element
  std::vector<std::int64_t> shape;    // at least one axis
  std::vector<std::int64_t> strides;  // in elements; that of the last axis is 1
};

/// The whole of a dense tensor.
StridedTensor view_of(const Tensor& tensor);

/// Calls body(row, values, count) for every row along the last axis in index order; values are the
/// count = shape.back() elements as f32. E-SHAPE when shape and strides do not fit each other.
template <typename Body>
void for_each_row(const StridedTensor& view, Body body);
/// The same for rows [begin, end) of a view that was checked.
template <typename Body>
void for_each_row(const StridedTensor& view, std::int64_t begin, std::int64_t end, Body body);

/// Rows along the last axis.
std::int64_t num_rows(const StridedTensor& view);
/// Element offset of a row.
std::int64_t row_offset(const StridedTensor& view, std::int64_t row);
/// E-SHAPE unless there is a stride per axis and the last is 1.
void check_view(const StridedTensor& view);

template <typename Body>
void for_each_row(const StridedTensor& view, Body body) {
  check_view(view);
  for_each_row(view, 0, num_rows(view), body);
}

template <typename Body>
void for_each_row(const StridedTensor& view, std::int64_t begin, std::int64_t end, Body body) {
  const std::int64_t count = view.shape.back();
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t row = begin; row < end; ++row) {
    const auto element_size = static_cast<std::int64_t>(dtype_size(view.dtype));
    const std::byte* source = view.data + row_offset(view, row) * element_size;
    load_floats(view.dtype, source, count, values.data());
    body(row, values.data(), count);
  }
}

}  // namespace attnbench
