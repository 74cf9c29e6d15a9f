// Every kernel compiles for the architectures that are tested, without spills that its spec does
// not declare.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

#include "jit/kernel_store.h"
#include "jit/nvrtc_compiler.h"
#include "ops/cuda/attend_cases_testing.h"
#include "ops/cuda/cuda_ops.h"

namespace attnbench::cuda {
namespace {

std::vector<KernelSpec> specs_on(int sm) {
  std::vector<KernelSpec> specs;
  const std::unique_ptr<Ops> ops = make_recording_ops(target_of_sm(sm), specs);
  for (const OperationCase& c : all_operation_cases()) c.run(*ops);
  return specs;
}

}  // namespace

TEST_CASE("the covering cases of the operations launch something, each spec once") {
  const std::vector<KernelSpec> specs = specs_on(90);
  CHECK(specs.size() > 20);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    CHECK_FALSE(specs[i].name.empty());
    for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(specs[i] == specs[j]);
  }
}

TEST_CASE("kernels of the covering cases compile for sm_80 and sm_90a without undeclared spills") {
  if (!find_nvrtc().compiler) {
    MESSAGE("skipped: " << find_nvrtc().missing);
    return;
  }
  const auto cache = std::filesystem::temp_directory_path() /
                     ("attnbench-compile-test-" + std::to_string(getpid()));
  const std::unique_ptr<KernelStore> store = make_kernel_store(cache.string());
  for (const int sm : {80, 90}) {
    for (const KernelSpec& spec : specs_on(sm)) {
      CAPTURE(spec.name);
      const CompiledKernel& kernel = store->get(spec, arch_of_sm(sm)).compiled;
      CHECK(kernel.registers > 0);
      if (!spec.allow_spills) CHECK(kernel.spill_bytes == 0);
    }
  }
  std::filesystem::remove_all(cache);
}

}  // namespace attnbench::cuda
