// A pass over device memory that reads all of it and writes nothing: the rate of it is a ceiling
// (cuda_ceilings.h), and what it leaves in the second-level cache need not be written back
// (cuda_measure.h).
//
// Why a kernel and no copy of the driver's: what copies writes as much as it reads.
#pragma once

#include <cstddef>

#include "gpu/runtime.h"
#include "gpu/stream.h"
#include "jit/kernel_spec.h"
#include "jit/kernel_store.h"
#include "jit/loaded_kernel.h"

namespace attnbench {

/// The kernel on one stream; how often it reads and which memory is the caller's choice.
class MemoryReader {
 public:
  /// What memory that it reads is filled with: has no bit in common with what the kernel looks for,
  /// so that it writes nothing.
  static constexpr unsigned char kByte = 0x2A;

  /// `streaming`: by loads that the first-level cache keeps nothing of. All of them must outlive
  /// it. Errors: those of the compiler, and kCuda.
  MemoryReader(Runtime& runtime, const Stream& stream, KernelStore& kernels, bool streaming);
  static KernelSpec spec(bool streaming);

  /// Queues a pass over `data`, whose bytes are kByte, by all multiprocessors. Reads whole 16
  /// bytes; what is left of `size_bytes` is not read.
  void read(void* data, std::size_t size_bytes);

 private:
  const Stream& stream_;
  LoadedKernel kernel_;
  LaunchShape shape_;
};

}  // namespace attnbench
