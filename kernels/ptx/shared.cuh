// Addresses of shared memory as instructions take them.
#pragma once

#include "kernels/common/numeric.cuh"

namespace attn {

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

}  // namespace attn
