// A backend that passes every question on to another: the base of those that change one thing about
// it, such as the kernel that it is held to or a fault that is planted in it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"

namespace attnbench {

/// `inner` must outlive it. A derived class overrides what it is about; every other call reaches
/// `inner` as it was made. Why every virtual of Backend is here, those with a default too: a
/// wrapper that forgets one answers with the default in the backend's place.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(const Backend& inner) : inner_(inner) {}

  std::string_view name() const override { return inner_.name(); }
  std::string_view description() const override { return inner_.description(); }
  bool is_default_for(AttentionType type) const override { return inner_.is_default_for(type); }
  bool runs_by_default(const Problem& problem) const override {
    return inner_.runs_by_default(problem);
  }
  std::vector<std::string> refusals(const Problem& problem,
                                    const DeviceFacts& device) const override {
    return inner_.refusals(problem, device);
  }
  KernelRules kernel_rules() const override { return inner_.kernel_rules(); }
  bool states_rules() const override { return inner_.states_rules(); }
  std::optional<CacheLayoutKind> cache_layout() const override { return inner_.cache_layout(); }
  std::optional<CacheLayoutKind> cache_layout_for(const Problem& problem) const override {
    return inner_.cache_layout_for(problem);
  }
  std::vector<BlockSizeRule> block_sizes() const override { return inner_.block_sizes(); }
  bool is_deterministic(const Problem& problem) const override {
    return inner_.is_deterministic(problem);
  }
  Dtype probability_dtype(const Problem& problem) const override {
    return inner_.probability_dtype(problem);
  }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    return inner_.prepare(problem, inputs, ops);
  }
  Facts explain(const Problem& problem, const DeviceFacts& device) const override {
    return inner_.explain(problem, device);
  }
  bool chooses_kernels() const override { return inner_.chooses_kernels(); }
  std::string_view forced_kernel() const override { return inner_.forced_kernel(); }
  const Backend& unforced() const override { return inner_.unforced(); }
  const PluginInfo* plugin() const override { return inner_.plugin(); }
  bool is_users() const override { return inner_.is_users(); }
  void load() const override { inner_.load(); }
  const MlaCapability* mla_capability(const Problem& problem) const override {
    return inner_.mla_capability(problem);
  }

 protected:
  const Backend& inner() const { return inner_; }

 private:
  const Backend& inner_;
};

}  // namespace attnbench
