// Kernels that do wrong on purpose, to show that a fault of a kernel costs one case and is named.
// When the program is told to plant a fault, it launches one of them behind the last step of a
// case; tests of the real binary then check that the other cases still have results.
#pragma once

#include "kernels/params_measure.h"

namespace attn {

/// Writes one word where the caller says: past the end of a buffer, where the guard zone must
/// notice it, or where no memory is mapped, which ends the CUDA context. Config: unsigned kValue.
/// Grid: 1.
template <class Config>
__global__ void planted_write(const PlantedFaultParams params) {
  *params.target = Config::kValue;
}

/// Waits for a word that nobody writes, so that only the time limit of a case ends it. Config:
/// unsigned kValue, what the word must become. Grid: 1.
template <class Config>
__global__ void planted_hang(const PlantedFaultParams params) {
  // Why volatile: a loop that neither reads nor writes may be taken out by the compiler.
  const volatile unsigned int* word = params.target;
  while (*word != Config::kValue) {
  }
}

}  // namespace attn
