// The system of multi-head latent attention.
#include <deque>
#include <utility>

#include "backends/mla_backend.h"
#include "bench/judge.h"
#include "bench/judge_output_quant.h"
#include "bench/judge_ranks.h"
#include "bench/save.h"
#include "bench/system.h"
#include "core/error.h"
#include "inputs/mla_inputs.h"
#include "reference/mla/mla_cache_entry.h"
#include "reference/mla/mla_latent_query.h"
#include "reference/mla/mla_literal.h"
#include "reference/mla/mla_reference.h"

namespace attnbench {
namespace {

/// Which values a reference result is computed from.
struct MlaReferenceKey {
  std::optional<KvCacheDtype> stored;  // a quantised cache; nothing = latents as they are
  bool quantised_query = false;
  std::int64_t num_decode_tokens = 0;

  bool operator==(const MlaReferenceKey&) const = default;
};

class MlaCase {
 public:
  MlaCase(const Problem& problem, const ReferenceOptions& options)
      : problem_(problem), options_(options) {}

  const Problem& problem() const { return problem_; }
  const MlaInputs& inputs() {
    if (!inputs_) inputs_ = make_mla_inputs(problem_);
    return *inputs_;
  }

  const StoredMlaCache& stored(KvCacheDtype dtype) {
    for (const auto& [known, cache] : stored_) {
      if (known == dtype) return cache;
    }
    const auto k_scale = static_cast<float>(problem_.kv_cache.k_scale.at(0));
    return stored_
        .emplace_back(dtype, store_mla_cache(inputs().kv_c, inputs().k_pe, dtype, k_scale))
        .second;
  }

  /// The quantised query of the first rows, all rows once: rows do not depend on each other.
  const MlaLatentQuery& latent_query() {
    if (!latent_query_) {
      latent_query_ = quantise_latent_query(inputs().query, inputs().w_uk, inputs().num_tokens(),
                                            static_cast<float>(problem_.kv_cache.q_scale),
                                            options_.num_threads);
    }
    return *latent_query_;
  }

  const ReferenceOutput* reference(const MlaReferenceKey& key) { return find(key, std::nullopt); }
  const ReferenceOutput* emulation(const MlaReferenceKey& key, const EmulationRule& rule) {
    return find(key, rule);
  }
  /// What a rank of the group computes for the checked decode rows, in the latent space.
  const ReferenceOutput* rank_reference(const MlaReferenceKey& key, int rank) {
    for (const OfRank& known : of_ranks_) {
      if (known.key == key && known.rank == rank) return &known.output;
    }
    std::vector<std::int32_t> decode_rows;
    for (const std::int32_t row : rows()) {
      if (row < key.num_decode_tokens) decode_rows.push_back(row);
    }
    auto output =
        mla_rank_partial(sources(key), decode_rows,
                         {problem_.dcp.world_size, problem_.dcp.interleave_size}, rank, options_);
    if (!output) return nullptr;
    return &of_ranks_.emplace_back(key, rank, *std::move(output)).output;
  }

 private:
  struct Computed {
    MlaReferenceKey key;
    std::optional<EmulationRule> rule;
    ReferenceOutput output;
  };

  struct OfRank {
    MlaReferenceKey key;
    int rank = 0;
    ReferenceOutput output;
  };

  const std::vector<std::int32_t>& rows() {
    if (!rows_) rows_ = select_rows(problem_, problem_.inputs.seed);
    return *rows_;
  }

  static bool same(const std::optional<EmulationRule>& a, const std::optional<EmulationRule>& b) {
    if (!a || !b) return !a && !b;
    return a->storage == b->storage && a->probability == b->probability;
  }

  MlaReferenceInputs sources(const MlaReferenceKey& key) {
    const MlaInputs& in = inputs();
    MlaReferenceInputs result;
    result.query = &in.query;
    result.kv_c = &in.kv_c;
    result.k_pe = &in.k_pe;
    if (key.stored) {
      const StoredMlaCache& cache = stored(*key.stored);
      result.kv_c = &cache.kv_c_dequantized;
      result.k_pe = &cache.k_pe_dequantized;
      result.kv_c_unquantized = &in.kv_c;
      result.k_pe_unquantized = &in.k_pe;
    }
    result.w_uk = &in.w_uk;
    result.w_uv = &in.w_uv;
    if (problem_.mla.sparse_topk) result.topk_indices = &in.topk_indices;
    if (key.quantised_query) result.latent_query = &latent_query().dequantized;
    result.num_decode_tokens = key.num_decode_tokens;
    result.query_start_loc = in.query_start_loc;
    result.seq_lens = in.seq_lens;
    result.key_start_loc = in.key_start_loc;
    result.softmax_scale = problem_.attention.scale;
    return result;
  }

  const ReferenceOutput* find(const MlaReferenceKey& key,
                              const std::optional<EmulationRule>& rule) {
    for (const Computed& known : computed_) {
      if (known.key == key && same(known.rule, rule)) return &known.output;
    }
    const MlaReferenceInputs source = sources(key);
    MlaReferenceOptions options;
    options.reference = options_;
    options.form = problem_.mla.ref_form;
    auto output = rule ? emulate_mla(source, *rule, rows(), options_)
                       : mla_reference(source, rows(), options);
    if (!output) return nullptr;
    return &computed_.emplace_back(key, rule, *std::move(output)).output;
  }

