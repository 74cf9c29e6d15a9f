// Which of many buffers have a guard zone that was written, found on the device.
#pragma once

#include <memory>
#include <vector>

#include "gpu/device_buffer.h"
#include "gpu/runtime.h"
#include "gpu/stream.h"
#include "jit/kernel_spec.h"
#include "jit/kernel_store.h"
#include "jit/loaded_kernel.h"

namespace attnbench::cuda {

KernelSpec zone_scan_spec();

/// All three must outlive it. Its launches are of no operation, and are not listed as its kernels.
class ZoneScan {
 public:
  ZoneScan(Runtime& runtime, const Stream& stream, KernelStore& store)
      : runtime_(runtime), stream_(stream), store_(store) {}
  ~ZoneScan() { runtime_.release_memory(memory_); }
  ZoneScan(const ZoneScan&) = delete;
  ZoneScan& operator=(const ZoneScan&) = delete;

  /// Those of `buffers` of which a zone was written, in their order; all of them where the kernel
  /// cannot be compiled. Waits for the stream. Errors: kCuda, kCapacity.
  std::vector<DeviceBuffer*> broken_of(const std::vector<DeviceBuffer*>& buffers);

 private:
  bool load();
  void reserve(std::size_t num_zones);

  Runtime& runtime_;
  const Stream& stream_;
  KernelStore& store_;
  std::unique_ptr<LoadedKernel> kernel_;  // since the first use
  bool cannot_load_ = false;
  std::byte* memory_ = nullptr;  // [capacity_] zones, then as many results
  std::size_t capacity_ = 0;
};

}  // namespace attnbench::cuda
