// The operation matmul by cuBLASLt where that is found and takes the product.
//
// The library is opened at run time and may be missing. What algorithm it takes for a shape goes by
// heuristics of its own; so the plan is part of what a result reports, and batch-invariant products
// are never given to it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/result/result.h"
#include "gpu/cublas_lt.h"
#include "kernels/params_mla.h"
#include "ops/ops.h"

namespace attnbench::cuda {

/// A product of the operation in the words of cuBLASLt, which counts by columns: row-major C = A B
/// is, by columns, C^T = B^T A^T: the library's A is our B, its B our A, its D our C, each with its
/// row stride as leading dimension. Only as far as the product goes; addresses count by their
/// alignment only. Nothing where the library cannot take it: no work or k = 0, a pair of types that
/// it does not have, rows that overlap (a row stride below the width), negative strides, results on
/// top of one another, more batches than a grid has, extents beyond int32. And nothing for
/// batch-invariant products: the library chooses by m and by the number of batches.
std::optional<LtProduct> lt_product(const attn::MatmulParams& params);

/// A product that the library does.
struct LibraryProduct {
  std::unique_ptr<LtPlan> plan;
  KernelInfo info;  // "matmul bf16 to bf16 by cuBLASLt 13.1.0 (... algorithm 66 ...)"
};

/// Opens the library with the first product. Plans are made once for every form of product and
/// kept: running one neither allocates nor has the library choose, so a captured run repeats it.
class LibraryMatmul {
 public:
  /// No `open` means no library. `memory` gives the workspace, poisoned and between guard zones;
  /// all must outlive this.
  LibraryMatmul(CublasLtOpener open, Runtime& runtime, const Stream& stream, Ops& memory);

  /// Null where attnbench's kernel is for this product. Errors: kCuda, kCapacity, naming the
  /// product.
  const LibraryProduct* find_or_plan(const attn::MatmulParams& params);
  /// Errors: kCuda, naming the product.
  void run(const LibraryProduct& product, const attn::MatmulParams& params);
  void poison_workspace();

 private:
  LibraryProduct plan(CublasLt& library, const LtProduct& product,
                      const attn::MatmulParams& params);

  CublasLtOpener open_;
  Runtime& runtime_;
  const Stream& stream_;
  Ops& memory_;
  std::unique_ptr<CublasLt> library_;
  std::map<LtProduct, LibraryProduct> products_;  // without a plan: attnbench's kernel
  std::unique_ptr<Buffer> workspace_;             // of every plan that needs one
};

}  // namespace attnbench::cuda
