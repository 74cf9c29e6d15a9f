// Limits and flags of a CUDA device belong to the process, and the process to all backends: what
// one of them sets would be part of the times of the others. Kept from before a pipeline is
// prepared until it is gone.
#pragma once

#include <string>
#include <vector>

#include "gpu/runtime.h"
#include "ops/ops.h"

namespace attnbench {

/// `ops` must outlive it. Nothing on the CPU.
class KeptSettings {
 public:
  explicit KeptSettings(Ops& ops);
  /// Sets everything back.
  ~KeptSettings();
  KeptSettings(const KeptSettings&) = delete;
  KeptSettings& operator=(const KeptSettings&) = delete;

  /// After prepare(): sets back what decides how memory is cached and how the host waits, and names
  /// every change ("persisting L2 bytes from 0 to 1048576"). Sizes of stack, heap and printf
  /// buffer, which a kernel may need, stay until the end. Empty where nothing changed.
  std::string changes();

 private:
  Runtime* runtime_ = nullptr;  // null on the CPU
  std::vector<DeviceSetting> before_;
};

}  // namespace attnbench
