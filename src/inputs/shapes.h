// Tensors of a shape and no values (InputsSpec::shapes_only): what a transformation makes of one
// row says what it makes of all.
#pragma once

#include <utility>

#include "core/tensor.h"

namespace attnbench {

/// Zeros [rows, ...] with the element type and the inner extents of `tensor`; nothing for nothing.
inline Tensor zeros_of_rows(const Tensor& tensor, std::int64_t rows) {
  if (tensor.shape().empty()) return {};
  std::vector<std::int64_t> shape = tensor.shape();
  shape[0] = rows;
  return Tensor(tensor.dtype(), std::move(shape));
}

}  // namespace attnbench
