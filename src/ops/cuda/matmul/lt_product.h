// A product of the operation matmul in the words of cuBLASLt, which counts by columns.
#pragma once

#include <optional>

#include "gpu/cublas_lt.h"
#include "kernels/params_mla.h"

namespace attnbench::cuda {

/// Row-major C = A B is, by columns, C^T = B^T A^T: the library's A is our B, its B our A, its D
/// our C, each with its row stride as leading dimension. Only as far as the product goes; addresses
/// count by their alignment only. Nothing where the library cannot take it: no work or k = 0, a
/// pair of types that it does not have, rows that overlap (a row stride below the width), negative
/// strides, results on top of one another, more batches than a grid has, extents beyond int32. And
/// nothing for batch-invariant products: the library chooses by m and by the number of batches.
std::optional<LtProduct> lt_product(const attn::MatmulParams& params);

}  // namespace attnbench::cuda
