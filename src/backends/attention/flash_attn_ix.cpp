// FLASH_ATTN_IX: the FlashAttention backend of ixformer, cache layout [2, NB, Hk, bs, D].
#include "backends/attention/capability.h"
#include "backends/attention/flash_pipeline.h"
#include "backends/backend_list.h"

namespace attnbench {
namespace {

using enum KvCacheDtype;

Capability capability() {
  Capability c = flash_attn_capability();
  c.name = "FLASH_ATTN_IX";
  // Its source has one-sided windows in encoders, and reads an e4m3 cache with 16-bit queries.
  c.rules = {.window = EncoderWindowRule::kOneSided};
  c.is_ixformer = true;
  c.kv_dtypes = {kAuto, kBFloat16, kFp8, kFp8E4M3};
  c.min_sm_fp8_kv = 89;
  c.block_sizes = {{16, false}, {32, false}, {64, false}};
  c.alibi_sqrt = true;
  c.non_causal_decoder = false;
  // Which kernel computes a row depends on the rest of its batch (§1.6).
  c.batch_invariant = false;
  return c;
}

class FlashAttnIx : public NativeBackend {
 public:
  FlashAttnIx() : NativeBackend(capability()) {}
  std::string_view description() const override {
    return "ixformer FlashAttention: decode and prefill calls over pages [2, NB, Hk, bs, D], "
           "cascade";
  }
  bool states_rules() const override { return false; }
  std::optional<CacheLayoutKind> cache_layout() const override { return CacheLayoutKind::kIx; }
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
  FlashRule rule() const { return {kernel_rules(), true}; }
};

}  // namespace

const Backend& flash_attn_ix_backend() {
  static const FlashAttnIx backend;
  return backend;
}

}  // namespace attnbench
