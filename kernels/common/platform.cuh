// What every device file may rely on, whoever compiles it: NVRTC for a GPU, where no standard
// header exists, or g++ for the tests and the CPU operations, where no CUDA header does.
#pragma once

/// Marks a pure function that device and host share. It uses neither threadIdx nor inline PTX and
/// must give the same bits on both sides, so that what tests show on the host holds on the device.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define ATTN_FN __host__ __device__ __forceinline__
#else
#define ATTN_FN inline
#endif

namespace attn {

/// Choose<condition, First, Second>: std::conditional_t. NVRTC has no <type_traits>, and including
/// <cuda/std/type_traits> would cost more compile time than a whole kernel does.
template <bool kFirst, class First, class Second>
struct Choice {
  using Type = First;
};
template <class First, class Second>
struct Choice<false, First, Second> {
  using Type = Second;
};
template <bool kFirst, class First, class Second>
using Choose = typename Choice<kFirst, First, Second>::Type;

}  // namespace attn
