// --device and --assume-sm: the device that cases run on, or why they cannot.
//
// A device that is not there is a choice with refusals and not an error: `support` and `run` show
// them as the reasons of every case, so that a script without a GPU ends with "nothing ran".
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bench/judge/screen.h"
#include "bench/loop/timing_tools.h"
#include "cli/options/shared_options.h"
#include "gpu/runtime.h"
#include "ops/cuda/launcher.h"

namespace attnbench {

struct DeviceChoice {
  std::string name = "cpu";           // "cpu", "cuda:0", "cuda:0-3"
  DeviceFacts facts;                  // what support is judged by
  std::vector<std::string> refusals;  // why nothing can run there; empty = it can
  std::optional<DeviceInfo> info;     // of a CUDA device that is there, the first of several
  bool is_range = false;              // several, one for each rank
  std::vector<DeviceInfo> of_ranks;   // those, as far as they are there

  bool is_cuda() const { return name != "cpu"; }
};

/// `device` is auto, cpu, cuda[:N] or cuda:N-M; auto is the first CUDA device where there is one,
/// else the CPU. Devices N to M are those of the ranks of DCP over NCCL, all others run on the
/// first; they have to be of one kind. `assume_sm` is empty, or the compute capability (90, 9.0,
/// sm_90 or sm_90a) by which backends are judged while cases run on the CPU, and `assume_num_sms`
/// the multiprocessors that their work is divided among there; a device that is there has its own.
/// `list` is called unless `device` is cpu. Errors: kUsage for anything else.
DeviceChoice choose_device(const std::string& device, const std::string& assume_sm,
                           const std::function<DeviceList()>& list,
                           std::optional<int> assume_num_sms = std::nullopt);
/// The same with the devices of this machine.
DeviceChoice choose_device(const std::string& device, const std::string& assume_sm,
                           std::optional<int> assume_num_sms = std::nullopt);
/// By the options --device, --assume-sm and --assume-num-sms.
DeviceChoice choose_device(const SelectionOptions& selection);

/// The device of a rank of a machine, by its number among the ranks there: a GPU of its own, or the
/// only one that it sees, because whoever started it gave each rank one. `list` is called for other
/// ranks than 0.
std::string device_of_rank(int local_rank, const std::function<DeviceList()>& list);
std::string device_of_rank(int local_rank);

/// The device of one of several ranks that this process drives.
DeviceChoice device_of_thread(const DeviceChoice& device, int rank);

/// What kernels are chosen by on the device; on the CPU, on the one that it stands for.
cuda::Target target_of(const DeviceChoice& device);
/// Operations on the chosen device, which has no refusals. Without `with_cublas_lt` all products of
/// matrices are computed by this program's kernels.
std::unique_ptr<Ops> open_ops(const DeviceChoice& device, int num_threads,
                              const std::string& cache_dir, bool with_cublas_lt = true);

/// Makes screenings on the chosen CUDA device, which share memory, kernels and a stream of their
/// own. The device is opened for the first one.
std::function<std::unique_ptr<RowScreen>()> screens_on(const DeviceChoice& device,
                                                       const std::string& cache_dir);

/// Timing on a CUDA device; `ops` is what open_ops() gave for it.
std::unique_ptr<TimingTools> cuda_timing_tools(Ops& ops);

}  // namespace attnbench
