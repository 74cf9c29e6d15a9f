// What the native decoder and encoder backends have in common: judged by a capability, run by
// default for the types that have a query, a key and a value.
#pragma once

#include <utility>

#include "backends/attention/capability.h"

namespace attnbench {

class NativeBackend : public Backend {
 public:
  explicit NativeBackend(Capability capability) : capability_(std::move(capability)) {}
  std::string_view name() const override { return capability_.name; }
  KernelRules kernel_rules() const override { return capability_.rules; }
  bool is_default_for(AttentionType type) const override {
    return type == AttentionType::kDecoder || type == AttentionType::kEncoderDecoder ||
           is_encoder_type(type);
  }
  std::vector<std::string> refusals(const Problem& problem,
                                    const DeviceFacts& device) const override {
    return refusals_of(capability_, problem, device);
  }
  Dtype probability_dtype(const Problem& problem) const override {
    return probability_dtype_of(problem);
  }

 private:
  Capability capability_;
};

}  // namespace attnbench
