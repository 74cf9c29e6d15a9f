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

}  // namespace attnbench
