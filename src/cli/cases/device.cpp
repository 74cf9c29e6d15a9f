#include "cli/cases/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bench/judge/device_screen.h"
#include "core/error.h"
#include "core/parsing.h"
#include "gpu/device_probe.h"
#include "gpu/nccl.h"
#include "jit/nvrtc_compiler.h"
#include "ops/cuda/cuda_ops.h"

namespace attnbench {
namespace {

/// Compute capabilities that exist or are announced lie well inside.
constexpr int kMinSm = 50;
constexpr int kMaxSm = 129;

/// 90 of "90", "9.0", "sm_90" and "sm_90a".
int parse_sm(const std::string& text) {
  const Pattern::Groups match = Pattern("(?:sm_)?(\\d{1,2})\\.?(\\d)[af]?").match(text);
  if (!match.empty()) {
    const int sm = 10 * std::stoi(match[1]) + std::stoi(match[2]);
    if (sm >= kMinSm && sm <= kMaxSm) return sm;
  }
  fail(ErrorKind::kUsage,
       "--assume-sm: expected a compute capability from 5.0 to 12.9, e.g. 90 or 9.0, found '{}'",
       text);
}

/// The oldest GPUs that kernels are compiled for: they use mma.sync of 16-bit types and cp.async.
constexpr int kLeastSm = 80;

std::string capability(int sm) { return fmt::format("{}.{}", sm / 10, sm % 10); }

/// Why the device cannot run kernels.
std::vector<std::string> refusals_of_device(const DeviceInfo& info) {
  std::vector<std::string> reasons;
  if (info.sm < kLeastSm) {
    reasons.push_back(fmt::format("CUDA kernels need compute capability {} or newer, {} has {}",
                                  capability(kLeastSm), info.name, capability(info.sm)));
  }
  if (const CompilerChoice nvrtc = find_nvrtc(); !nvrtc.compiler) reasons.push_back(nvrtc.missing);
  return reasons;
}

/// Fills in device `index`, or why there is none.
void take_cuda_device(std::size_t index, const DeviceList& list, DeviceChoice& choice) {
  choice.name = fmt::format("cuda:{}", index);
  if (index >= list.devices.size()) {
    choice.refusals = {list.devices.empty() ? list.missing
                                            : fmt::format("no CUDA device {}: there are {}", index,
                                                          list.devices.size())};
    return;
  }
  const DeviceInfo& info = list.devices[index];
  choice.info = info;
  choice.facts = {info.sm, info.num_sms, true};
  choice.refusals = refusals_of_device(info);
}

/// Devices `first` to `last`, one for each rank.
void take_cuda_devices(std::size_t first, std::size_t last, const DeviceList& list,
                       DeviceChoice& choice) {
  for (std::size_t index = first; index <= last; ++index) {
    take_cuda_device(index, list, choice);
    if (index >= list.devices.size()) break;
    choice.of_ranks.push_back(*choice.info);
  }
  choice.name = fmt::format("cuda:{}-{}", first, last);
  choice.is_range = true;
  if (choice.of_ranks.size() <= last - first) return;  // refused
  choice.info = choice.of_ranks.front();
  for (const DeviceInfo& info : choice.of_ranks) {
    if (info.sm == choice.info->sm && info.num_sms == choice.info->num_sms) continue;
    choice.refusals = {
        fmt::format("--device {}: ranks need devices of one kind, {} is cuda:{} and {} is cuda:{}",
                    choice.name, choice.info->name, first, info.name, info.index)};
    return;
  }
}

}  // namespace

DeviceChoice choose_device(const std::string& device, const std::string& assume_sm,
                           const std::function<DeviceList()>& list,
                           std::optional<int> assume_num_sms) {
  DeviceChoice choice;
  if (!assume_sm.empty()) choice.facts.sm = parse_sm(assume_sm);
  if (assume_num_sms) choice.facts.num_sms = *assume_num_sms;
  if (device == "cpu") return choice;
  if (device == "auto") {
    const DeviceList devices = list();
    if (!devices.devices.empty()) take_cuda_device(0, devices, choice);
    return choice;
  }
  const Pattern::Groups match = Pattern("cuda(?::(\\d{1,3})(?:-(\\d{1,3}))?)?").match(device);
  if (match.empty()) {
    fail(ErrorKind::kUsage, "--device: expected auto, cpu, cuda[:N] or cuda:N-M, found '{}'",
         device);
  }
  const auto index = match[1].empty() ? 0 : static_cast<std::size_t>(std::stoi(match[1]));
  const auto last = match[2].empty() ? index : static_cast<std::size_t>(std::stoi(match[2]));
  if (last < index) {
    fail(ErrorKind::kUsage, "--device: expected cuda:N-M with N at most M, found '{}'", device);
  }
  if (last > index) {
    take_cuda_devices(index, last, list(), choice);
  } else {
    take_cuda_device(index, list(), choice);
  }
  return choice;
}

DeviceChoice choose_device(const std::string& device, const std::string& assume_sm,
                           std::optional<int> assume_num_sms) {
  return choose_device(device, assume_sm, probe_devices, assume_num_sms);
}

DeviceChoice choose_device(const SelectionOptions& selection) {
  DeviceChoice choice =
      choose_device(selection.device, selection.assume_sm, selection.assume_num_sms);
  RealRanks& nccl = choice.facts.nccl;
  nccl.missing = NcclLibrary::missing_on_this_machine();
  if (!nccl.missing.empty()) return choice;
  if (!choice.is_cuda()) nccl.missing = "its ranks are on GPUs, and the device is cpu";
  nccl.count = std::max(1, static_cast<int>(choice.of_ranks.size()));
  return choice;
}

DeviceChoice device_of_thread(const DeviceChoice& device, int rank) {
  DeviceChoice own = device;
  own.info = device.of_ranks.at(static_cast<std::size_t>(rank));
  own.of_ranks.clear();
  own.is_range = false;
  own.name = fmt::format("cuda:{}", own.info->index);
  return own;
}

std::string device_of_rank(int local_rank, const std::function<DeviceList()>& list) {
  if (local_rank == 0 || list().devices.size() == 1) return "cuda:0";
  return fmt::format("cuda:{}", local_rank);
}

std::string device_of_rank(int local_rank) { return device_of_rank(local_rank, probe_devices); }

cuda::Target target_of(const DeviceChoice& device) {
  cuda::Target target = cuda::target_of_sm(device.facts.sm);
  target.num_sms = device.facts.num_sms;
  if (device.info) target.max_shared_bytes = device.info->max_shared_bytes;
  return target;
}

std::unique_ptr<Ops> open_ops(const DeviceChoice& device, int num_threads,
                              const std::string& cache_dir, bool with_cublas_lt) {
  if (!device.is_cuda()) return make_cpu_ops(num_threads, device.facts.num_sms, device.facts.sm);
  return make_cuda_ops(device.info->index, cache_dir, with_cublas_lt);
}

std::function<std::unique_ptr<RowScreen>()> screens_on(const DeviceChoice& device,
                                                       const std::string& cache_dir) {
  // Why a pointer to a pointer: the function is copied, and all of its copies share them.
  return [device, cache_dir, ops = std::make_shared<std::shared_ptr<Ops>>()] {
    if (!*ops) *ops = open_ops(device, 0, cache_dir, /*with_cublas_lt=*/false);
    return make_device_screen(*ops);
  };
}

std::unique_ptr<TimingTools> cuda_timing_tools(Ops& ops) {
  return make_cuda_timing_tools(static_cast<CudaOps&>(ops));
}

}  // namespace attnbench
