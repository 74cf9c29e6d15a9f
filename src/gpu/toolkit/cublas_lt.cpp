#include "gpu/cublas_lt.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

// Why: a toolkit may be installed without the headers of cuBLAS.
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#include <array>
#include <utility>

#include "gpu/dynamic_library.h"

namespace attnbench {
namespace {

/// Of the heuristic's list, best first; later ones are for where the first cannot be used.
constexpr int kMostCandidates = 8;
/// Why no other: partial sums stay f32 and are added in a fixed order (semantics §18.2). In place
/// they would be rounded to the type of the result at every part.
constexpr std::uint32_t kReductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
/// Arithmetic that would be less exact than f32, whatever its operands are.
constexpr cublasLtNumericalImplFlags_t kNever = CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_16F |
                                                CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32 |
                                                CUBLASLT_NUMERICAL_IMPL_FLAGS_GAUSSIAN;
constexpr cublasLtNumericalImplFlags_t kNeverForF32 =
    kNever | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF;

/// The functions that are used, with the types of the header.
struct Functions {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_get = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;

  bool bind(const DynamicLibrary& library) {
    return library.bind(create, "cublasLtCreate") && library.bind(destroy, "cublasLtDestroy") &&
           library.bind(version, "cublasLtGetVersion") &&
           library.bind(matmul_desc_create, "cublasLtMatmulDescCreate") &&
           library.bind(matmul_desc_destroy, "cublasLtMatmulDescDestroy") &&
           library.bind(matmul_desc_set, "cublasLtMatmulDescSetAttribute") &&
           library.bind(layout_create, "cublasLtMatrixLayoutCreate") &&
           library.bind(layout_destroy, "cublasLtMatrixLayoutDestroy") &&
           library.bind(layout_set, "cublasLtMatrixLayoutSetAttribute") &&
           library.bind(preference_create, "cublasLtMatmulPreferenceCreate") &&
           library.bind(preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
           library.bind(preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
           library.bind(heuristic, "cublasLtMatmulAlgoGetHeuristic") &&
           library.bind(algorithm_get, "cublasLtMatmulAlgoConfigGetAttribute") &&
           library.bind(matmul, "cublasLtMatmul");
  }
};

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(fmt::format("{}: status {}", call, static_cast<int>(status)), false);
}

cudaDataType_t data_type(MatrixType type) {
  switch (type) {
    case MatrixType::kF32:
      return CUDA_R_32F;
    case MatrixType::kBF16:
      return CUDA_R_16BF;
    case MatrixType::kF16:
      return CUDA_R_16F;
    case MatrixType::kE4M3:
      return CUDA_R_8F_E4M3;
    case MatrixType::kI8:
      return CUDA_R_8I;
    case MatrixType::kI32:
      return CUDA_R_32I;
  }
  return CUDA_R_32F;
}

/// A description that the library made, destroyed with the object.
template <typename Handle>
class Owned {
 public:
  using Destroy = cublasStatus_t (*)(Handle);
  Owned(Handle handle, Destroy destroy) : handle_(handle), destroy_(destroy) {}
  ~Owned() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Owned(Owned&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), destroy_(other.destroy_) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  operator Handle() const { return handle_; }  // NOLINT: it stands for the handle in every call

