// How an operation reaches the device: a kernel spec, a launch shape and the kernel's arguments.
// Launchers of operations know nothing else about CUDA, so their choices are tested without a GPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/assumed_device.h"
#include "gpu/launch_shape.h"
#include "gpu/tensor_map.h"
#include "jit/kernel_spec.h"

namespace attnbench::cuda {

struct AttendCall;

/// What a spec may be chosen by, beside the arguments of the operation. Contents of device memory
/// are never looked at.
struct Target {
  int sm = kAssumedSm;            // 10 * major + minor
  int num_sms = kAssumedNumSms;   // multiprocessors
  int max_shared_bytes = 232448;  // of one CTA, dynamic, opted in
};

/// Facts of a compute capability where there is no device ("attnbench compile").
Target target_of_sm(int sm);

/// A parameter of a kernel: its bytes as they are, or a tensor map, of which the kernel gets the
/// encoded form.
struct KernelArgument {
  const void* bytes = nullptr;
  const TensorMap* map = nullptr;  // instead of `bytes`
};
template <typename T>
KernelArgument argument_of(const T& parameter) {
  return {&parameter, nullptr};
}
inline KernelArgument argument_of(const TensorMap& map) { return {nullptr, &map}; }

class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual const Target& target() const = 0;
  /// Queues one launch. `arguments` are the kernel's parameters, in their order; they are copied. A
  /// shape with an extent of 0 launches nothing. Errors: E-CUDA, naming kernel and spec; E-INTERNAL
  /// for clusters and tensor maps that no device could take.
  virtual void launch(const KernelSpec& spec, const LaunchShape& shape,
                      const std::vector<KernelArgument>& arguments) = 0;

  /// Name of the candidate (attention/candidates.h) that every attention operation takes from now
  /// on; empty = the first that fits, as at the start.
  void force_kernel(std::string_view name) { forced_kernel_ = name; }
  const std::string& forced_kernel() const { return forced_kernel_; }
  /// Hears of every attention operation before its kernel is chosen.
  virtual void note_attend(const AttendCall& call) { static_cast<void>(call); }

 private:
  std::string forced_kernel_;
};

/// The same with the parameters themselves: their types must be those of the kernel, a TensorMap
/// where that has an attn::TensorMap.
template <typename... Arguments>
void launch(Launcher& launcher, const KernelSpec& spec, const LaunchShape& shape,
            const Arguments&... arguments) {
  launcher.launch(spec, shape, {argument_of(arguments)...});
}

/// Whether a device of the target could take the launch, as far as that is known without one.
/// Errors: E-INTERNAL, naming the kernel.
void check_launch(const Target& target, const KernelSpec& spec, const LaunchShape& shape,
                  const std::vector<KernelArgument>& arguments);

}  // namespace attnbench::cuda
