// CudaOps on a device of host memory, with a compiler that only writes down what it is given.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "gpu/host_runtime_testing.h"
#include "jit/fake_compiler_testing.h"
#include "ops/cuda/cuda_ops.h"

namespace attnbench {

struct HostDevice {
  std::filesystem::path cache =
      std::filesystem::temp_directory_path() / ("attnbench-ops-test-" + std::to_string(getpid()));
  std::atomic<int> compilations{0};
  HostRuntime* runtime = nullptr;
  std::unique_ptr<CudaOps> ops;

  explicit HostDevice(CublasLtOpener open_library = nullptr, std::size_t zone_bytes = kGuardBytes) {
    std::filesystem::remove_all(cache);
    auto host = std::make_unique<HostRuntime>();
    runtime = host.get();
    ops = std::make_unique<CudaOps>(
        std::move(host),
        std::make_unique<KernelStore>(std::make_unique<FakeCompiler>(compilations),
                                      DiskCache(cache), embedded_kernel_files()),
        std::move(open_library), zone_bytes);
  }
  ~HostDevice() { std::filesystem::remove_all(cache); }
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;
};

}  // namespace attnbench
