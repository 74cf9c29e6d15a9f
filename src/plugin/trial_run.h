// Code of a plugin that this process has to run itself, tried in a process of its own first.
#pragma once

#include <functional>
#include <string>

namespace attnbench {

/// How a child process that did `work` came to grief: "signal 11 (Segmentation fault)", "exit
/// status 1" (0 where `work` called exit(0)), "no end after 60 s"; empty when it went well. An
/// exception of `work` counts as well: the caller meets it again. Errors: E-INTERNAL when there is
/// no process.
std::string trial_run(const std::function<void()>& work, double limit_s);

}  // namespace attnbench
