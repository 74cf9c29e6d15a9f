// Matrix products of the MLA forms on parts of row-major arrays: the weights and entries of one
// head lie strided within larger arrays and are multiplied where they are. Eigen stays behind this
// header, because its templates are slow to compile.
#pragma once

#include <cstdint>
#include <vector>

#include "core/system/pool_allocator.h"
#include "core/tensor.h"

namespace attnbench {

template <typename Real>
using MlaBuffer = std::vector<Real, PoolAllocator<Real>>;

/// A [rows, columns] part of a row-major array whose rows begin `stride` elements apart.
template <typename T>
struct StridedMatrix {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
};

/// product [m, n] = left [m, k] * right [k, n]. A row of the product depends on its own row
/// of `left` only, NaN and infinity included.
template <typename Real>
void multiply(const StridedMatrix<const Real>& left, const StridedMatrix<const Real>& right,
              const StridedMatrix<Real>& product);

/// product [m, n] = left [m, k] * transpose(right [n, k]).
template <typename Real>
void multiply_transposed(const StridedMatrix<const Real>& left,
                         const StridedMatrix<const Real>& right,
                         const StridedMatrix<Real>& product);

/// Slice `index` of the first dimension of a floating tensor: the weights of a head.
template <typename Real>
MlaBuffer<Real> load_slice(const Tensor& tensor, std::int64_t index);

}  // namespace attnbench
