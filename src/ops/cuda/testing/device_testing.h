// Cases on a GPU held against the CPU, for the tests that need a device: which are skipped, with
// the reason, where there is none.
#pragma once

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "core/error.h"
#include "core/system/parallel.h"
#include "jit/kernel_store.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/recording_ops.h"
#include "ops/cuda/testing/operation_cases_testing.h"

namespace attnbench::cuda {

inline std::filesystem::path cache_dir() {
  return std::filesystem::temp_directory_path() /
         ("attnbench-device-test-" + std::to_string(getpid()));
}

/// Null, after a message, where nothing can be run.
inline std::unique_ptr<CudaOps> open_device(bool with_cublas_lt) {
  try {
    return make_cuda_ops(0, cache_dir().string(), with_cublas_lt);
  } catch (const Error& error) {
    MESSAGE("skipped: " << std::string(error.what()));
    return nullptr;
  }
}

inline CudaOps* device_ops() {
  static const std::unique_ptr<CudaOps> ops = open_device(/*with_cublas_lt=*/true);
  return ops.get();
}

/// Into the cache, on all cores: one after another they take minutes.
inline void compile_kernels(const std::vector<KernelSpec>& specs, const Target& target) {
  const std::unique_ptr<KernelStore> store = make_kernel_store(cache_dir().string());
  ThreadPool().parallel_for(static_cast<std::int64_t>(specs.size()), [&](std::int64_t i, int) {
    try {
      store->get(specs[static_cast<std::size_t>(i)], arch_of_sm(target.sm));
    } catch (const Error&) {
      // Is thrown again where the kernel is launched, and fails the test there.
    }
  });
}
inline void compile_kernels(const std::vector<OperationCase>& cases, const Target& target,
                            const char* forced) {
  std::vector<KernelSpec> specs;
  const std::unique_ptr<Ops> recording = make_recording_ops(target, specs);
  recording->force_kernel(forced);
  for (const OperationCase& c : cases) c.run(*recording);
  compile_kernels(specs, target);
}

inline bool close_enough(double a, double b, double tolerance, double absolute) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::fabs(a - b) <= absolute + tolerance * (1e-2 + std::fabs(b));
}

/// Index of the first element that differs, or -1.
inline std::int64_t first_difference(const Tensor& actual, const Tensor& expected, double tolerance,
                                     double absolute) {
  if (tolerance == 0) {
    if (std::memcmp(actual.bytes(), expected.bytes(), expected.size_bytes()) == 0) return -1;
    const std::size_t size = dtype_size(expected.dtype());
    for (std::int64_t i = 0; i < expected.num_elements(); ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * size;
      if (std::memcmp(actual.bytes() + at, expected.bytes() + at, size) == 0) continue;
      // A float32 NaN is one whatever its payload is, which devices choose as they like; a code
      // that is NaN is a byte like others.
      const bool is_nan = expected.dtype() == Dtype::kF32 &&
                          std::isnan(static_cast<double>(actual.at(i))) &&
                          std::isnan(static_cast<double>(expected.at(i)));
      if (!is_nan) return i;
    }
    return -1;
  }
  for (std::int64_t i = 0; i < expected.num_elements(); ++i) {
    if (!close_enough(static_cast<double>(actual.at(i)), static_cast<double>(expected.at(i)),
                      tolerance, absolute)) {
      return i;
    }
  }
  return -1;
}

/// With ATTNBENCH_TEST_PROGRESS set: which case is next, to find the one that hangs.
inline void announce(const OperationCase& c) {
  if (std::getenv("ATTNBENCH_TEST_PROGRESS") != nullptr) std::cerr << c.name << std::endl;
}

/// Every case gives on the GPU what it gives on the CPU; attention by the kernel `forced`.
inline void check_on_device(const std::vector<OperationCase>& cases, CudaOps* gpu = device_ops(),
                            const char* forced = "") {
  if (gpu == nullptr) return;
  const std::unique_ptr<Ops> cpu = make_cpu_ops(2);
  compile_kernels(cases, gpu->launcher().target(), forced);
  for (const OperationCase& c : cases) {
    CAPTURE(c.name);
    announce(c);
    const std::vector<Tensor> expected = c.run(*cpu);
    gpu->force_kernel(forced);
    const std::vector<Tensor> actual = c.run(*gpu);
    gpu->force_kernel("");
    REQUIRE(actual.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      const std::int64_t at =
          first_difference(actual[i], expected[i], c.tolerance, c.absolute_tolerance);
      CAPTURE(at);
      if (at >= 0) {
        CAPTURE(actual[i].at(at));
        CAPTURE(expected[i].at(at));
        CHECK(at < 0);
      }
    }
  }
  CHECK_FALSE(gpu->take_kernels().empty());
}

/// The cases by a kernel for Hopper give what the CPU gives, and the same bytes a second time: no
/// order of its sums depends on time. `kernel`: "" where a case names its own.
inline void check_on_hopper(const std::vector<OperationCase>& cases, const char* kernel = "") {
  CudaOps* const gpu = device_ops();
  if (gpu == nullptr) return;
  if (gpu->launcher().target().sm != 90) {
    MESSAGE("skipped: compute capability " << gpu->launcher().target().sm << ", it is for 90");
    return;
  }
  check_on_device(cases, gpu, kernel);
  for (const OperationCase& c : cases) {
    CAPTURE(c.name);
    gpu->force_kernel(kernel);
    const std::vector<Tensor> once = c.run(*gpu);
    const std::vector<Tensor> again = c.run(*gpu);
    gpu->force_kernel("");
    for (std::size_t i = 0; i < once.size(); ++i) {
      CHECK(first_difference(again[i], once[i], 0, 0) < 0);
    }
  }
}

}  // namespace attnbench::cuda
