// What ptxas -v says about a kernel.
#pragma once

#include <string>

#include "jit/compiler.h"

namespace attnbench {

/// Sets registers, spill_bytes, stack_bytes and shared_bytes of `kernel` from the lines about its
/// lowered_name. Errors: kCuda when the log has none.
void read_ptxas_report(const std::string& log, CompiledKernel& kernel);

}  // namespace attnbench
