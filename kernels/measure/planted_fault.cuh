// Kernels that do wrong on purpose, to show that a fault of a kernel costs one case and is named.
#pragma once

#include "kernels/params_measure.h"

namespace attn {

/// Writes where the caller says, which is outside of every buffer, or no memory at all.
template <class Config>
__global__ void planted_write(const PlantedFaultParams params) {
  *params.target = Config::kValue;
}

/// Waits for a word that nobody writes. Config: unsigned kValue, what the word must become.
template <class Config>
__global__ void planted_hang(const PlantedFaultParams params) {
  // Why volatile: a loop that neither reads nor writes may be taken out by the compiler.
  const volatile unsigned int* word = params.target;
  while (*word != Config::kValue) {
  }
}

}  // namespace attn
