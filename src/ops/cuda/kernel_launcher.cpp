// Order of a launch: what any device would refuse (check_launch), the kernel itself, what this
// device and this kernel refuse together (check_shape), permission for shared memory, parameters,
// launch.
#include "ops/cuda/kernel_launcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "jit/kernel_spec.h"

namespace attnbench::cuda {
namespace {

/// The choices of a spec in one line: "attn::merge {kHeadSize = 128, kElement = ...}".
std::string describe(const KernelSpec& spec) {
  std::string text;
  for (const auto& [name, value] : spec.constants) {
    const std::size_t word = name.rfind(' ');
    const std::string last = word == std::string::npos ? name : name.substr(word + 1);
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", last, value);
  }
  return fmt::format("kernel '{}' ({} {{{}}})", spec.name, spec.function, text);
}

/// Whether it was not there.
template <typename T>
bool add_once(std::vector<T>& list, const T& value) {
  if (std::find(list.begin(), list.end(), value) != list.end()) return false;
  list.push_back(value);
  return true;
}

}  // namespace

Target target_of_sm(int sm) {
  Target target;
  target.sm = sm;
  // Why: the programming guide's figures per compute capability; 8.6, 8.9 and 12.x have less.
  if (sm == 80 || sm == 87) target.max_shared_bytes = 163 * 1024;
  if (sm == 86 || sm == 89 || sm >= 120) target.max_shared_bytes = 99 * 1024;
  if (sm == 80) target.num_sms = 108;
  return target;
}

void check_launch(const Target& target, const KernelSpec& spec, const LaunchShape& shape,
                  const std::vector<KernelArgument>& arguments) {
  if (const std::string reason = cluster_misfit(shape, target.sm); !reason.empty()) {
    fail(ErrorKind::kInternal, "kernel '{}': {}", spec.name, reason);
  }
  for (const KernelArgument& argument : arguments) {
    if (argument.map == nullptr) continue;
    if (const std::string reason = tensor_map_misfit(*argument.map); !reason.empty()) {
      fail(ErrorKind::kInternal, "kernel '{}': tensor map: {}", spec.name, reason);
    }
  }
}

KernelLauncher::KernelLauncher(Runtime& runtime, const Stream& stream, KernelStore& store)
    : runtime_(runtime), stream_(stream), store_(store), arch_(arch_of_sm(runtime.device().sm)) {
  const DeviceInfo& device = runtime.device();
  target_ = {device.sm, device.num_sms, device.max_shared_bytes};
}

KernelLauncher::~KernelLauncher() {
  for (auto& [key, loaded] : loaded_) {
    if (loaded.library != nullptr) runtime_.release_library(loaded.library);
  }
}

void KernelLauncher::launch(const KernelSpec& spec, const LaunchShape& shape,
                            const std::vector<KernelArgument>& arguments) {
  if (shape.num_ctas() == 0) return;
  check_launch(target_, spec, shape, arguments);
  Loaded& loaded = find_or_load(spec);
  check_shape(spec, shape, loaded);
  try {
    if (shape.shared_bytes > loaded.allowed_shared_bytes) {
      runtime_.allow_shared_memory(loaded.kernel, shape.shared_bytes);
      loaded.allowed_shared_bytes = shape.shared_bytes;
    }
    // Why a limit: buffers that come and go give maps of other addresses without end.
    constexpr std::size_t kMostMaps = 1024;
    if (encoded_maps_.size() > kMostMaps) encoded_maps_.clear();
    std::vector<const void*> parameters;
    for (const KernelArgument& argument : arguments) {
      parameters.push_back(argument.map != nullptr ? encoded(*argument.map).bytes.data()
                                                   : argument.bytes);
    }
    runtime_.launch(loaded.kernel, shape, parameters.data(), stream_.handle());
  } catch (const DeviceError& error) {
    std::string text = fmt::format(
        "{}: {}; grid {} x {} x {}, {} threads, {} bytes of shared memory", describe(spec),
        error.what(), shape.grid_x, shape.grid_y, shape.grid_z, shape.threads, shape.shared_bytes);
    if (shape.has_clusters()) {
      text += fmt::format(", clusters of {} x {} x {}", shape.cluster_x, shape.cluster_y,
                          shape.cluster_z);
    }
    throw DeviceError(text, error.is_sticky());
  }
  note_launch(loaded);
}

/// Why kept: encoding takes about as long as a launch, and the same map comes again at every run.
const EncodedTensorMap& KernelLauncher::encoded(const TensorMap& map) {
  const auto known = encoded_maps_.find(map);
  if (known != encoded_maps_.end()) return known->second;
  return encoded_maps_.emplace(map, encode_tensor_map(runtime_, map)).first->second;
}

void KernelLauncher::note_launch(const Loaded& loaded) {
  add_once(launched_, &loaded);
  add_once(unchecked_, &loaded);
}

void KernelLauncher::note_library_launch(const KernelInfo& info) {
  auto known = loaded_.find(info.name);
  if (known == loaded_.end()) {
    Loaded loaded;
    loaded.info = info;
    loaded.description = info.name;
    known = loaded_.emplace(info.name, std::move(loaded)).first;
  }
  note_launch(known->second);
}

/// By source, function and constants: two names of one spec are one kernel.
KernelLauncher::Loaded& KernelLauncher::find_or_load(const KernelSpec& spec) {
  std::string key = spec.source + "\n" + spec.function;
  for (const auto& [name, value] : spec.constants) key += "\n" + name + "=" + value;
  const auto known = loaded_.find(key);
  if (known != loaded_.end()) return known->second;
  const StoredKernel& stored = store_.get(spec, arch_);
  Loaded loaded;
  try {
    loaded.library = runtime_.load_library(stored.compiled.cubin);
    loaded.kernel = runtime_.find_kernel(loaded.library, stored.compiled.lowered_name);
  } catch (const DeviceError& error) {
    if (loaded.library != nullptr) runtime_.release_library(loaded.library);
    throw DeviceError(fmt::format("{}: {}", describe(spec), error.what()), error.is_sticky());
  }
  loaded.info = {spec.name, stored.compiled.registers, stored.compiled.spill_bytes,
                 stored.compiled.shared_bytes, stored.cubin_hash};
  loaded.description = describe(spec);
  loaded.static_shared_bytes = stored.compiled.shared_bytes;
  return loaded_.emplace(std::move(key), std::move(loaded)).first->second;
}

void KernelLauncher::check_shape(const KernelSpec& spec, const LaunchShape& shape,
                                 const Loaded& loaded) const {
  constexpr std::int64_t kMostX = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t kMostYZ = 65535;
  if (shape.grid_x > kMostX || shape.grid_y > kMostYZ || shape.grid_z > kMostYZ) {
    fail(ErrorKind::kCapacity, "{}: a grid of {} x {} x {} CTAs is too large", describe(spec),
         shape.grid_x, shape.grid_y, shape.grid_z);
  }
  if (shape.shared_bytes + loaded.static_shared_bytes > target_.max_shared_bytes) {
    fail(ErrorKind::kCapacity, "{}: {} bytes of shared memory are needed, the device has {}",
         describe(spec), shape.shared_bytes + loaded.static_shared_bytes, target_.max_shared_bytes);
  }
}

std::vector<KernelInfo> KernelLauncher::take_kernels() {
  std::vector<KernelInfo> kernels;
  for (const Loaded* loaded : launched_) kernels.push_back(loaded->info);
  launched_.clear();
  return kernels;
}

bool KernelLauncher::note_foreign(const std::string& name) { return add_once(foreign_, name); }

std::string KernelLauncher::unchecked() const {
  std::vector<std::string> names;
  for (const Loaded* loaded : unchecked_) names.push_back(loaded->description);
  names.insert(names.end(), foreign_.begin(), foreign_.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string KernelLauncher::take_unchecked() {
  std::string kernels = unchecked();
  unchecked_.clear();
  foreign_.clear();
  return kernels;
}

}  // namespace attnbench::cuda
