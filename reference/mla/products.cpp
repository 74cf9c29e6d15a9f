// Thin wrappers around Eigen's products, instantiated for f64 (the reference) and f32 (the
// emulation of storage precision).
#include "reference/mla/products.h"

// Why: g++ 12 warns of _mm512_undefined_* inside its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
// The caller spreads products over threads; a product never starts threads of its own.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include "core/system/parallel.h"
#include "reference/vector_math.h"

namespace attnbench {
namespace {

template <typename Real>
using Matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <typename Real>
auto map(const StridedMatrix<const Real>& part) {
  return Eigen::Map<const Matrix<Real>, 0, Eigen::OuterStride<>>(part.data, part.rows, part.columns,
                                                                 Eigen::OuterStride<>(part.stride));
}
template <typename Real>
auto map(const StridedMatrix<Real>& part) {
  return Eigen::Map<Matrix<Real>, 0, Eigen::OuterStride<>>(part.data, part.rows, part.columns,
                                                           Eigen::OuterStride<>(part.stride));
}

/// With few rows Eigen's packing of `right` costs more than the product, so each row goes by
/// itself.
template <typename Left, typename Right, typename Product>
void multiply_rows(const Left& left, const Right& right, Product product) {
  constexpr Eigen::Index kFewRows = 8;
  if (left.rows() > kFewRows) {
    product.noalias() = left * right;
    return;
  }
  for (Eigen::Index row = 0; row < left.rows(); ++row) {
    product.row(row).noalias() = left.row(row) * right;
  }
}

}  // namespace

template <typename Real>
void multiply(const StridedMatrix<const Real>& left, const StridedMatrix<const Real>& right,
              const StridedMatrix<Real>& product) {
  multiply_rows(map<Real>(left), map<Real>(right), map<Real>(product));
}
template void multiply(const StridedMatrix<const double>&, const StridedMatrix<const double>&,
                       const StridedMatrix<double>&);
template void multiply(const StridedMatrix<const float>&, const StridedMatrix<const float>&,
                       const StridedMatrix<float>&);

template <typename Real>
void multiply_transposed(const StridedMatrix<const Real>& left,
                         const StridedMatrix<const Real>& right,
                         const StridedMatrix<Real>& product) {
  multiply_rows(map<Real>(left), map<Real>(right).transpose(), map<Real>(product));
}
template void multiply_transposed(const StridedMatrix<const double>&,
                                  const StridedMatrix<const double>&, const StridedMatrix<double>&);
template void multiply_transposed(const StridedMatrix<const float>&,
                                  const StridedMatrix<const float>&, const StridedMatrix<float>&);

template <typename Real>
MlaBuffer<Real> load_slice(const Tensor& tensor, std::int64_t index) {
  const std::int64_t count = tensor.num_elements() / tensor.dim(0);
  MlaBuffer<Real> values(static_cast<std::size_t>(count));
  load_values(tensor.dtype(), tensor.bytes(), index * count, count, values.data());
  return values;
}
template MlaBuffer<double> load_slice(const Tensor&, std::int64_t);
template MlaBuffer<float> load_slice(const Tensor&, std::int64_t);

}  // namespace attnbench
