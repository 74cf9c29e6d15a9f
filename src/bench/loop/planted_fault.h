// Faults planted in a backend on purpose, to show what the tool makes of a kernel that hangs,
// crashes or writes where it must not: tests of isolation, time limits and guard zones need one
// that does so reliably. The fault comes as a step behind those of the backend, so that inputs,
// refusals and the pipeline stay the backend's.
#pragma once

#include "backends/forwarding_backend.h"
#include "ops/cuda/planted_fault.h"

namespace attnbench {

/// `backend` with one step more, "planted fault", behind its last one. On a CUDA device a kernel
/// does it; on the CPU the thread hangs or dies. `backend` must outlive it.
class FaultyBackend final : public ForwardingBackend {
 public:
  /// `is_here` false: the step does nothing, as on the ranks beside the one that has the fault.
  FaultyBackend(const Backend& backend, cuda::Fault fault, bool is_here = true)
      : ForwardingBackend(backend), fault_(fault), is_here_(is_here) {}
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override;

 private:
  cuda::Fault fault_;
  bool is_here_;
};

}  // namespace attnbench
