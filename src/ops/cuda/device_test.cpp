// Every operation on a GPU against the same on the CPU. Skipped, with the reason, where there is no
// device.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/parallel.h"
#include "jit/kernel_store.h"
#include "ops/cuda/all_cases_testing.h"
#include "ops/cuda/cuda_ops.h"

namespace attnbench::cuda {
namespace {

std::filesystem::path cache_dir() {
  return std::filesystem::temp_directory_path() /
         ("attnbench-device-test-" + std::to_string(getpid()));
}

/// Null, after a message, where nothing can be run.
CudaOps* device_ops() {
  static const std::filesystem::path cache = cache_dir();
  static const std::unique_ptr<CudaOps> ops = []() -> std::unique_ptr<CudaOps> {
    try {
      return make_cuda_ops(0, cache.string());
    } catch (const Error& error) {
      MESSAGE("skipped: " << std::string(error.what()));
      return nullptr;
    }
  }();
  return ops.get();
}

/// Into the cache, on all cores: one after another they take minutes.
void compile_kernels(const std::vector<OperationCase>& cases, const Target& target) {
  std::vector<KernelSpec> specs;
  const std::unique_ptr<Ops> recording = make_recording_ops(target, specs);
  for (const OperationCase& c : cases) c.run(*recording);
  const std::unique_ptr<KernelStore> store = make_kernel_store(cache_dir().string());
  ThreadPool().parallel_for(static_cast<std::int64_t>(specs.size()), [&](std::int64_t i, int) {
    try {
      store->get(specs[static_cast<std::size_t>(i)], arch_of_sm(target.sm));
    } catch (const Error&) {
      // Is thrown again where the kernel is launched, and fails the test there.
    }
  });
}

bool close_enough(double a, double b, double tolerance, double absolute) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::fabs(a - b) <= absolute + tolerance * (1e-2 + std::fabs(b));
}

/// Index of the first element that differs, or -1.
std::int64_t first_difference(const Tensor& actual, const Tensor& expected, double tolerance,
                              double absolute) {
  if (tolerance == 0) {
    if (std::memcmp(actual.bytes(), expected.bytes(), expected.size_bytes()) == 0) return -1;
    const std::size_t size = dtype_size(expected.dtype());
    for (std::int64_t i = 0; i < expected.num_elements(); ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * size;
      if (std::memcmp(actual.bytes() + at, expected.bytes() + at, size) != 0) return i;
    }
  }
  for (std::int64_t i = 0; i < expected.num_elements(); ++i) {
    if (!close_enough(static_cast<double>(actual.at(i)), static_cast<double>(expected.at(i)),
                      tolerance, absolute)) {
      return i;
    }
  }
  return -1;
}

/// Every case gives on the GPU what it gives on the CPU.
void check_on_device(const std::vector<OperationCase>& cases) {
  CudaOps* const gpu = device_ops();
  if (gpu == nullptr) return;
  const std::unique_ptr<Ops> cpu = make_cpu_ops(2);
  compile_kernels(cases, gpu->launcher().target());
  for (const OperationCase& c : cases) {
    CAPTURE(c.name);
    const std::vector<Tensor> expected = c.run(*cpu);
    const std::vector<Tensor> actual = c.run(*gpu);
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

}  // namespace

TEST_CASE("every operation but attention gives on the GPU what it gives on the CPU") {
  std::vector<OperationCase> cases = operation_cases();
  add_coverage_cases(cases);
  check_on_device(cases);
}

TEST_CASE("attention gives on the GPU what it gives on the CPU") {
  std::vector<OperationCase> cases;
  add_attend_cases(cases);
  add_f32_attend_cases(cases);
  add_general_attend_cases(cases);
  check_on_device(cases);
}

TEST_CASE("a kernel that writes past a buffer on the GPU is found, with buffer and kernel") {
  CudaOps* const gpu = device_ops();
  if (gpu == nullptr) return;
  gpu->take_kernels();
  const std::unique_ptr<Buffer> source = gpu->allocate(64 * 1024, "source");
  const std::unique_ptr<Buffer> output = gpu->allocate(6 * 64, "planted output");
  // Four rows are gathered into room for three.
  const std::vector<int> starts{0, 4};
  const std::vector<int> table{0};
  const std::unique_ptr<Buffer> cu_seq_lens = gpu->allocate(8, "starts");
  const std::unique_ptr<Buffer> block_table = gpu->allocate(4, "table");
  gpu->upload(*cu_seq_lens, starts.data(), 8);
  gpu->upload(*block_table, table.data(), 4);
  attn::CpGatherParams p{};
  p.entries.element = attn::Element::kBF16;
  p.entries.cache = source->data();
  p.entries.block_stride = 16 * 64;
  p.entries.slot_stride = 64;
  p.entries.block_table = block_table->as<int>();
  p.entries.block_table_stride = 1;
  p.entries.block_size = 16;
  p.entries.entry_size = 64;
  p.output = output->data();
  p.output_token_stride = 64;
  p.cu_seq_lens = cu_seq_lens->as<int>();
  p.num_requests = 1;
  p.num_tokens = 4;
  gpu->cp_gather(p);
  try {
    gpu->synchronize();
    FAIL("the overrun was not found");
  } catch (const Error& error) {
    const std::string message = error.what();
    MESSAGE(message);
    CHECK(message.find("planted output: 128 bytes past its end") != std::string::npos);
    CHECK(message.find("cp_gather") != std::string::npos);
  }
  gpu->synchronize();  // is reported once
}

}  // namespace attnbench::cuda
