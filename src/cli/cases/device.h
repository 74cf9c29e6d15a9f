// --device and --assume-sm: the device that cases run on, or why they cannot.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bench/loop/timing_tools.h"
#include "gpu/runtime.h"

namespace attnbench {

struct DeviceChoice {
  std::string name = "cpu";           // "cpu", "cuda:0"
  DeviceFacts facts;                  // what support is judged by
  std::vector<std::string> refusals;  // why nothing can run there; empty = it can
  std::optional<DeviceInfo> info;     // of a CUDA device that is there

  bool is_cuda() const { return name != "cpu"; }
};

/// `device` is auto, cpu or cuda[:N]; auto is the first CUDA device where there is one.
/// `assume_sm` is empty, or a compute capability as 90, 9.0, sm_90 or sm_90a that the CPU stands
/// for. `list` is asked unless `device` is cpu. Errors: kUsage for anything else.
DeviceChoice choose_device(const std::string& device, const std::string& assume_sm,
                           const std::function<DeviceList()>& list);
/// The same with the devices of this machine.
DeviceChoice choose_device(const std::string& device, const std::string& assume_sm);

/// Operations on the chosen device, which has no refusals. Without `with_cublas_lt` all products of
/// matrices are by own kernels.
std::unique_ptr<Ops> open_ops(const DeviceChoice& device, int num_threads,
                              const std::string& cache_dir, bool with_cublas_lt = true);

/// Timing on a CUDA device; `ops` is what open_ops() gave for it.
std::unique_ptr<TimingTools> cuda_timing_tools(Ops& ops);

}  // namespace attnbench
