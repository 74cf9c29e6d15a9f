// Matrix products by cuBLASLt, which is looked for when the program runs.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "gpu/runtime.h"
#include "gpu/stream.h"

namespace attnbench {

enum class MatrixType { kF32, kBF16, kF16, kE4M3, kI8, kI32 };

/// A batch of matrices as the library counts, by columns: element (row, column) of matrix i is at
/// i * batch_stride + column * leading + row.
struct LtMatrix {
  MatrixType type = MatrixType::kBF16;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t leading = 0;       // at least `rows`
  std::int64_t batch_stride = 0;  // 0: the same matrix for every product
  int alignment = 256;            // of the first element in bytes, a power of two up to 256

  auto operator<=>(const LtMatrix&) const = default;
};

/// D[i] = op(A[i]) op(B[i]), where op transposes or does nothing. Sums are f32 (int32 of int8)
/// until they are rounded once to the type of D, and are made in the same order at every run.
struct LtProduct {
  LtMatrix a;
  LtMatrix b;
  LtMatrix d;
  bool transpose_a = false;
  bool transpose_b = false;
  int batches = 1;

  auto operator<=>(const LtProduct&) const = default;
};

/// Everything that the library decides for one product, so that running it only launches.
class LtPlan {
 public:
  virtual ~LtPlan() = default;
  virtual const std::string& algorithm() const = 0;  // "algorithm 66, tile 20, stages 35"
  virtual std::size_t workspace_bytes() const = 0;
  /// Queues the product. `workspace` has workspace_bytes() and is aligned to 256 bytes.
  /// Errors: kCuda.
  virtual void run(const void* a, const void* b, void* d, void* workspace) const = 0;
};

/// No plan needs a larger workspace.
constexpr std::size_t kMostLtWorkspaceBytes = std::size_t{64} << 20;

class CublasLt {
 public:
  virtual ~CublasLt() = default;
  virtual const std::string& version() const = 0;  // "13.1.0"
  /// The algorithm that the library's own heuristic puts first; null where it has none for this
  /// product on this device. The library must outlive the plan. Errors: kCuda.
  virtual std::unique_ptr<LtPlan> plan(const LtProduct& product) = 0;
};

struct CublasLtChoice {
  std::unique_ptr<CublasLt> library;  // null when it is missing
  std::string missing;                // "cuBLASLt not found: ..."
};
using CublasLtOpener = std::function<CublasLtChoice(Runtime& runtime, const Stream& stream)>;

/// `runtime` and `stream` must outlive the library.
CublasLtChoice open_cublas_lt(Runtime& runtime, const Stream& stream);

}  // namespace attnbench
