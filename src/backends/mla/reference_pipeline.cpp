// REFERENCE for MLA: float64 latents and heads straight from the definitions (semantics §8.3).
#include <limits>
#include <numeric>

#include "backends/mla/backend.h"
#include "backends/output_quant.h"
#include "core/error.h"
#include "reference/mla/mla_reference.h"

namespace attnbench {
namespace {

class MlaReferencePipeline final : public Pipeline {
 public:
  MlaReferencePipeline(const Problem& problem, const BackendInputs& inputs)
      : problem_(problem),
        values_(*inputs.mla_values),
        rows_(static_cast<std::size_t>(problem.num_tokens())) {
    std::iota(rows_.begin(), rows_.end(), 0);
    steps_.push_back({"attend", true, mla_traffic(problem_, plain_mla_capability()).unique_bytes,
                      mla_flops(problem_, plain_mla_capability()), [this] { run(); }});
    poison_outputs();
  }

  const std::vector<Step>& steps() const override { return steps_; }

  void poison_outputs() override {
    const AttentionSpec& a = problem_.attention;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const std::size_t pairs = rows_.size() * static_cast<std::size_t>(a.num_heads);
    result_.output.assign(pairs * static_cast<std::size_t>(a.v_head_size), nan);
    result_.lse.assign(pairs, nan);
  }

  PipelineOutput read_output(bool /*with_cache*/) override {
    const AttentionSpec& a = problem_.attention;
    const auto tokens = static_cast<std::int64_t>(rows_.size());
    PipelineOutput output;
    output.output = rounded(result_.output, a.dtype, {tokens, a.num_heads, a.v_head_size});
    output.lse = rounded(result_.lse, Dtype::kF32, {a.num_heads, tokens});
    if (problem_.output_quant.type == OutputQuantType::kNone) return output;
    OutputQuantTensors quantised = quantise_output(problem_, output.output);
    output.more.emplace_back("output_unquantized", std::move(output.output));
    output.output = std::move(quantised.codes);
    output.more.emplace_back("output_scales", std::move(quantised.scales));
    return output;
  }

 private:
  static Tensor rounded(const std::vector<double>& values, Dtype dtype,
                        std::vector<std::int64_t> shape) {
    Tensor result(dtype, std::move(shape));
    for (std::int64_t i = 0; i < result.num_elements(); ++i) {
      result.set(i, static_cast<float>(values[static_cast<std::size_t>(i)]));
    }
    return result;
  }

  void run() {
    MlaReferenceOptions options;
    options.form = problem_.mla.ref_form;
    if (auto result = mla_reference(values_, rows_, options)) result_ = std::move(*result);
  }

  Problem problem_;
  const MlaReferenceInputs& values_;  // outlives the pipeline
  std::vector<std::int32_t> rows_;
  ReferenceOutput result_;
  std::vector<Step> steps_;
};

bool has_mm_prefix(const AttentionSpec& attention) {
  for (const auto& [request, ranges] : attention.mm_prefix_ranges) {
    for (const auto& range : ranges) {
      if (range[0] < range[1]) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<std::string> mla_reference_refusals(const Problem& problem) {
  const AttentionSpec& a = problem.attention;
  std::vector<std::string> reasons;
  const auto add_if = [&](bool condition, const char* reason) {
    if (condition) reasons.emplace_back(reason);
  };
  add_if(!kv_format(problem.kv_cache.dtype).of_latents, "kv_cache_dtype not supported");
  add_if(has_mm_prefix(a), "partial multimodal token full attention not supported");
  add_if(a.sinks != SinksKind::kNone, "attention sinks not supported");
  add_if(!a.causal, "non-causal attention not supported");
  add_if(problem.kv_cache.int8_level > 0, "int8 attention not supported");
  add_if(a.alibi != AlibiKind::kNone || a.sliding_window || a.logits_soft_cap > 0,
         "FlashMLAImpl does not support one of the following: alibi_slopes, sliding_window, "
         "logits_soft_cap");
  add_if(a.query_dtype == QueryDtype::kFp8E4M3, "fp8 query");
  if (!reasons.empty()) return reasons;
  // Which rows are decodes, and so read the cache, is what MLA's plan says.
  try {
    plan_mla(mla_reference_capability(problem), problem);
  } catch (const Error& error) {
    reasons.emplace_back(error.what());
  }
  return reasons;
}

std::unique_ptr<Pipeline> make_mla_reference_pipeline(const Problem& problem,
                                                      const BackendInputs& inputs) {
  if (inputs.mla_values == nullptr) {
    fail(ErrorKind::kInternal, "REFERENCE: no MLA inputs were given");
  }
  return std::make_unique<MlaReferencePipeline>(problem, inputs);
}

}  // namespace attnbench
