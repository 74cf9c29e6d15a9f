// Faults planted in a backend on purpose, to show what the tool makes of a kernel that hangs,
// crashes or writes where it must not.
#pragma once

#include "backends/forwarding_backend.h"
#include "ops/cuda/planted_fault.h"

namespace attnbench {

/// `backend` with one step more, "planted fault", behind its last one. On a CUDA device a kernel
/// does it; on the CPU the thread hangs or dies. `backend` must outlive it.
class FaultyBackend final : public ForwardingBackend {
 public:
  FaultyBackend(const Backend& backend, cuda::Fault fault)
      : ForwardingBackend(backend), fault_(fault) {}
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override;

 private:
  cuda::Fault fault_;
};

}  // namespace attnbench
