// REFERENCE: the float64 reference as a backend of its own, so that it can be timed and compared.
#include <limits>
#include <numeric>

#include "backends/backend_list.h"
#include "backends/mla/backend.h"
#include "core/error.h"
#include "reference/attention.h"

namespace attnbench {
namespace {

constexpr const char* kName = "REFERENCE";

/// Levels 1 and 2 with what has no meaning beside them (semantics §11.6).
void add_int8_reasons(const Problem& problem, std::vector<std::string>& reasons) {
  const int level = problem.kv_cache.int8_level;
  if (level == 0) return;
  if (is_quantised(problem.kv_cache.dtype)) {
    reasons.push_back(fmt::format("int8 attention level {} with {} kv cache", level,
                                  to_string(problem.kv_cache.dtype)));
  }
  if (problem.attention.query_dtype != QueryDtype::kAuto) reasons.emplace_back("fp8 query");
  if (is_encoder_type(problem.attention.type)) {
    reasons.push_back(
        fmt::format("int8 attention for attention type {}", to_string(problem.attention.type)));
  }
}

bool is_served(AttentionType type) {
  return type == AttentionType::kDecoder || type == AttentionType::kEncoderDecoder ||
         has_direct_kv(type);
}

class ReferencePipeline : public Pipeline {
 public:
  ReferencePipeline(const Problem& problem, const BackendInputs& inputs)
      : problem_(problem),
        math_(resolve_attention_math(problem_, kName)),
        inputs_(inputs),
        rows_(static_cast<std::size_t>(inputs.inputs->num_tokens())) {
    std::iota(rows_.begin(), rows_.end(), 0);
    set_sources();
    steps_.push_back({"attend", true, attention_traffic(problem_, kName).unique_bytes,
                      attention_flops(problem_, kName), [this] { run(); }});
    poison_outputs();
  }

  const std::vector<Step>& steps() const override { return steps_; }

  void poison_outputs() override {
    const auto heads = static_cast<std::size_t>(problem_.attention.num_heads);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    result_.output.assign(
        rows_.size() * heads * static_cast<std::size_t>(problem_.attention.v_head_size), nan);
    result_.lse.assign(rows_.size() * heads, nan);
  }

  PipelineOutput read_output(bool /*with_cache*/) override {
    const AttentionSpec& a = problem_.attention;
    const auto tokens = static_cast<std::int64_t>(rows_.size());
    const bool quantised = problem_.output_quant.type == OutputQuantType::kFp8Static;
    const float factor = quantised ? 1.0f / static_cast<float>(problem_.output_quant.scale) : 1.0f;
    PipelineOutput output;
    output.output =
        Tensor(quantised ? Dtype::kE4M3 : a.dtype, {tokens, a.num_heads, a.v_head_size});
    for (std::int64_t i = 0; i < output.output.num_elements(); ++i) {
      const auto value = static_cast<float>(result_.output[static_cast<std::size_t>(i)]);
      output.output.set(i, value * factor);
    }
    output.lse = Tensor(Dtype::kF32, {a.num_heads, tokens});
    for (std::int64_t i = 0; i < output.lse->num_elements(); ++i) {
      output.lse->set(i, static_cast<float>(result_.lse[static_cast<std::size_t>(i)]));
    }
    return output;
  }

 private:
  void set_sources() {
    const AttentionInputs& inputs = *inputs_.inputs;
    const StoredQuery& query = inputs_.query;
    sources_.query = query.dequantized ? &*query.dequantized : &query.query;
    // A cache that only copies bits has no dequantised tensors.
    const bool dequantised = inputs_.stored != nullptr && !inputs_.stored->key_dequantized.empty();
    sources_.key = dequantised ? &inputs_.stored->key_dequantized : &inputs.key;
    sources_.value = dequantised ? &inputs_.stored->value_dequantized : &inputs.value;
    sources_.query_start_loc = inputs.query_start_loc;
    sources_.seq_lens = inputs.seq_lens;
    sources_.key_start_loc = inputs.key_start_loc;
    sources_.sinks = inputs.sinks;
    sources_.alibi_slopes = inputs.alibi_slopes;
  }

  void run() {
    if (auto result = reference_attention(math_, sources_, rows_)) result_ = std::move(*result);
  }

  Problem problem_;
  AttentionMath math_;
  const BackendInputs& inputs_;  // outlives the pipeline
  std::vector<std::int32_t> rows_;
  ReferenceInputs sources_;
  ReferenceOutput result_;
  std::vector<Step> steps_;
};

class Reference : public Backend {
 public:
  std::string_view name() const override { return kName; }
  std::string_view description() const override {
    return "float64 attention straight from the definitions; timed only when named";
  }
  bool is_default_for(AttentionType) const override { return false; }
  std::vector<std::string> refusals(const Problem& problem, const DeviceFacts&) const override {
    std::vector<std::string> reasons;
    const AttentionType type = problem.attention.type;
    if (type == AttentionType::kMla) return mla_reference_refusals(problem);
    if (problem.kv_cache.dtype == KvCacheDtype::kFp8DsMla) {
      reasons.emplace_back("kv_cache_dtype not supported");
    }
    if (!is_served(type)) {
      reasons.push_back(fmt::format("attention type {} not supported", to_string(type)));
    }
    add_int8_reasons(problem, reasons);
    if (has_direct_kv(type) && is_quantised(problem.kv_cache.dtype)) {
      reasons.emplace_back("quantized KV cache is not supported for encoder attention");
    }
    if (problem.output_quant.type != OutputQuantType::kNone &&
        problem.output_quant.type != OutputQuantType::kFp8Static) {
      reasons.push_back(fmt::format("output quantization {} not supported",
                                    to_string(problem.output_quant.type)));
    }
    return reasons;
  }
  std::optional<CacheLayoutKind> cache_layout() const override { return std::nullopt; }
  Dtype probability_dtype(const Problem& problem) const override { return problem.attention.dtype; }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops&) const override {
    if (problem.attention.type == AttentionType::kMla) {
      return make_mla_reference_pipeline(problem, inputs);
    }
    return std::make_unique<ReferencePipeline>(problem, inputs);
  }
  bool chooses_kernels() const override { return false; }
  Facts explain(const Problem& problem, const DeviceFacts&) const override {
    if (problem.attention.type == AttentionType::kMla) {
      return {{"path", "latent and expanded form in float64, all rows"},
              {"form", to_string(problem.mla.ref_form)}};
    }
    return {{"path", "two-pass softmax in float64, all rows"}};
  }
};

}  // namespace

const Backend& reference_backend() {
  static const Reference backend;
  return backend;
}

}  // namespace attnbench
