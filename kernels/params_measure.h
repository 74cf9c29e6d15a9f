// Arguments of the kernels that measure the device and the referee, not attention: the reads behind
// the bandwidth ceiling, and the faults planted to test that one broken kernel costs one case.
#pragma once

#include "kernels/params.h"

namespace attn {

/// A pass over `data` that combines all of its words, so that the compiler cannot drop the loads.
struct ReadParams {
  const void* data;  // [num_vectors] of 16 bytes
  i64 num_vectors;
  unsigned int* sink;  // [1]; written only if a word of the data has its highest bit set
};

/// The target is not checked: for an overrun it lies past the end of a buffer, for a crash in a
/// page that no process has.
struct PlantedFaultParams {
  unsigned int* target;  // [1]; where a planted write goes, or what a planted hang waits for
};

}  // namespace attn
