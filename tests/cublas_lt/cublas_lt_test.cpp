// From a product of the operation matmul to the calls of cuBLASLt, on host memory.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>

#include "gpu/dynamic_library.h"
#include "ops/cuda/testing/all_cases_testing.h"
#include "ops/cuda/testing/host_device_testing.h"
#include "stub_library.h"

namespace attnbench::cuda {
namespace {

/// The fake library as the program opens it, reset; null where another library was found.
StubLibrary* stub() {
  static const DynamicLibrary library(
      {"libcublasLt.so." + std::to_string(CUBLAS_LT_MAJOR), "libcublasLt.so"});
  StubLibrary* (*get)() = nullptr;
  if (!library.bind(get, "stub_library")) return nullptr;
  const int described = get()->num_described;
  *get() = {};
  get()->num_described = described;
  return get();
}

int num_different(const Tensor& actual, const Tensor& expected, double tolerance) {
  int count = 0;
  for (std::int64_t i = 0; i < expected.num_elements(); ++i) {
    const double found = double{actual.at(i)};
    const double wanted = double{expected.at(i)};
    if (std::isnan(found) != std::isnan(wanted)) ++count;
    if (std::fabs(found - wanted) > tolerance * (1 + std::fabs(wanted))) ++count;
  }
  return count;
}

const std::vector<MatmulCase>& cases() {
  using enum Dtype;
  static const std::vector<MatmulCase> list{{kBF16, kBF16, 3, 7, 24, 16},
                                            {kBF16, kF32, 1, 20, 19, 32, true},
                                            {kBF16, kBF16, 2, 3, 5, 21, true, 1},
                                            {kF32, kF32, 2, 7, 6, 33}};
  return list;
}

}  // namespace

TEST_CASE("the calls of the library describe the product, and one plan serves every run") {
  StubLibrary* const library = stub();
  REQUIRE(library != nullptr);
  library->workspace_bytes = 4096;
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  {
    HostDevice device(open_cublas_lt);
    for (const MatmulCase& c : cases()) {
      const double tolerance = c.output == Dtype::kF32 ? 1e-4 : 1e-2;
      CAPTURE(matmul_case(c).name);
      const Tensor expected = run_matmul(*cpu, c)[0];
      CHECK(num_different(run_matmul(*device.ops, c)[0], expected, tolerance) == 0);
      CHECK(num_different(run_matmul(*device.ops, c)[0], expected, tolerance) == 0);
    }
    CHECK(library->num_products == 2 * static_cast<int>(cases().size()));
    CHECK(library->num_asked == static_cast<int>(cases().size()));
    CHECK(device.runtime->launches.empty());
    CHECK(device.ops->take_kernels().at(0).name ==
          "matmul bf16 to bf16 by cuBLASLt 9.8.7 (3 x [7, 16] x [16, 24]; algorithm 100, tile 20, "
          "stages 35, K in 4 parts)");
  }
  CHECK(library->num_described == 0);
}

TEST_CASE("what would round partial sums or operands is excluded from the library's choice") {
  StubLibrary* const library = stub();
  REQUIRE(library != nullptr);
  HostDevice device(open_cublas_lt);
  run_matmul(*device.ops, {Dtype::kBF16, Dtype::kBF16, 2, 4, 8, 16});
  CHECK(library->reductions == 2);  // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
  // CUBLASLT_NUMERICAL_IMPL_FLAGS_...
  constexpr std::uint64_t kAccumulator16 = 1 << 8;
  constexpr std::uint64_t kAccumulator32 = 2 << 8;
  constexpr std::uint64_t kInput16 = 3 << 16;
  constexpr std::uint64_t kInputTf32 = 4 << 16;
  constexpr std::uint64_t kInput32 = 8 << 16;
  CHECK((library->implementations & (kAccumulator16 | kInputTf32)) == 0);
  CHECK((library->implementations & (kAccumulator32 | kInput16)) == (kAccumulator32 | kInput16));
  CHECK(library->alignment_a == 256);
  CHECK(library->alignment_b == 32);  // heads beside one another
  CHECK(library->alignment_d == 16);
  CHECK(library->alignment_c == library->alignment_d);
  run_matmul(*device.ops, {Dtype::kF32, Dtype::kF32, 1, 4, 8, 16});
  CHECK((library->implementations & (kAccumulator16 | kInputTf32 | kInput16)) == 0);
  CHECK((library->implementations & (kAccumulator32 | kInput32)) == (kAccumulator32 | kInput32));
}

TEST_CASE("a candidate that failed, adds up in place or wants too much memory is passed over") {
  StubLibrary* const library = stub();
  REQUIRE(library != nullptr);
  library->num_candidates = 4;
  HostDevice device(open_cublas_lt);
  const MatmulCase product{Dtype::kBF16, Dtype::kBF16, 2, 4, 8, 16};
  run_matmul(*device.ops, product);
  CHECK(device.ops->take_kernels().at(0).name.find("algorithm 103,") != std::string::npos);
}

TEST_CASE(
    "the own kernel is for what the library has no algorithm for, and its errors are errors") {
  StubLibrary* const library = stub();
  REQUIRE(library != nullptr);
  const MatmulCase product{Dtype::kBF16, Dtype::kBF16, 2, 4, 8, 16};
  library->num_candidates = 0;
  HostDevice poor(open_cublas_lt);
  run_matmul(*poor.ops, product);
  CHECK(poor.runtime->launches.size() == 1);
  library->heuristic_status = 15;  // CUBLAS_STATUS_NOT_SUPPORTED
  HostDevice other(open_cublas_lt);
  run_matmul(*other.ops, product);
  CHECK(other.runtime->launches.size() == 1);
  library->heuristic_status = 7;  // CUBLAS_STATUS_INVALID_VALUE
  HostDevice broken(open_cublas_lt);
  CHECK_THROWS_WITH(run_matmul(*broken.ops, product),
                    "matmul bf16 to bf16 by cuBLASLt 9.8.7 of 2 x [4, 16] x [16, 8]: "
                    "cublasLtMatmulAlgoGetHeuristic: status 7");
}

}  // namespace attnbench::cuda
