// NVRTC, found when the program runs.
#pragma once

#include <memory>
#include <string>

#include "jit/compiler.h"

namespace attnbench {

struct CompilerChoice {
  std::unique_ptr<Compiler> compiler;  // or null
  std::string missing;                 // "NVRTC not found" when null
};

CompilerChoice find_nvrtc();

// What ptxas -v says about a kernel.

/// Sets registers, spill_bytes, stack_bytes and shared_bytes of `kernel` from the lines about its
/// lowered_name. Errors: kCuda when the log has none.
void read_ptxas_report(const std::string& log, CompiledKernel& kernel);

}  // namespace attnbench
