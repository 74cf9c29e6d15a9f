// Has the functions of cuBLASLt that attnbench uses, and does products by three loops over host
// memory, from nothing but the descriptions and by their documented meaning.
#include "stub_library.h"

#include <cublasLt.h>

#include <bit>
#include <cstring>

namespace {

StubLibrary library;

struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t leading;
  std::int32_t batches = 1;
  std::int64_t batch_stride = 0;
};

struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t a = CUBLAS_OP_N;
  cublasOperation_t b = CUBLAS_OP_N;
};

/// The words of an algorithm.
constexpr int kId = 0;
constexpr int kSplits = 1;
constexpr int kReduction = 2;

Layout& of(cublasLtMatrixLayout_t handle) { return *reinterpret_cast<Layout*>(handle); }
Description& of(cublasLtMatmulDesc_t handle) { return *reinterpret_cast<Description*>(handle); }

template <typename T>
cublasStatus_t take(T& value, const void* from, std::size_t size_bytes) {
  if (size_bytes != sizeof value) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&value, from, sizeof value);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t give(T value, void* to, std::size_t size_bytes) {
  if (size_bytes != sizeof value) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(to, &value, sizeof value);
  return CUBLAS_STATUS_SUCCESS;
}

/// bf16 and f32 are what the tests multiply.
float load(const Layout& m, const void* first, std::int64_t at) {
  if (m.type == CUDA_R_32F) return static_cast<const float*>(first)[at];
  const std::uint32_t bits = static_cast<const std::uint16_t*>(first)[at];
  return std::bit_cast<float>(bits << 16);
}

void store(const Layout& m, void* first, std::int64_t at, float value) {
  if (m.type == CUDA_R_32F) {
    static_cast<float*>(first)[at] = value;
    return;
  }
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
  static_cast<std::uint16_t*>(first)[at] = static_cast<std::uint16_t>(rounded >> 16);
}

std::int64_t place(const Layout& m, int batch, std::int64_t row, std::int64_t column,
                   cublasOperation_t operation = CUBLAS_OP_N) {
  if (operation == CUBLAS_OP_T) return batch * m.batch_stride + row * m.leading + column;
  return batch * m.batch_stride + column * m.leading + row;
}

bool is_right(const Layout& m, std::int32_t batches, std::uint32_t alignment, const void* first) {
  return m.leading >= static_cast<std::int64_t>(m.rows) && m.batches == batches &&
         reinterpret_cast<std::uintptr_t>(first) % alignment == 0;
}

}  // namespace

extern "C" {

StubLibrary* stub_library() { return &library; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&library);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
std::size_t cublasLtGetVersion(void) { return 90807; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{compute, scale});
  ++library.num_described;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete &of(description);
  --library.num_described;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t size_bytes) {
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) return take(of(description).a, value, size_bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) return take(of(description).b, value, size_bytes);
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  ++library.num_described;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &of(layout);
  --library.num_described;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t size_bytes) {
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) {
    return take(of(layout).batches, value, size_bytes);
  }
  if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) {
    return take(of(layout).batch_stride, value, size_bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(&library);
  ++library.num_described;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) {
  --library.num_described;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t size_bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(library.max_workspace_bytes, value, size_bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(library.reductions, value, size_bytes);
    case CUBLASLT_MATMUL_PREF_IMPL_MASK:
      return take(library.implementations, value, size_bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return take(library.alignment_a, value, size_bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return take(library.alignment_b, value, size_bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return take(library.alignment_c, value, size_bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(library.alignment_d, value, size_bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

/// Ahead of the good candidate: one that failed, one that adds up in place, and those whose
/// workspace is too large.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int num_wanted,
                                              cublasLtMatmulHeuristicResult_t* found, int* count) {
  ++library.num_asked;
  *count = library.num_candidates < num_wanted ? library.num_candidates : num_wanted;
  for (int i = 0; i < *count; ++i) {
    found[i] = {};
    const bool is_good = i + 1 == library.num_candidates;
    found[i].algo.data[kId] = static_cast<std::uint64_t>(100 + i);
    found[i].algo.data[kSplits] = 4;
    found[i].algo.data[kReduction] = i == 1 && !is_good ? CUBLASLT_REDUCTION_SCHEME_INPLACE
                                                        : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    found[i].state = i == 0 && !is_good ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    found[i].workspaceSize = is_good ? library.workspace_bytes : library.max_workspace_bytes + 1;
    if (i == 1 && !is_good) found[i].workspaceSize = 0;
  }
  return static_cast<cublasStatus_t>(library.heuristic_status);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t size_bytes,
                                                    std::size_t*) {
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_ID:
      return give(static_cast<std::int32_t>(algorithm->data[kId]), value, size_bytes);
    case CUBLASLT_ALGO_CONFIG_TILE_ID:
      return give(std::uint32_t{20}, value, size_bytes);
    case CUBLASLT_ALGO_CONFIG_STAGES_ID:
      return give(std::uint32_t{35}, value, size_bytes);
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
      return give(static_cast<std::int32_t>(algorithm->data[kSplits]), value, size_bytes);
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
      return give(static_cast<std::uint32_t>(algorithm->data[kReduction]), value, size_bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* first_a, cublasLtMatrixLayout_t layout_a,
                              const void* first_b, cublasLtMatrixLayout_t layout_b,
                              const void* beta, const void* first_c,
                              cublasLtMatrixLayout_t layout_c, void* first_d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t*,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t) {
  const Description& how = of(description);
  const Layout& a = of(layout_a);
  const Layout& b = of(layout_b);
  const Layout& d = of(layout_d);
  const bool sums_f32 = how.compute == CUBLAS_COMPUTE_32F && how.scale == CUDA_R_32F &&
                        *static_cast<const float*>(alpha) == 1 &&
                        *static_cast<const float*>(beta) == 0;
  const bool right = is_right(a, d.batches, library.alignment_a, first_a) &&
                     is_right(b, d.batches, library.alignment_b, first_b) &&
                     is_right(d, d.batches, library.alignment_d, first_d) && first_c == first_d &&
                     layout_c == layout_d;
  const bool has_room =
      workspace_bytes == library.workspace_bytes && (workspace != nullptr) == (workspace_bytes > 0);
  const std::uint64_t depth = how.a == CUBLAS_OP_T ? a.rows : a.columns;
  if (!sums_f32 || !right || !has_room || depth != (how.b == CUBLAS_OP_T ? b.columns : b.rows)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  for (int i = 0; i < d.batches; ++i) {
    for (std::int64_t column = 0; column < static_cast<std::int64_t>(d.columns); ++column) {
      for (std::int64_t row = 0; row < static_cast<std::int64_t>(d.rows); ++row) {
        float sum = 0;
        for (std::int64_t k = 0; k < static_cast<std::int64_t>(depth); ++k) {
          sum += load(a, first_a, place(a, i, row, k, how.a)) *
                 load(b, first_b, place(b, i, k, column, how.b));
        }
        store(d, first_d, place(d, i, row, column), sum);
      }
    }
  }
  ++library.num_products;
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
