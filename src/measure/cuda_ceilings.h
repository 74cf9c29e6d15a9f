// What a CUDA device can do at best, measured: the roofline of every result.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "gpu/cublas_lt.h"
#include "gpu/runtime.h"
#include "gpu/stream.h"
#include "jit/kernel_spec.h"
#include "jit/kernel_store.h"

namespace attnbench {

/// 1e9 bytes/s and 1e12 operations/s; 0 = could not be measured, see `missing`. Bytes of a copy are
/// those read and those written.
struct CudaCeilings {
  double copy_gbps = 0;
  double read_gbps = 0;
  double streaming_read_gbps = 0;  // 16-byte loads that bypass the first-level cache
  double fp32_tflops = 0;          // products of float32 that are not rounded to tf32
  double bf16_tflops = 0;
  double fp16_tflops = 0;
  double fp8_tflops = 0;
  double int8_tops = 0;
  std::vector<std::string> missing;  // e.g. "fp8: cuBLASLt has no algorithm for this product"

  /// The best of the three: no kernel moves bytes faster.
  double memory_gbps() const;
};
/// The larger of each; `missing` of both.
CudaCeilings best_of(const CudaCeilings& a, const CudaCeilings& b);

/// Which rates are measured; the others stay 0. Each type takes a tenth to half of a second.
struct WantedCeilings {
  bool memory = true;
  std::set<MatrixType> products = {MatrixType::kF32, MatrixType::kBF16, MatrixType::kF16,
                                   MatrixType::kE4M3, MatrixType::kI8};
};

/// Takes some seconds and, for the time, up to 4.5 GiB. Memory rates over buffers far
/// larger than the second-level cache; matrix rates are of 8192^3 products on random data by
/// cuBLASLt after a warm-up, medians of products with a rest before each, at the clock of a device
/// that is not held back by its power limit. Errors: kCuda, kCapacity.
CudaCeilings measure_cuda_ceilings(Runtime& runtime, const Stream& stream, KernelStore& kernels,
                                   const WantedCeilings& wanted = {});
/// The kernels that this takes, to be compiled ahead.
std::vector<KernelSpec> ceiling_specs();

/// A device and, once measured, its ceilings.
struct CudaDevice {
  DeviceInfo info;
  CudaCeilings ceilings;
};

/// All of this machine, not measured. When there are none, `missing` says why.
std::vector<CudaDevice> list_cuda_devices(std::string& missing);
/// Opens the device and sets `ceilings`; `cache_dir` empty = the default kernel cache. Errors as
/// above.
void measure_ceilings(CudaDevice& device, const std::string& cache_dir);

}  // namespace attnbench
