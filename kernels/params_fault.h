// Arguments of the kernels that do wrong on purpose.
#pragma once

#include "kernels/params.h"

namespace attn {

struct PlantedFaultParams {
  unsigned int* target;  // [1]; where a planted write goes, or what a planted hang waits for
};

}  // namespace attn
