#include "ops/cuda/kernel_ops.h"

#include "ops/cuda/operations.h"

namespace attnbench::cuda {

#define ATTNBENCH_OPERATION(name, parameters, arguments) \
  void KernelOps::name parameters { cuda::name(launcher(), ATTNBENCH_LIST arguments); }
#include "ops/operations.def"

}  // namespace attnbench::cuda
