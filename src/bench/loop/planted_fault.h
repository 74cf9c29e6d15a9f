// Faults planted in a backend on purpose, to show what the tool makes of a kernel that hangs,
// crashes or writes where it must not.
#pragma once

#include <string>

#include "backends/backend.h"
#include "ops/cuda/planted_fault.h"

namespace attnbench {

/// `backend` with one step more, "planted fault", behind its last one. On a CUDA device a kernel
/// does it; on the CPU the thread hangs or dies. `backend` must outlive it.
class FaultyBackend final : public Backend {
 public:
  FaultyBackend(const Backend& backend, cuda::Fault fault) : backend_(backend), fault_(fault) {}
  std::string_view name() const override { return backend_.name(); }
  std::string_view description() const override { return backend_.description(); }
  bool is_default_for(AttentionType type) const override { return backend_.is_default_for(type); }
  std::vector<std::string> refusals(const Problem& problem,
                                    const DeviceFacts& device) const override {
    return backend_.refusals(problem, device);
  }
  std::optional<CacheLayoutKind> cache_layout() const override { return backend_.cache_layout(); }
  std::optional<CacheLayoutKind> cache_layout_for(const Problem& problem) const override {
    return backend_.cache_layout_for(problem);
  }
  bool is_deterministic(const Problem& problem) const override {
    return backend_.is_deterministic(problem);
  }
  Dtype probability_dtype(const Problem& problem) const override {
    return backend_.probability_dtype(problem);
  }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override;
  Facts explain(const Problem& problem, const DeviceFacts& device) const override {
    return backend_.explain(problem, device);
  }
  bool chooses_kernels() const override { return backend_.chooses_kernels(); }
  std::string_view forced_kernel() const override { return backend_.forced_kernel(); }
  const Backend& unforced() const override { return backend_.unforced(); }
  const PluginInfo* plugin() const override { return backend_.plugin(); }
  bool is_users() const override { return backend_.is_users(); }
  const MlaCapability* mla_capability(const Problem& problem) const override {
    return backend_.mla_capability(problem);
  }

 private:
  const Backend& backend_;
  cuda::Fault fault_;
};

}  // namespace attnbench
