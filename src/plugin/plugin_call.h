// What a call into a plugin must leave as it was: floating-point settings, the current CUDA device,
// and who writes to stdout.
#pragma once

#include <cfenv>
#include <memory>

#include "gpu/runtime.h"

namespace attnbench {

/// Rounding, flush-to-zero and the like that a plugin's code runs with, kept between its calls:
/// what loading it set (gcc links a constructor that flushes subnormals into -ffast-math libraries)
/// is for its own kernels, not for the reference and the other backends.
using PluginFloats = std::shared_ptr<std::fenv_t>;

/// Those of this thread.
PluginFloats current_floats();

/// As long as it lives the thread runs with the plugin's settings; then it has its own again, and
/// with `on_cuda` its own device.
class PluginCall {
 public:
  explicit PluginCall(PluginFloats floats, bool on_cuda = false);
  ~PluginCall();
  PluginCall(const PluginCall&) = delete;
  PluginCall& operator=(const PluginCall&) = delete;

 private:
  PluginFloats plugin_;
  std::fenv_t own_{};
  KeepDevice device_;
};

/// From here on what the process prints goes to stderr: stdout may be a result file.
void send_stdout_to_stderr();

/// The same for as long as it lives.
class StdoutToStderr {
 public:
  StdoutToStderr();
  ~StdoutToStderr();
  StdoutToStderr(const StdoutToStderr&) = delete;
  StdoutToStderr& operator=(const StdoutToStderr&) = delete;

 private:
  int stdout_ = -1;
};

}  // namespace attnbench
