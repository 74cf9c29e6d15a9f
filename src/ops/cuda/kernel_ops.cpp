#include "ops/cuda/kernel_ops.h"

#include "ops/cuda/operations.h"

namespace attnbench::cuda {

int KernelOps::num_sms() const { return launcher().target().num_sms; }
void KernelOps::force_kernel(std::string_view name) { launcher().force_kernel(name); }

#define ATTNBENCH_OPERATION(name, parameters, arguments) \
  void KernelOps::name parameters { cuda::name(launcher(), ATTNBENCH_LIST arguments); }
#include "ops/operations.def"

}  // namespace attnbench::cuda
