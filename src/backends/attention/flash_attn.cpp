// FLASH_ATTN: vLLM's FlashAttention backend, cache layout [2, NB, bs, Hk, D].
#include "backends/attention/capability.h"
#include "backends/attention/flash_pipeline.h"
#include "backends/backend_list.h"

namespace attnbench {

using enum KvCacheDtype;

namespace {

class FlashAttn : public NativeBackend {
 public:
  FlashAttn() : NativeBackend(flash_attn_capability()) {}
  std::string_view description() const override {
    return "vLLM FlashAttention: varlen attention over pages [2, NB, bs, Hk, D], split-KV "
           "decoding, "
           "cascade";
  }
  bool states_rules() const override { return false; }
  std::optional<CacheLayoutKind> cache_layout() const override { return CacheLayoutKind::kFa; }
  std::vector<std::string> refusals(const Problem& problem,
                                    const DeviceFacts& device) const override {
    std::vector<std::string> reasons = NativeBackend::refusals(problem, device);
    if (reasons.empty()) reasons = split_refusals(problem, rule(), {device.num_sms, device.sm});
    return reasons;
  }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    return make_flash_pipeline(problem, inputs, ops, rule());
  }
  Facts explain(const Problem& problem, const DeviceFacts& device) const override {
    return explain_flash(problem, rule(), {device.num_sms, device.sm});
  }

 private:
  FlashRule rule() const { return {kernel_rules(), false}; }
};

}  // namespace

Capability flash_attn_capability() {
  Capability c;
  c.name = "FLASH_ATTN";
  c.rules.quantises_query = true;
  c.dtypes = {Dtype::kF16, Dtype::kBF16};
  c.kv_dtypes = {kAuto, kFloat16, kBFloat16, kFp8, kFp8E4M3};
  c.min_sm_fp8_kv = 90;
  c.head_size_multiple = 8;
  c.max_head_size = 256;
  c.min_sm = 80;
  c.min_sm_sinks = 90;
  c.min_sm_per_head_scales = 90;
  c.cascade = true;
  c.lse_for_dcp = true;
  c.non_causal_decoder = true;
  c.fp8_query = true;
  c.encoder_soft_cap_and_alibi = true;
  c.num_splits = true;
  return c;
}

const Backend& flash_attn_backend() {
  static const FlashAttn backend;
  return backend;
}

}  // namespace attnbench
