// The operations of Ops as kernel launches, whatever takes the launches and holds the memory.
#pragma once

#include "ops/cuda/launcher.h"
#include "ops/ops.h"

namespace attnbench::cuda {

/// What a kernel does not do yet throws an Error of kind kUnsupported that says so.
class KernelOps : public Ops {
 public:
  int num_sms() const override;
  void force_kernel(std::string_view name) override;
#define ATTNBENCH_OPERATION(name, parameters, arguments) void name parameters override;
#include "ops/operations.def"

 protected:
  virtual Launcher& launcher() = 0;
  const Launcher& launcher() const { return const_cast<KernelOps*>(this)->launcher(); }
};

}  // namespace attnbench::cuda
