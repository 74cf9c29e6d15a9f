// The system of multi-head latent attention.
#include <utility>

#include "backends/mla/plan.h"
#include "backends/mla/reference_pipeline.h"
#include "bench/cases/case.h"
#include "bench/cases/mla_values.h"
#include "bench/judge/judge.h"
#include "bench/judge/output_quant.h"
#include "bench/judge/ranks.h"
#include "bench/save.h"
#include "core/error.h"
#include "inputs/cache/kv_scales.h"
#include "inputs/mla_inputs.h"

namespace attnbench {
namespace {

class MlaTrial final : public Trial {
 public:
  MlaTrial(MlaCase& mla, const Backend& backend)
      : case_(mla), backend_(backend), capability_(capability_of(backend, mla.problem())) {
    const Problem& problem = case_.problem();
    const bool is_reference = backend.mla_capability(problem) == nullptr;
    plan_.batch = split_mla_batch(capability_, problem);
    if (!is_reference) plan_ = plan_mla(capability_, problem);
    const KvCacheDtype dtype = mla_cache_dtype(capability_, problem);
    entries_ = &case_.stored(dtype).codes;
    key_.num_decode_tokens = plan_.batch.num_decode_tokens;
    key_.quantised_query = plan_.quantised_query && key_.num_decode_tokens > 0;
    key_.fp8_prefill = plan_.fp8_prefill;
    if (is_quantised(dtype)) key_.stored = dtype;
    inputs_.mla = &case_.inputs();
    if (is_reference) {
      values_ = case_.sources(key_);
      inputs_.mla_values = &values_;
    } else {
      cache_ = make_mla_cache(problem, case_.inputs(), *entries_);
      inputs_.mla_cache = &*cache_;
    }
  }

  std::unique_ptr<Pipeline> prepare(Ops& ops) override {
    return backend_.prepare(case_.problem(), inputs_, ops);
  }

  std::string check_stored(const PipelineOutput& output) override {
    if (!output.cache) return "";
    const std::string wrong = check_mla_cache(case_.problem(), *entries_, *cache_, *output.cache);
    return wrong.empty() ? "" : "cache write: " + wrong;
  }

  std::optional<Judgement> judge(const PipelineOutput& output) override {
    // A quantised output is judged before it is quantised, and then byte by byte (§9).
    const Tensor* unquantised = find_tensor(output, "output_unquantized");
    if (unquantised == nullptr) return judge_values(case_.problem(), output);
    Problem plain = case_.problem();
    plain.output_quant = {};
    PipelineOutput before;
    before.output = *unquantised;
    before.lse = output.lse;
    before.more = output.more;
    std::optional<Judgement> judgement = judge_values(plain, before);
    if (!judgement) return std::nullopt;
    const ReferenceOutput* exact = case_.reference(unquantised_key());
    if (exact == nullptr) return std::nullopt;
    const Tensor* scales = find_tensor(output, "output_scales");
    judge_quantised_output(case_.problem(), {*unquantised, output.output, *scales}, *exact,
                           *judgement);
    return judgement;
  }

