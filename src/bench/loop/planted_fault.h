// Faults planted in a backend on purpose, to show what the tool makes of a kernel that hangs,
// crashes or writes where it must not: tests of isolation, time limits and guard zones need one
// that does so reliably. The fault comes as a step behind those of the backend, or at the start of
// one of its phases, so that inputs, refusals and the pipeline stay the backend's.
#pragma once

#include <string>
#include <utility>

#include "backends/forwarding_backend.h"
#include "ops/cuda/planted_fault.h"

namespace attnbench {

/// When a fault comes.
struct FaultPlace {
  /// "" = in a step of its own, "planted fault", behind the last one; else at the start of the step
  /// of this name, or of kPreparing or kReading.
  std::string phase = "";
  /// False: nothing happens, as on the ranks beside the one that has the fault.
  bool is_here = true;
};
inline constexpr const char* kPreparing = "prepare";  // the pipeline
inline constexpr const char* kReading = "read";       // what it left

/// `backend` with a fault. On a CUDA device a kernel does it; on the CPU the thread hangs or dies.
/// `backend` must outlive it.
class FaultyBackend final : public ForwardingBackend {
 public:
  FaultyBackend(const Backend& backend, cuda::Fault fault, FaultPlace place = {})
      : ForwardingBackend(backend), fault_(fault), place_(std::move(place)) {}
  /// Errors: beside those of the backend E-USAGE for a phase that the pipeline does not have.
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override;

 private:
  cuda::Fault fault_;
  FaultPlace place_;
};

}  // namespace attnbench
