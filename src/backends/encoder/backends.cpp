// MM_TORCH_SDPA, MM_FLASH_ATTN, MM_TRITON_ATTN, MM_FLASHINFER: vLLM's wrappers of the multimodal
// encoder's attention (semantics §10, contract section 2).
#include <fmt/format.h>

#include "backends/backend_list.h"
#include "backends/encoder/pipeline.h"
#include "metadata/int_math.h"

namespace attnbench {

namespace {

class MmBackend : public Backend {
 public:
  explicit MmBackend(MmCapability capability) : capability_(std::move(capability)) {}
  std::string_view name() const override { return capability_.name; }
  std::string_view description() const override { return capability_.description; }
  KernelRules kernel_rules() const override { return {}; }
  bool states_rules() const override { return false; }
  bool is_default_for(AttentionType type) const override {
    return type == AttentionType::kMmEncoder;
  }
  std::vector<std::string> refusals(const Problem& problem,
                                    const DeviceFacts& device) const override {
    return mm_refusals(capability_, problem, device);
  }
  std::optional<CacheLayoutKind> cache_layout() const override { return std::nullopt; }
  Dtype probability_dtype(const Problem& problem) const override {
    return probability_dtype_of(problem);
  }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    return std::make_unique<MmPipeline>(problem, inputs, ops, capability_);
  }
  Facts explain(const Problem& problem, const DeviceFacts&) const override {
    const MmCall call = mm_call_of(capability_, problem);
    const MmSequences sequences = mm_sequences(capability_.lengths, call);
    Facts facts{{"form", call.cu_seqlens ? "cu_seqlens" : "batch rows"},
                {"sequences", std::to_string(problem.num_requests())}};
    if (call.max_seqlen) facts.emplace_back("max_seqlen", std::to_string(*call.max_seqlen));
    if (call.sequence_lengths) {
      facts.emplace_back("padded batch", std::to_string(sequences.seq_lens.size()));
      facts.emplace_back("elements per token", fmt::format("{} of Q, K and O, {} of V",
                                                           call.query_unit, call.value_unit));
    }
    if (problem.mm_encoder.attn_dtype == MmAttnDtype::kFp8) add_fp8_facts(problem, facts);
    return facts;
  }

 private:
  static void add_fp8_facts(const Problem& problem, Facts& facts) {
    const MmEncoderSpec& mm = problem.mm_encoder;
    facts.emplace_back("fp8 head size", fmt::format("{} padded to {}", problem.attention.head_size,
                                                    round_up(problem.attention.head_size, 16)));
    facts.emplace_back("fp8 scales", mm.fp8_scale_path
                                         ? "static, of layer " + mm.layer_names.front()
                                         : fmt::format("dynamic, amax {}", to_string(mm.amax)));
    facts.emplace_back("fp8 launches", mm.fp8_fused
                                           ? "one for the scales, one for the codes, no slice"
                                           : "one a tensor (mm_encoder.fp8_fused: false)");
  }

  MmCapability capability_;
};

}  // namespace

const Backend& mm_torch_sdpa_backend() {
  static const MmBackend backend(mm_torch_sdpa_capability());
  return backend;
}
const Backend& mm_flash_attn_backend() {
  static const MmBackend backend(mm_flash_attn_capability());
  return backend;
}
const Backend& mm_triton_attn_backend() {
  static const MmBackend backend(mm_triton_attn_capability());
  return backend;
}
const Backend& mm_flashinfer_backend() {
  static const MmBackend backend(mm_flashinfer_capability());
  return backend;
}

}  // namespace attnbench
