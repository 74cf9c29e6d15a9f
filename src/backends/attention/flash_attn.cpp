// FLASH_ATTN: vLLM's FlashAttention backend, cache layout [2, NB, bs, Hk, D].
#include "backends/attention/flash_pipeline.h"
#include "backends/attention/native_backend.h"
#include "backends/backend_list.h"

namespace attnbench {
namespace {

class FlashAttn : public NativeBackend {
 public:
  FlashAttn() : NativeBackend(flash_attn_capability()) {}
  std::string_view description() const override {
    return "vLLM FlashAttention: varlen attention over pages [2, NB, bs, Hk, D], split-KV "
           "decoding, "
           "cascade";
  }
  std::optional<CacheLayoutKind> cache_layout() const override { return CacheLayoutKind::kFa; }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    return make_flash_pipeline(problem, inputs, ops, rule());
  }
  Facts explain(const Problem& problem, const DeviceFacts& device) const override {
    return explain_flash(problem, rule(), device.num_sms);
  }

 private:
  static FlashRule rule() { return {"FLASH_ATTN", false}; }
};

}  // namespace

const Backend& flash_attn_backend() {
  static const FlashAttn backend;
  return backend;
}

}  // namespace attnbench
