// One step over all rows on the host. Poison is NaN here, as results are doubles until they are
// read.
#include "backends/mla/reference_pipeline.h"

#include <limits>
#include <numeric>

#include "backends/mla/plan.h"
#include "backends/output_quant.h"
#include "backends/refusals.h"
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
    steps_.push_back(counted_step(
        "attend", [this] { run(); }, mla_traffic(problem_, plain_mla_capability()).unique_bytes,
        mla_flops(problem_, plain_mla_capability())));
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
    // Both are kept: the judge compares values before quantisation and bytes after it.
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

}  // namespace

MlaCapability mla_reference_capability(const Problem& problem) {
  MlaCapability capability = plain_mla_capability();
  capability.sparse = capability.sparse_operands = problem.mla.sparse_topk.has_value();
  return capability;
}

std::vector<std::string> mla_reference_refusals(const Problem& problem) {
  Refusals reasons(problem);
  reasons.kv_cache_dtype(!kv_format(problem.kv_cache.dtype).of_latents);
  reasons.mm_prefix();
  if (!problem.mla.sparse_topk) reasons.sinks();
  reasons.non_causal();
  reasons.int8();
  reasons.mla_scores();
  reasons.fp8_query();
  if (!reasons.none()) return reasons.take();
  // Which rows are decodes, and so read the cache, is what MLA's plan says.
  try {
    plan_mla(mla_reference_capability(problem), problem);
  } catch (const Error& error) {
    reasons.add(error.what());
  }
  return reasons.take();
}

std::unique_ptr<Pipeline> make_mla_reference_pipeline(const Problem& problem,
                                                      const BackendInputs& inputs) {
  if (inputs.mla_values == nullptr) {
    fail(ErrorKind::kInternal, "REFERENCE: no MLA inputs were given");
  }
  return std::make_unique<MlaReferencePipeline>(problem, inputs);
}

}  // namespace attnbench
