#include "gpu/cublas_lt.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

// Why: a toolkit may be installed without the headers of cuBLAS.
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#include <utility>

#include "gpu/dynamic_library.h"

namespace attnbench {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

/// The functions that are used, with the types of the header.
struct Functions {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;

  bool bind(const DynamicLibrary& library) {
    return library.bind(create, "cublasLtCreate") && library.bind(destroy, "cublasLtDestroy") &&
           library.bind(matmul_desc_create, "cublasLtMatmulDescCreate") &&
           library.bind(matmul_desc_destroy, "cublasLtMatmulDescDestroy") &&
           library.bind(matmul_desc_set, "cublasLtMatmulDescSetAttribute") &&
           library.bind(layout_create, "cublasLtMatrixLayoutCreate") &&
           library.bind(layout_destroy, "cublasLtMatrixLayoutDestroy") &&
           library.bind(preference_create, "cublasLtMatmulPreferenceCreate") &&
           library.bind(preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
           library.bind(preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
           library.bind(heuristic, "cublasLtMatmulAlgoGetHeuristic") &&
           library.bind(matmul, "cublasLtMatmul");
  }
};

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(fmt::format("{}: status {}", call, static_cast<int>(status)), false);
}

struct Types {
  cudaDataType_t operand;
  cudaDataType_t result;
  cublasComputeType_t compute;
  cudaDataType_t scale;
};

Types types_of(MatrixType type) {
  switch (type) {
    case MatrixType::kF32:
      return {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F};
    case MatrixType::kBF16:
      return {CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F};
    case MatrixType::kF16:
      return {CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F, CUDA_R_32F};
    case MatrixType::kE4M3:
      return {CUDA_R_8F_E4M3, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F};
    case MatrixType::kI8:
      return {CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I, CUDA_R_32I};
  }
  return {};
}

/// A description that the library made, destroyed with the object.
template <typename Handle, typename Destroy>
class Owned {
 public:
  Owned(Handle handle, Destroy destroy) : handle_(handle), destroy_(destroy) {}
  ~Owned() { destroy_(handle_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  operator Handle() const { return handle_; }  // NOLINT: it stands for the handle in every call

 private:
  Handle handle_;
  Destroy destroy_;
};

class LoadedCublasLt final : public CublasLt {
 public:
  LoadedCublasLt(DynamicLibrary library, const Functions& functions, Runtime& runtime,
                 const Stream& stream)
      : library_(std::move(library)), functions_(functions), runtime_(runtime), stream_(stream) {
    check(functions_.create(&handle_), "cublasLtCreate");
    workspace_ = runtime_.allocate(kWorkspaceBytes);
  }
  ~LoadedCublasLt() override {
    runtime_.release_memory(workspace_);
    functions_.destroy(handle_);
  }
  LoadedCublasLt(const LoadedCublasLt&) = delete;
  LoadedCublasLt& operator=(const LoadedCublasLt&) = delete;

  void multiply(const MatrixProduct& product) override {
    const Types types = types_of(product.type);
    cublasLtMatmulDesc_t made = nullptr;
    check(functions_.matmul_desc_create(&made, types.compute, types.scale),
          "cublasLtMatmulDescCreate");
    const Owned description(made, functions_.matmul_desc_destroy);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(functions_.matmul_desc_set(description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                     sizeof transposed),
          "cublasLtMatmulDescSetAttribute");
    // The library counts by columns, so that C^T = B @ A^T has rows of B first.
    const Owned b(layout(types.operand, product.k, product.n), functions_.layout_destroy);
    const Owned a(layout(types.operand, product.k, product.m), functions_.layout_destroy);
    const Owned c(layout(types.result, product.n, product.m), functions_.layout_destroy);

    const cublasLtMatmulHeuristicResult_t chosen = choose(description, b, a, c);
    const float one_f32 = 1;
    const float zero_f32 = 0;
    const std::int32_t one_i32 = 1;
    const std::int32_t zero_i32 = 0;
    const bool integers = product.type == MatrixType::kI8;
    const void* alpha = integers ? static_cast<const void*>(&one_i32) : &one_f32;
    const void* beta = integers ? static_cast<const void*>(&zero_i32) : &zero_f32;
    check(functions_.matmul(handle_, description, alpha, product.b, b, product.a, a, beta,
                            product.c, c, product.c, c, &chosen.algo, workspace_, kWorkspaceBytes,
                            reinterpret_cast<cudaStream_t>(stream_.handle())),
          "cublasLtMatmul");
  }

 private:
  cublasLtMatrixLayout_t layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns) {
    cublasLtMatrixLayout_t made = nullptr;
    check(functions_.layout_create(&made, type, static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows),
          "cublasLtMatrixLayoutCreate");
    return made;
  }

  cublasLtMatmulHeuristicResult_t choose(cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t b,
                                         cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t c) {
    cublasLtMatmulPreference_t made = nullptr;
    check(functions_.preference_create(&made), "cublasLtMatmulPreferenceCreate");
    const Owned preference(made, functions_.preference_destroy);
    const std::size_t workspace = kWorkspaceBytes;
    check(functions_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                    &workspace, sizeof workspace),
          "cublasLtMatmulPreferenceSetAttribute");
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    check(functions_.heuristic(handle_, description, b, a, c, c, preference, 1, &found, &count),
          "cublasLtMatmulAlgoGetHeuristic");
    if (count == 0) throw DeviceError("cuBLASLt has no algorithm for this product", false);
    return found;
  }

  DynamicLibrary library_;
  Functions functions_;
  Runtime& runtime_;
  const Stream& stream_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
};

}  // namespace

CublasLtChoice open_cublas_lt(Runtime& runtime, const Stream& stream) {
  DynamicLibrary library(
      {fmt::format("libcublasLt.so.{}", CUDART_VERSION / 1000), "libcublasLt.so"});
  if (!library.is_open()) return {nullptr, "cuBLASLt not found: " + library.problem()};
  Functions functions;
  if (!functions.bind(library)) {
    return {nullptr, "cuBLASLt not found: the library lacks a function"};
  }
  return {std::make_unique<LoadedCublasLt>(std::move(library), functions, runtime, stream), ""};
}

}  // namespace attnbench

#else

namespace attnbench {

CublasLtChoice open_cublas_lt(Runtime&, const Stream&) {
  return {nullptr, "cuBLASLt not found: attnbench was built without its headers"};
}

}  // namespace attnbench

#endif