  void add_tensors(const PipelineOutput& output, TensorList& tensors) const override {
    const Problem& problem = case_.problem();
    const MlaInputs& inputs = case_.inputs();
    tensors.own("query", first_rows(inputs.query, inputs.num_tokens()));
    if (calculates_kv_scales(problem)) tensors.own("kv_scales", kv_scales_of(problem));
    tensors.borrow("kv_c", inputs.kv_c);
    tensors.borrow("k_pe", inputs.k_pe);
    tensors.borrow("w_uk", inputs.w_uk);
    tensors.borrow("w_uv", inputs.w_uv);
    if (problem.mla.sparse_topk) tensors.borrow("topk_indices", inputs.topk_indices);
    tensors.own("query_start_loc", Tensor::from_i32(inputs.query_start_loc));
    tensors.own("seq_lens", Tensor::from_i32(inputs.seq_lens));
    if (key_.stored) {
      const StoredMlaCache& stored = case_.stored(*key_.stored);
      tensors.borrow("kv_c_dequantized", stored.kv_c_dequantized);
      tensors.borrow("k_pe_dequantized", stored.k_pe_dequantized);
    }
    if (plan_.quantised_query) {  // no rows without a decode
      tensors.own("latent_query_dequantized",
                  first_rows(case_.latent_query(key_.num_decode_tokens).dequantized,
                             key_.num_decode_tokens));
    }
    const std::vector<std::int32_t> decodes{plan_.batch.num_decode_tokens};
    tensors.own("num_decode_tokens", Tensor::from_i32(decodes));
    if (cache_) {
      tensors.borrow("kv_cache", output.cache ? *output.cache : cache_->data);
      tensors.borrow("block_table", cache_->block_table);
      tensors.borrow("slot_mapping", cache_->slot_mapping);
    }
    tensors.borrow("output", output.output);
    if (output.lse) tensors.borrow("lse", *output.lse);
    for (const auto& [name, tensor] : output.more) tensors.borrow(name, tensor);
    if (reference_ != nullptr) add_reference_tensors(problem.num_tokens(), *reference_, tensors);
  }

 private:
  static MlaCapability capability_of(const Backend& backend, const Problem& problem) {
    const MlaCapability* own = backend.mla_capability(problem);
    if (own != nullptr) return *own;
    if (backend.kernel_rules().reads_dequantised) return mla_reference_capability(problem);
    fail(ErrorKind::kInternal, "{} is no MLA backend", backend.name());
  }

  std::optional<Judgement> judge_values(const Problem& problem, const PipelineOutput& output) {
    Numerics numerics;
    numerics.output = output.output.dtype();
    numerics.probability = backend_.probability_dtype(problem);
    numerics.quantised_query = key_.quantised_query || key_.fp8_prefill;
    numerics.quantised_kv = key_.stored.has_value();
    Yardsticks yardsticks;
    yardsticks.reference = reference_ = case_.reference(key_);
    if (reference_ == nullptr) return std::nullopt;
    yardsticks.emulation = case_.emulation(key_, emulation_rule(problem, numerics));
    if (yardsticks.emulation == nullptr) return std::nullopt;
    if (numerics.quantised_kv) {
      yardsticks.unquantised = case_.reference(unquantised_key());
      if (yardsticks.unquantised == nullptr) return std::nullopt;
    }
    Judgement judgement = attnbench::judge(problem, numerics, output, yardsticks);
    const bool done = judge_ranks(
        case_.problem(), output, [&](int rank) { return case_.rank_reference(key_, rank); },
        judgement);
    if (!done) return std::nullopt;
    return judgement;
  }

  MlaReferenceKey unquantised_key() const {
    MlaReferenceKey key;
    key.num_decode_tokens = key_.num_decode_tokens;
    return key;
  }

  MlaCase& case_;
  const Backend& backend_;
  MlaCapability capability_;
  MlaPlan plan_;
  MlaReferenceKey key_;
  const Tensor* entries_ = nullptr;  // what a correct write stores
  std::optional<MlaCache> cache_;    // nothing for REFERENCE, which reads values
  MlaReferenceInputs values_;
  BackendInputs inputs_;
  const ReferenceOutput* reference_ = nullptr;  // set by judge()
};

class MlaSystem final : public System {
 public:
  MlaSystem(const Problem& problem, const ReferenceOptions& options)
      : problem_(&problem), case_(problem, options) {}
  const Problem& problem() const override { return *problem_; }
  bool move_on(const Problem& problem) override {
    if (!case_.move_on(problem)) return false;
    problem_ = &problem;
    return true;
  }
  const std::vector<std::string>& notices() override { return case_.inputs().notices; }
  std::unique_ptr<Trial> start(const Backend& backend) override {
    return std::make_unique<MlaTrial>(case_, backend);
  }

 private:
  const Problem* problem_;
  MlaCase case_;
};

}  // namespace

std::unique_ptr<System> make_mla_system(const Problem& problem, const ReferenceOptions& options) {
  return std::make_unique<MlaSystem>(problem, options);
}

}  // namespace attnbench
