// The text that NVRTC compiles for a spec: a named Config and an include of the device file.
#pragma once

#include <string>

#include "jit/kernel_spec.h"

namespace attnbench {

/// Throws kConfig when the spec has no source or function, or a constant without name or value.
std::string program_text(const KernelSpec& spec);

/// What is compiled out of it: "attn::prefill<Config>".
std::string entry_expression(const KernelSpec& spec);

}  // namespace attnbench
