// A kernel of a spec, loaded on a device: for those that measure or check and are no operation.
//
// Operations go through ops/cuda/launcher.h, which keeps account of what was launched, for results
// and for the blame of errors. What the referee itself launches belongs into neither: the kernels
// of kernels/measure/referee.cuh and read.cuh.
#pragma once

#include "gpu/runtime.h"
#include "jit/compiler.h"
#include "jit/kernel_spec.h"
#include "jit/kernel_store.h"

namespace attnbench {

/// `runtime` must outlive it. Errors: those of the compiler, and kCuda.
class LoadedKernel {
 public:
  LoadedKernel(Runtime& runtime, KernelStore& store, const KernelSpec& spec) : runtime_(runtime) {
    const StoredKernel& stored = store.get(spec, arch_of_sm(runtime.device().sm));
    library_ = runtime.load_library(stored.compiled.cubin);
    kernel_ = runtime.find_kernel(library_, stored.compiled.lowered_name);
  }
  ~LoadedKernel() { runtime_.release_library(library_); }
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;

  /// Queues a launch with one parameter, a struct, which is copied.
  template <typename Params>
  void launch(const LaunchShape& shape, const Params& params, StreamHandle stream) {
    const void* arguments[] = {&params};
    runtime_.launch(kernel_, shape, arguments, stream);
  }

 private:
  Runtime& runtime_;
  LibraryHandle library_ = nullptr;
  KernelHandle kernel_ = nullptr;
};

}  // namespace attnbench
