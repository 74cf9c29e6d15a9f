// Matrix products by cuBLASLt, which is looked for when the program runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gpu/runtime.h"
#include "gpu/stream.h"

namespace attnbench {

enum class MatrixType { kF32, kBF16, kF16, kE4M3, kI8 };

/// C = A @ B^T. Products of 16-bit types are stored in that type, of e4m3 as bf16, of int8 as
/// int32; sums are f32 (int32 for int8).
struct MatrixProduct {
  MatrixType type = MatrixType::kBF16;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  const void* a = nullptr;  // [M, K]
  const void* b = nullptr;  // [N, K]
  void* c = nullptr;        // [M, N]
};

class CublasLt {
 public:
  virtual ~CublasLt() = default;
  /// Queues the product, by the algorithm that the library's own heuristic puts first. Errors:
  /// kCuda, also where the library has no algorithm for these types on this device.
  virtual void multiply(const MatrixProduct& product) = 0;
};

struct CublasLtChoice {
  std::unique_ptr<CublasLt> library;  // null when it is missing
  std::string missing;                // "cuBLASLt not found: ..."
};

/// `runtime` and `stream` must outlive the library.
CublasLtChoice open_cublas_lt(Runtime& runtime, const Stream& stream);

}  // namespace attnbench