 private:
  Handle handle_;
  Destroy destroy_;
};

using Description = Owned<cublasLtMatmulDesc_t>;
using Layout = Owned<cublasLtMatrixLayout_t>;
using Preference = Owned<cublasLtMatmulPreference_t>;

/// f32, without tf32; int32 of int8.
Description describe(const Functions& functions, const LtProduct& product) {
  const bool integers = product.a.type == MatrixType::kI8;
  cublasLtMatmulDesc_t made = nullptr;
  check(functions.matmul_desc_create(&made, integers ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F,
                                     integers ? CUDA_R_32I : CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  Description description(made, functions.matmul_desc_destroy);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(functions.matmul_desc_set(description, attribute, &operation, sizeof operation),
          "cublasLtMatmulDescSetAttribute");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_a);
  set(CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_b);
  return description;
}

Layout lay_out(const Functions& functions, const LtMatrix& matrix, int batches) {
  cublasLtMatrixLayout_t made = nullptr;
  check(functions.layout_create(&made, data_type(matrix.type),
                                static_cast<std::uint64_t>(matrix.rows),
                                static_cast<std::uint64_t>(matrix.columns), matrix.leading),
        "cublasLtMatrixLayoutCreate");
  Layout layout(made, functions.layout_destroy);
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, auto value) {
    check(functions.layout_set(layout, attribute, &value, sizeof value),
          "cublasLtMatrixLayoutSetAttribute");
  };
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(batches));
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, matrix.batch_stride);
  return layout;
}

Preference prefer(const Functions& functions, const LtProduct& product) {
  cublasLtMatmulPreference_t made = nullptr;
  check(functions.preference_create(&made), "cublasLtMatmulPreferenceCreate");
  Preference preference(made, functions.preference_destroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(functions.preference_set(preference, attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kMostLtWorkspaceBytes});
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductions);
  set(CUBLASLT_MATMUL_PREF_IMPL_MASK,
      ~(product.a.type == MatrixType::kF32 ? kNeverForF32 : kNever));
  // Why: the library takes 256 bytes for granted.
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(product.a.alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(product.b.alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(product.d.alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(product.d.alignment));
  return preference;
}

/// What a configuration of the library's says of itself.
struct AlgorithmFacts {
  std::int32_t id = 0;
  std::uint32_t tile = 0;
  std::uint32_t stages = 0;
  std::int32_t split_k = 1;
  std::uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;

  bool repeats() const { return (reduction & ~kReductions) == 0; }
  std::string text() const {
    std::string text = fmt::format("algorithm {}, tile {}, stages {}", id, tile, stages);
    return split_k > 1 ? text + fmt::format(", K in {} parts", split_k) : text;
  }
};

AlgorithmFacts facts_of(const Functions& functions, const cublasLtMatmulAlgo_t& algorithm) {
  AlgorithmFacts facts;
  const auto get = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
    check(functions.algorithm_get(&algorithm, attribute, &value, sizeof value, nullptr),
          "cublasLtMatmulAlgoConfigGetAttribute");
  };
  get(CUBLASLT_ALGO_CONFIG_ID, facts.id);
  get(CUBLASLT_ALGO_CONFIG_TILE_ID, facts.tile);
  get(CUBLASLT_ALGO_CONFIG_STAGES_ID, facts.stages);
  get(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, facts.split_k);
  get(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, facts.reduction);
  return facts;
}

class LoadedPlan final : public LtPlan {
 public:
  LoadedPlan(const Functions& functions, cublasLtHandle_t handle, const Stream& stream,
             const LtProduct& product)
      : functions_(functions),
        handle_(handle),
        stream_(stream),
        integers_(product.a.type == MatrixType::kI8),
        description_(describe(functions, product)),
        a_(lay_out(functions, product.a, product.batches)),
        b_(lay_out(functions, product.b, product.batches)),
        d_(lay_out(functions, product.d, product.batches)) {}

  /// False where the library has nothing to offer.
  bool choose(const LtProduct& product) {
    const Preference preference = prefer(functions_, product);
    std::array<cublasLtMatmulHeuristicResult_t, kMostCandidates> found{};
    int count = 0;
    const cublasStatus_t status = functions_.heuristic(
        handle_, description_, a_, b_, d_, d_, preference, kMostCandidates, found.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < count; ++i) {
      const cublasLtMatmulHeuristicResult_t& candidate = found[static_cast<std::size_t>(i)];
      if (candidate.state != CUBLAS_STATUS_SUCCESS) continue;
      const AlgorithmFacts facts = facts_of(functions_, candidate.algo);
      if (!facts.repeats() || candidate.workspaceSize > kMostLtWorkspaceBytes) continue;
      chosen_ = candidate;
      algorithm_ = facts.text();
      return true;
    }
    return false;
  }

  const std::string& algorithm() const override { return algorithm_; }
  std::size_t workspace_bytes() const override { return chosen_.workspaceSize; }

  void run(const void* a, const void* b, void* d, void* workspace) const override {
    const float one_f32 = 1;
    const float zero_f32 = 0;
    const std::int32_t one_i32 = 1;
    const std::int32_t zero_i32 = 0;
    const void* alpha = integers_ ? static_cast<const void*>(&one_i32) : &one_f32;
    // With 0 the old contents of D are not read.
    const void* beta = integers_ ? static_cast<const void*>(&zero_i32) : &zero_f32;
    check(functions_.matmul(handle_, description_, alpha, a, a_, b, b_, beta, d, d_, d, d_,
                            &chosen_.algo, workspace, chosen_.workspaceSize,
                            reinterpret_cast<cudaStream_t>(stream_.handle())),
          "cublasLtMatmul");
  }

 private:
  const Functions& functions_;
  cublasLtHandle_t handle_;
  const Stream& stream_;
  bool integers_;
  Description description_;
  Layout a_;
  Layout b_;
  Layout d_;
  cublasLtMatmulHeuristicResult_t chosen_{};
  std::string algorithm_;
};

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

class LoadedCublasLt final : public CublasLt {
 public:
  LoadedCublasLt(DynamicLibrary library, const Functions& functions, cublasLtHandle_t handle,
                 const Stream& stream)
      : library_(std::move(library)),
        functions_(functions),
        handle_(handle),
        stream_(stream),
        version_(version_text(functions.version())) {}
  ~LoadedCublasLt() override { functions_.destroy(handle_); }
  LoadedCublasLt(const LoadedCublasLt&) = delete;
  LoadedCublasLt& operator=(const LoadedCublasLt&) = delete;

  const std::string& version() const override { return version_; }
  std::unique_ptr<LtPlan> plan(const LtProduct& product) override {
    auto plan = std::make_unique<LoadedPlan>(functions_, handle_, stream_, product);
    if (!plan->choose(product)) return nullptr;
    return plan;
  }

 private:
  DynamicLibrary library_;
  Functions functions_;
  cublasLtHandle_t handle_;
  const Stream& stream_;
  std::string version_;
};

}  // namespace

CublasLtChoice open_cublas_lt(Runtime&, const Stream& stream) {
  DynamicLibrary library(
      {fmt::format("libcublasLt.so.{}", CUDART_VERSION / 1000), "libcublasLt.so"});
  if (!library.is_open()) return {nullptr, "cuBLASLt not found: " + library.problem()};
  Functions functions;
  if (!functions.bind(library)) {
    return {nullptr, "cuBLASLt not found: the library lacks a function"};
  }
  cublasLtHandle_t handle = nullptr;
  if (const cublasStatus_t status = functions.create(&handle); status != CUBLAS_STATUS_SUCCESS) {
    return {nullptr, fmt::format("cuBLASLt not usable: cublasLtCreate: status {}",
                                 static_cast<int>(status))};
  }
  return {std::make_unique<LoadedCublasLt>(std::move(library), functions, handle, stream), ""};
}

}  // namespace attnbench

#else

namespace attnbench {

CublasLtChoice open_cublas_lt(Runtime&, const Stream&) {
  return {nullptr, "cuBLASLt not found: attnbench was built without its headers"};
}

}  // namespace attnbench

#endif
