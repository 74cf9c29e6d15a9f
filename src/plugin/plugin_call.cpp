#include "plugin/plugin_call.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <utility>

namespace attnbench {
namespace {

/// Both buffers, ours and that of C: what is still in them belongs to where stdout went before.
void flush_stdout() {
  std::cout.flush();
  std::fflush(stdout);
}

}  // namespace

PluginFloats current_floats() {
  auto floats = std::make_shared<std::fenv_t>();
  std::fegetenv(floats.get());
  return floats;
}

PluginCall::PluginCall(PluginFloats floats, bool on_cuda)
    : plugin_(std::move(floats)), device_(on_cuda) {
  std::fegetenv(&own_);
  std::fesetenv(plugin_.get());
}

// The plugin keeps what it changed of its floating-point environment (rounding, flush to zero), as
// it would in a process of its own, while ours is back before anything of ours computes.
PluginCall::~PluginCall() {
  std::fegetenv(plugin_.get());
  std::fesetenv(&own_);
}

void send_stdout_to_stderr() {
  flush_stdout();
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
}

StdoutToStderr::StdoutToStderr() : stdout_(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)) {
  // Why not always: without a stdout, or a descriptor for it, it could not be given back.
  if (stdout_ >= 0) send_stdout_to_stderr();
}

StdoutToStderr::~StdoutToStderr() {
  if (stdout_ < 0) return;
  flush_stdout();
  ::dup2(stdout_, STDOUT_FILENO);
  ::close(stdout_);
}

}  // namespace attnbench
