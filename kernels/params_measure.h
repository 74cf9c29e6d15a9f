// Arguments of the kernels that measure the ceilings of a device.
#pragma once

#include "kernels/params.h"

namespace attn {

struct ReadParams {
  const void* data;  // [num_vectors] of 16 bytes
  i64 num_vectors;
  unsigned int* sink;  // [1]; never written for the data that is measured
};

}  // namespace attn
