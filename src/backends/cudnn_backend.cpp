// CUDNN: NVIDIA's attention as a peer to compare with, where its library is found (contract
// section 2). This program has no code that calls it, so no machine has it.
#include "backends/backend_list.h"
#include "core/error.h"

namespace attnbench {
namespace {

class CudnnBackend final : public Backend {
 public:
  std::string_view name() const override { return "CUDNN"; }
  std::string_view description() const override {
    return "vendor peer, only when named; needs NVIDIA's library";
  }
  bool is_default_for(AttentionType) const override { return false; }
  std::vector<std::string> refusals(const Problem&, const DeviceFacts&) const override {
    return {"cuDNN not found"};
  }
  std::optional<CacheLayoutKind> cache_layout() const override { return std::nullopt; }
  Dtype probability_dtype(const Problem& problem) const override { return problem.attention.dtype; }
  std::unique_ptr<Pipeline> prepare(const Problem&, const BackendInputs&, Ops&) const override {
    fail(ErrorKind::kInternal, "CUDNN: cuDNN not found");
  }
  Facts explain(const Problem&) const override { return {}; }
};

}  // namespace

const Backend& cudnn_backend() {
  static const CudnnBackend backend;
  return backend;
}

}  // namespace attnbench
