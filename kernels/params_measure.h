// Arguments of the kernels that measure the device and the referee, not attention: the reads behind
// the bandwidth ceiling, and the faults planted to test that one broken kernel costs one case.
#pragma once

#include "kernels/params.h"

namespace attn {

struct ReadParams {
  const void* data;  // [num_vectors] of 16 bytes
  i64 num_vectors;
  unsigned int* sink;  // [1]; never written for the data that is measured
};

struct PlantedFaultParams {
  unsigned int* target;  // [1]; where a planted write goes, or what a planted hang waits for
};

}  // namespace attn
