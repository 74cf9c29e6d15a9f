// FLASH_ATTN_IX: the FlashAttention backend of ixformer, cache layout [2, NB, Hk, bs, D].
#include "backends/attention/flash_pipeline.h"
#include "backends/attention/native_backend.h"
#include "backends/backend_list.h"

namespace attnbench {
namespace {

class FlashAttnIx : public NativeBackend {
 public:
  FlashAttnIx() : NativeBackend(flash_attn_ix_capability()) {}
  std::string_view description() const override {
    return "ixformer FlashAttention: decode and prefill calls over pages [2, NB, Hk, bs, D], "
           "cascade";
  }
  std::optional<CacheLayoutKind> cache_layout() const override { return CacheLayoutKind::kIx; }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    return make_flash_pipeline(problem, inputs, ops, rule());
  }
  Facts explain(const Problem& problem, const DeviceFacts& device) const override {
    return explain_flash(problem, rule(), device.num_sms);
  }

 private:
  static FlashRule rule() { return {"FLASH_ATTN_IX", true}; }
};

}  // namespace

const Backend& flash_attn_ix_backend() {
  static const FlashAttnIx backend;
  return backend;
}

}  // namespace attnbench
