// Makes the pure device functions of kernels/common compile with g++ too, where they are tested.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define ATTN_FN __host__ __device__ __forceinline__
#else
#define ATTN_FN inline
#endif
