// The operations of Ops as kernel launches, whatever takes the launches and holds the memory: the
// common base of CudaOps, which launches on a device, and of the Ops that only records.
//
// A derived class gives the launcher and implements what Ops says of memory, streams and waiting.
// The functions of ops/cuda/operations.h do the rest: they choose kernels by the launcher's target
// and hand them to the launcher. A derived class that has another way for one operation overrides
// it, as CudaOps does for matmul, and may fall back on KernelOps for what it cannot take.
#pragma once

#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/launcher.h"
#include "ops/cuda/matmul/few_rows.h"
#include "ops/cuda/operations.h"
#include "ops/ops.h"

namespace attnbench::cuda {

/// What a kernel does not do yet throws an Error of kind kUnsupported that says so.
class KernelOps : public Ops {
 public:
  int num_sms() const override { return launcher().target().num_sms; }
  int sm() const override { return launcher().target().sm; }
  void force_kernel(std::string_view name) override { launcher().force_kernel(name); }
  TileUse tile_use(const attn::AttendParams& params) const override {
    return cuda::tile_use(launcher().target(), params, launcher().forced_kernel());
  }
  TileUse beside_use(const attn::AttendParams& params) const override {
    return cuda::beside_use(params, launcher().forced_kernel());
  }
  WideUse wide_use(const attn::AttendParams& params) const override {
    return cuda::wide_use(launcher().target(), params, launcher().forced_kernel());
  }
  ApartUse apart_use(const attn::AttendParams& params) const override {
    return cuda::apart_use(launcher().target(), params, launcher().forced_kernel());
  }
  bool takes_rope_apart(const attn::AttendParams& params) const override {
    return cuda::takes_rope_apart(launcher().target(), params, launcher().forced_kernel());
  }
  bool fuses(const attn::LatentQueryParams& params) const override {
    return latent_query_misfit(launcher().target(), params).empty();
  }
  bool fuses(const attn::ValueOutputParams& params) const override {
    return value_output_misfit(launcher().target(), params).empty();
  }
#define ATTNBENCH_OPERATION(name, parameters, arguments) \
  void name parameters override { cuda::name(launcher(), ATTNBENCH_LIST arguments); }
#include "ops/operations.def"

 protected:
  /// One for the life of the object.
  virtual Launcher& launcher() = 0;
  const Launcher& launcher() const { return const_cast<KernelOps*>(this)->launcher(); }
};

}  // namespace attnbench::cuda
