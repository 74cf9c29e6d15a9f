// Two kernels in a row, the second of which is made ready while the first still runs (programmatic
// dependent launch, sm_90 and newer; elsewhere they follow one another anyway). Without it a kernel
// starts only when the last CTA of the one before it has ended and its writes are flushed, which
// costs a microsecond or two between the parts of split-KV decoding and their combination.
//
// Who may use it: both kernels are in the same stream, and the second is launched with the
// attribute that lets it start early (LaunchShape::overlaps_previous on the host). Leaving out the
// first call only makes the second kernel start later. Leaving out the second call in a kernel that
// was launched early is an error: it reads partial results that are not written yet. So the first
// call is for kernels in front of our own. Kernels of others are launched early without waiting,
// too: FlashMLA's dense decode (since its commit 082094b) is right only behind kernels that do not
// make the first call.
#pragma once

namespace attn {

/// In the first: once all of its CTAs have called this or ended, the second's CTAs may take places
/// that are free. It says nothing about memory, so it may stand at the very start of a kernel, and
/// since every CTA must have come here, none still waits for a place that the second could take.
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// In the second, whose launch overlaps: returns when the first kernel has ended and all of its
/// writes can be seen. Nothing that the first kernel writes may be read before it, and nothing may
/// be written that the first still reads. A kernel that was launched without overlap passes at
/// once.
__device__ __forceinline__ void await_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace attn
