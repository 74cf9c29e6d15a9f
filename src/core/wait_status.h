// How a process ended, in words.
#pragma once

#include <string>

namespace attnbench {

/// Of a status that waitpid() gave: "exit status 3", "signal 11 (Segmentation fault)".
std::string describe_wait_status(int status);

}  // namespace attnbench