  const Problem& problem_;
  ReferenceOptions options_;
  std::optional<MlaInputs> inputs_;
  std::optional<std::vector<std::int32_t>> rows_;
  std::optional<MlaLatentQuery> latent_query_;
  // Deques keep references valid while they grow.
  std::deque<std::pair<KvCacheDtype, StoredMlaCache>> stored_;
  std::deque<Computed> computed_;
  std::deque<OfRank> of_ranks_;
};

class MlaTrial final : public Trial {
 public:
  MlaTrial(MlaCase& mla, const Backend& backend)
      : case_(mla), backend_(backend), capability_(capability_of(backend)) {
    const Problem& problem = case_.problem();
    plan_ = plan_mla(capability_, problem);
    const KvCacheDtype dtype = mla_cache_dtype(capability_, problem);
    entries_ = &case_.stored(dtype).codes;
    cache_ = make_mla_cache(problem, case_.inputs(), *entries_);
    key_.num_decode_tokens = plan_.batch.num_decode_tokens;
    key_.quantised_query = plan_.quantised_query;
    if (is_quantised(dtype)) key_.stored = dtype;
    inputs_.mla = &case_.inputs();
    inputs_.mla_cache = &cache_;
  }

  std::unique_ptr<Pipeline> prepare(Ops& ops) override {
    return backend_.prepare(case_.problem(), inputs_, ops);
  }

  std::string check_stored(const PipelineOutput& output) override {
    if (!output.cache) return "";
    const std::string wrong = check_mla_cache(case_.problem(), *entries_, cache_, *output.cache);
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
    const ReferenceOutput* exact = case_.reference({std::nullopt, false, key_.num_decode_tokens});
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
    if (key_.quantised_query) {
      tensors.own("latent_query_dequantized",
                  first_rows(case_.latent_query().dequantized, plan_.batch.num_decode_tokens));
    }
    const std::vector<std::int32_t> decodes{plan_.batch.num_decode_tokens};
    tensors.own("num_decode_tokens", Tensor::from_i32(decodes));
    tensors.borrow("kv_cache", output.cache ? *output.cache : cache_.data);
    tensors.borrow("block_table", cache_.block_table);
    tensors.borrow("slot_mapping", cache_.slot_mapping);
    tensors.borrow("output", output.output);
    if (output.lse) tensors.borrow("lse", *output.lse);
    for (const auto& [name, tensor] : output.more) tensors.borrow(name, tensor);
    if (reference_ != nullptr) add_reference_tensors(problem.num_tokens(), *reference_, tensors);
  }

 private:
  std::optional<Judgement> judge_values(const Problem& problem, const PipelineOutput& output) {
    Numerics numerics;
    numerics.output = output.output.dtype();
    numerics.probability = backend_.probability_dtype(problem);
    numerics.quantised_query = key_.quantised_query;
    numerics.quantised_kv = key_.stored.has_value();
    Yardsticks yardsticks;
    yardsticks.reference = reference_ = case_.reference(key_);
    if (reference_ == nullptr) return std::nullopt;
    yardsticks.emulation = case_.emulation(key_, emulation_rule(problem, numerics));
    if (yardsticks.emulation == nullptr) return std::nullopt;
    if (numerics.quantised_kv) {
      yardsticks.unquantised = case_.reference({std::nullopt, false, key_.num_decode_tokens});
      if (yardsticks.unquantised == nullptr) return std::nullopt;
    }
    Judgement judgement = attnbench::judge(problem, numerics, output, yardsticks);
    if (!judge_ranks(output, judgement)) return std::nullopt;
    return judgement;
  }

  /// What the ranks computed before the exchange. False = should_stop.
  bool judge_ranks(const PipelineOutput& output, Judgement& judgement) {
    const Tensor* partial = find_tensor(output, "rank_output");
    const Tensor* lse = find_tensor(output, "rank_lse");
    if (partial == nullptr || lse == nullptr) return true;
    for (int rank = 0; rank < static_cast<int>(partial->dim(0)); ++rank) {
      const ReferenceOutput* reference = case_.rank_reference(key_, rank);
      if (reference == nullptr) return false;
      RankJudgement of_rank = judge_rank(case_.problem(), *partial, *lse, rank, *reference);
      judgement.rank_errors.push_back(std::move(of_rank.errors));
      judgement.reasons.insert(judgement.reasons.end(), of_rank.reasons.begin(),
                               of_rank.reasons.end());
    }
    return true;
  }

  static const MlaCapability& capability_of(const Backend& backend) {
    const MlaCapability* found = find_mla_capability(backend.name());
    if (found == nullptr) {
      fail(ErrorKind::kInternal, "{} is no MLA backend", std::string(backend.name()));
    }
    return *found;
  }

  MlaCase& case_;
  const Backend& backend_;
  const MlaCapability& capability_;
  MlaPlan plan_;
  MlaReferenceKey key_;
  const Tensor* entries_ = nullptr;  // what a correct write stores
  MlaCache cache_;
  BackendInputs inputs_;
  const ReferenceOutput* reference_ = nullptr;  // set by judge()
};

class MlaSystem final : public System {
 public:
  MlaSystem(const Problem& problem, const ReferenceOptions& options) : case_(problem, options) {}
  const Problem& problem() const override { return case_.problem(); }
  const std::vector<std::string>& notices() override { return case_.inputs().notices; }
  std::unique_ptr<Trial> start(const Backend& backend) override {
    return std::make_unique<MlaTrial>(case_, backend);
  }

 private:
  MlaCase case_;
};

}  // namespace

std::unique_ptr<System> make_mla_system(const Problem& problem, const ReferenceOptions& options) {
  return std::make_unique<MlaSystem>(problem, options);
}

}  // namespace attnbench
