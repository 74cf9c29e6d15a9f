// REFERENCE: the float64 reference as a backend of its own, so that it can be timed and compared.
#include <limits>
#include <numeric>

#include "backends/backend_list.h"
#include "backends/mla/reference_pipeline.h"
#include "backends/reference_sources.h"
#include "backends/refusals.h"
#include "backends/traffic.h"
#include "core/error.h"
#include "reference/attention.h"

namespace attnbench {
namespace {

constexpr KernelRules kRules{.reads_dequantised = true};

/// Levels 1 and 2 with what has no meaning beside them (semantics §11.6).
void add_int8_reasons(const Problem& problem, Refusals& reasons) {
  const int level = problem.kv_cache.int8_level;
  if (level == 0) return;
  reasons.add_if(is_quantised(problem.kv_cache.dtype),
                 fmt::format("int8 attention level {} with {} kv cache", level,
                             to_string(problem.kv_cache.dtype)));
  reasons.fp8_query();
  reasons.int8_of_type(is_encoder_type(problem.attention.type));
}

bool is_served(AttentionType type) {
  return type == AttentionType::kDecoder || type == AttentionType::kEncoderDecoder ||
         has_direct_kv(type);
}

class ReferencePipeline : public Pipeline {
 public:
  ReferencePipeline(const Problem& problem, const BackendInputs& inputs)
      : problem_(problem),
        math_(resolve_attention_math(problem_, kRules)),
        inputs_(inputs),
        rows_(static_cast<std::size_t>(inputs.inputs->num_tokens())) {
    std::iota(rows_.begin(), rows_.end(), 0);
    set_sources();
    steps_.push_back(counted_step(
        "attend", [this] { run(); }, attention_traffic(problem_, kRules).unique_bytes,
        attention_flops(problem_, kRules)));
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
    sources_ = reference_sources(*inputs_.inputs);
    const StoredQuery& query = inputs_.query;
    sources_.query = query.dequantized ? &*query.dequantized : &query.query;
    // A cache that only copies bits has no dequantised tensors.
    if (inputs_.stored == nullptr || inputs_.stored->key_dequantized.empty()) return;
    sources_.key = &inputs_.stored->key_dequantized;
    sources_.value = &inputs_.stored->value_dequantized;
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
  std::string_view name() const override { return "REFERENCE"; }
  std::string_view description() const override {
    return "float64 attention straight from the definitions; timed only when named";
  }
  KernelRules kernel_rules() const override { return kRules; }
  bool states_rules() const override { return false; }
  bool is_default_for(AttentionType) const override { return false; }
  std::vector<std::string> refusals(const Problem& problem, const DeviceFacts&) const override {
    const AttentionType type = problem.attention.type;
    const OutputQuantType output = problem.output_quant.type;
    if (type == AttentionType::kMla) return mla_reference_refusals(problem);
    Refusals reasons(problem);
    reasons.kv_cache_dtype(!kv_format(problem.kv_cache.dtype).of_heads);
    reasons.attention_type(!is_served(type));
    add_int8_reasons(problem, reasons);
    reasons.quantised_kv_of_encoder(has_direct_kv(type));
    reasons.output_quant(output != OutputQuantType::kNone && output != OutputQuantType::kFp8Static);
    return reasons.take();
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
