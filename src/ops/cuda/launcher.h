// How an operation reaches the device: a kernel spec, a launch shape and the kernel's arguments.
// Launchers of operations know nothing else about CUDA, so their choices are tested without a GPU.
#pragma once

#include <vector>

#include "gpu/launch_shape.h"
#include "jit/kernel_spec.h"

namespace attnbench::cuda {

/// What a spec may be chosen by, beside the arguments of the operation. Contents of device memory
/// are never looked at.
struct Target {
  int sm = 90;                    // 10 * major + minor
  int num_sms = 132;              // multiprocessors
  int max_shared_bytes = 232448;  // of one CTA, dynamic, opted in
};

/// Facts of a compute capability when there is no device to ask ("attnbench compile").
Target target_of_sm(int sm);

class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual const Target& target() const = 0;
  /// Queues one launch. `arguments` points to the kernel's parameters, in their order; they are
  /// copied. A shape with an extent of 0 launches nothing. Errors: E-CUDA, naming kernel and spec.
  virtual void launch(const KernelSpec& spec, const LaunchShape& shape,
                      const std::vector<const void*>& arguments) = 0;
};

/// The same with the parameter structs themselves: their types must be those of the kernel.
template <typename... Arguments>
void launch(Launcher& launcher, const KernelSpec& spec, const LaunchShape& shape,
            const Arguments&... arguments) {
  launcher.launch(spec, shape, {static_cast<const void*>(&arguments)...});
}

}  // namespace attnbench::cuda
