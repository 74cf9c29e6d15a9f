// Two kernels in a row, the second of which is made ready while the first still runs (programmatic
// dependent launch, sm_90 and newer; elsewhere they follow one another anyway).
#pragma once

namespace attn {

/// In the first: from here on the second's CTAs may take places that are free.
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// In the second, whose launch overlaps: what the first has written is there afterwards.
__device__ __forceinline__ void await_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace attn
