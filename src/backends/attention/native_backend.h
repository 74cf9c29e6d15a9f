// What the native decoder and encoder backends have in common: judged by a capability, run by
// default for the types that have a query, a key and a value.
#pragma once

#include "backends/attention/capability.h"

namespace attnbench {

class NativeBackend : public Backend {
 public:
  explicit NativeBackend(const Capability& capability) : capability_(capability) {}
  std::string_view name() const override { return capability_.name; }
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
  const Capability& capability_;
};

}  // namespace attnbench
