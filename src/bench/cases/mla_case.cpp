// A backend's turn at a case of latent attention, and the tensors that are saved of it under the
// names of contract section 5. REFERENCE reads values; every other backend gets a cache of entries.
#include "bench/cases/mla_case.h"

#include <utility>

#include "backends/mla/plan.h"
#include "backends/mla/reference_pipeline.h"
#include "bench/cases/case.h"
#include "bench/cases/mla_values.h"
#include "bench/cases/probe.h"
#include "bench/cases/sample_look.h"
#include "bench/cases/single_request.h"
#include "bench/judge/judge.h"
#include "bench/judge/ranks.h"
#include "bench/samples/redrawn_request.h"
#include "bench/save.h"
#include "core/error.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/cache/kv_scales.h"
#include "inputs/cache/mla_cache.h"
#include "inputs/mla_inputs.h"

namespace attnbench {
namespace {

class MlaCaseRun final : public CaseRun {
 public:
  MlaCaseRun(MlaValues& values, const Backend& backend)
      : values_(values),
        backend_(backend),
        capability_(capability_of(backend, values.problem())),
        look_(values.screening()) {
    const Problem& problem = values_.problem();
    const bool is_reference = backend.mla_capability(problem) == nullptr;
    plan_.batch = split_mla_batch(capability_, problem);
    if (!is_reference) plan_ = plan_mla(capability_, problem);
    const KvCacheDtype dtype = mla_cache_dtype(capability_, problem);
    entries_ = &values_.stored(dtype).codes;
    key_.num_decode_tokens = plan_.batch.num_decode_tokens;
    key_.quantised_query = plan_.quantised_query && key_.num_decode_tokens > 0;
    key_.fp8_prefill = plan_.fp8_prefill;
    if (is_quantised(dtype)) key_.stored = dtype;
    inputs_.mla = &values_.inputs();
    if (is_reference) {
      sources_ = values_.sources(key_);
      inputs_.mla_values = &sources_;
    } else {
      cache_ = make_mla_cache(problem, values_.inputs(), *entries_);
      inputs_.mla_cache = &*cache_;
      if (!values_.inputs().extra.empty()) {
        extra_cache_ =
            make_extra_mla_cache(problem, values_.inputs(), values_.stored_extra(dtype).codes);
        inputs_.mla_extra_cache = &*extra_cache_;
      }
    }
  }

  std::unique_ptr<Pipeline> prepare(Ops& ops) override {
    return backend_.prepare(values_.problem(), inputs_, ops);
  }

  std::string check_stored(const PipelineOutput& output) override {
    if (!output.cache) return "";
    const std::string wrong = check_mla_cache(values_.problem(), *entries_, *cache_, *output.cache);
    return wrong.empty() ? "" : "cache write: " + wrong;
  }

  std::optional<Judgement> judge(const PipelineOutput& output) override {
    if (values_.problem().output_quant.type == OutputQuantType::kNone) {
      auto judgement = judge_values(values_, key_, values_.problem(), output, &reference_);
      if (judgement) note_saturation(values_.saturation(key_), *judgement);
      return judgement;
    }
    // A quantised output is judged before it is quantised, and then byte by byte (§9).
    const Tensor* unquantised = find_tensor(output, "output_unquantized");
    const Tensor* scales = find_tensor(output, "output_scales");
    if (unquantised == nullptr || scales == nullptr) {
      fail(ErrorKind::kInternal, "{} of a quantised output was not handed in",
           unquantised == nullptr ? "output_unquantized" : "output_scales");
    }
    Problem plain = values_.problem();
    plain.output_quant = {};
    PipelineOutput before;
    before.output = *unquantised;
    before.lse = output.lse;
    before.more = output.more;
    std::optional<Judgement> judgement = judge_values(values_, key_, plain, before, &reference_);
    if (!judgement) return std::nullopt;
    const ReferenceOutput* exact = values_.reference(unquantised_key(key_));
    if (exact == nullptr) return std::nullopt;
    judge_quantised_output(values_.problem(), {*unquantised, output.output, *scales}, *exact,
                           *judgement);
    note_saturation(values_.saturation(key_), *judgement);
    return judgement;
  }

  std::optional<std::vector<Mutant>> unseen_mistakes(
      const PipelineOutput& output, const std::optional<std::vector<Mutant>>& candidates) override {
    Problem plain = values_.problem();
    plain.output_quant = {};
    const Tensor* unquantised = find_tensor(output, "output_unquantized");
    PipelineOutput before;
    before.output = zeros_of_rows(unquantised != nullptr ? *unquantised : output.output, 1);
    const std::vector<std::int32_t> rows = mutant_rows(plain);
    return values_.unseen_mistakes(
        key_, {&plain, numerics_of(key_, plain, before), output.lse.has_value(), rows}, candidates);
  }

  std::optional<SampleVerdict> judge_sample(const PipelineOutput& output,
                                            std::uint64_t nonce) override {
    if (!cache_) return SampleVerdict{};  // REFERENCE
    const Problem& problem = values_.problem();
    const RedrawBlocks blocks =
        RedrawBlocks::of_cache(problem, cache_->block_table, page_tokens(problem));
    PipelineOutput before;
    const Tensor* unquantised = find_tensor(output, "output_unquantized");
    before.output = Tensor::view(unquantised != nullptr ? *unquantised : output.output);
    before.lse = output.lse;
    before.declared_lse = output.declared_lse;
    const RedrawBlocks::Sources sources = blocks.sources(nonce);
    const MlaReferenceInputs of_batch = values_.sources(key_);  // once, before several threads ask
    SampleLook::Ways ways;
    ways.by_reference = [&](const JudgedRequest& one, const ReferenceOptions& options,
                            const ScreenTable& screened) {
      Problem alone = problem_of_heads(problem_of_request(problem, one.request), one.heads);
      alone.output_quant = {};
      const std::vector<MovedRows> moved = blocks.moved_rows(one.request, sources);
      MlaInputs inputs = redrawn_request(values_.inputs(), one, nonce, moved);
      keep_heads(one.heads, of_batch, inputs);
      MlaValues values(alone, std::move(inputs), one.rows, options);
      if (key_.stored) values.adopt_stored(*key_.stored, stored_of(one.request, moved));
      // Its rows are what they are in the batch: decodes or not.
      MlaReferenceKey key = key_;
      const bool is_decode = one.first_row < key_.num_decode_tokens;
      key.num_decode_tokens = is_decode ? one.num_rows : 0;
      key.quantised_query = key_.quantised_query && is_decode;
      return judge_values(values, key, alone, output_of_request(before, one), nullptr, &screened);
    };
    // What a second cache gives is looked at by the reference alone.
    if (values_.inputs().extra.empty()) {
      ways.by_screening = [&](std::span<const std::int32_t> rows) {
        return screen_sample(before.output, nonce, blocks, sources, rows);
      };
    }
    ways.suspicious = [&](const ScreenTable& table) { return suspicious(before, table); };
    return look_.judge(problem, values_.options(), ways);
  }

  void add_tensors(const PipelineOutput& output, TensorList& tensors) const override {
    const Problem& problem = values_.problem();
    const MlaInputs& inputs = values_.inputs();
    tensors.own("query", first_rows(inputs.query, inputs.num_tokens()));
    if (calculates_kv_scales(problem)) tensors.own("kv_scales", kv_scales_of(problem));
    tensors.borrow("kv_c", inputs.kv_c);
    tensors.borrow("k_pe", inputs.k_pe);
    tensors.borrow("w_uk", inputs.w_uk);
    tensors.borrow("w_uv", inputs.w_uv);
    if (!inputs.kv_b_proj.empty()) {
      tensors.borrow("kv_b_proj", inputs.kv_b_proj);
      tensors.borrow("kv_b_proj_scale", inputs.kv_b_proj_scale);
    }
    if (problem.mla.sparse_topk) tensors.borrow("topk_indices", inputs.topk_indices);
    if (!inputs.topk_lengths.empty()) {
      tensors.own("topk_length", Tensor::from_i32(inputs.topk_lengths));
    }
    if (!inputs.extra.empty()) add_extra_tensors(inputs.extra, tensors);
    if (!inputs.sinks.empty()) tensors.own("sinks", Tensor::from_f32(inputs.sinks));
    tensors.own("query_start_loc", Tensor::from_i32(inputs.query_start_loc));
    tensors.own("seq_lens", Tensor::from_i32(inputs.seq_lens));
    if (key_.stored) {
      const StoredMlaCache& stored = values_.stored(*key_.stored);
      tensors.own("kv_c_dequantized", convert(stored.kv_c_dequantized, Dtype::kF32));
      tensors.own("k_pe_dequantized", convert(stored.k_pe_dequantized, Dtype::kF32));
    }
    if (plan_.quantised_query) {  // no rows without a decode
      tensors.own("latent_query_dequantized",
                  first_rows(values_.latent_query(key_.num_decode_tokens).dequantized,
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
  std::optional<ScreenTable> screen_sample(const Tensor& output, std::uint64_t nonce,
                                           const RedrawBlocks& blocks,
                                           const RedrawBlocks::Sources& sources,
                                           std::span<const std::int32_t> rows) {
    const MlaInputs& inputs = values_.inputs();
    const auto places = places_of_keys(inputs.key_start_loc, inputs.kv_c.dim(0), blocks, sources);
    if (!places) return std::nullopt;
    const Tensor query = redrawn_query(inputs.query, inputs.num_tokens(), nonce);
    Problem plain = values_.problem();
    plain.output_quant = {};
    const ScreenedOutput screened = screened_output(plain, output);
    // Where that is not much, latents are copied: prefills of keys that stand where they always do
    // can have them expanded, which is less work.
    constexpr std::size_t kMostCopied = std::size_t{256} << 20;
    if (key_.stored || inputs.kv_c.size_bytes() + inputs.k_pe.size_bytes() > kMostCopied) {
      return values_.screen_sample(key_, query, nullptr, *places, rows, screened);
    }
    Tensor kv_c = inputs.kv_c, k_pe = inputs.k_pe;
    for (std::size_t b = 0; b < inputs.seq_lens.size(); ++b) {
      std::vector<MovedRows> moved = blocks.moved_rows(static_cast<std::int64_t>(b), sources);
      for (MovedRows& some : moved) some.first += inputs.key_start_loc[b];
      move_rows(kv_c, inputs.kv_c, inputs.key_start_loc, moved);
      move_rows(k_pe, inputs.k_pe, inputs.key_start_loc, moved);
    }
    const LatentRows latents{kv_c, k_pe};
    return values_.screen_sample(key_, query, &latents, {}, rows, screened);
  }

  /// Rows of a timed sample, by the limits of the run that was validated.
  std::optional<std::vector<std::int32_t>> suspicious(const PipelineOutput& output,
                                                      const ScreenTable& table) {
    Problem plain = values_.problem();
    plain.output_quant = {};
    const Numerics numerics = numerics_of(key_, plain, output);
    Yardsticks validated;
    validated.reference = values_.reference(key_);
    if (validated.reference == nullptr) return std::nullopt;
    validated.emulation = values_.emulation(key_, emulation_rule(plain, numerics));
    if (validated.emulation == nullptr) return std::nullopt;
    const RowSample& sample = values_.screening().sample(values_.problem());
    return suspicious_rows({plain, numerics, output, sample, validated}, table);
  }

  /// Leaves these of the heads in the inputs of a request; `of_batch` has the weights as they are
  /// multiplied.
  static void keep_heads(const std::vector<int>& heads, const MlaReferenceInputs& of_batch,
                         MlaInputs& inputs) {
    if (heads.empty()) return;
    inputs.query = only_heads(inputs.query, 1, heads);
    inputs.w_uk = only_heads(*of_batch.w_uk, 0, heads);
    inputs.w_uv = only_heads(*of_batch.w_uv, 0, heads);
    inputs.kv_b_proj = inputs.kv_b_proj_scale = {};
    std::vector<float> sinks;
    for (const int head : heads) {
      if (!inputs.sinks.empty()) sinks.push_back(inputs.sinks[static_cast<std::size_t>(head)]);
    }
    inputs.sinks = std::move(sinks);
  }

  /// What a quantised cache holds for a request whose rows have moved, without codes: to quantise
  /// its keys anew takes far longer.
  StoredMlaCache stored_of(std::int64_t request, const std::vector<MovedRows>& moved) const {
    const StoredMlaCache& of_batch = values_.stored(*key_.stored);
    const MlaInputs& inputs = values_.inputs();
    const auto b = static_cast<std::size_t>(request);
    const auto rows_of = [&](const Tensor& tensor) {
      Tensor own = slice_rows(tensor, inputs.key_start_loc[b], inputs.seq_lens[b]);
      move_rows(own, tensor, inputs.key_start_loc, moved);
      return own;
    };
    return {{}, rows_of(of_batch.kv_c_dequantized), rows_of(of_batch.k_pe_dequantized)};
  }

  /// Of the second cache.
  void add_extra_tensors(const MlaExtraKeys& extra, TensorList& tensors) const {
    tensors.borrow("extra_kv_c", extra.kv_c);
    tensors.borrow("extra_k_pe", extra.k_pe);
    tensors.borrow("extra_topk_indices", extra.lists.indices);
    if (!extra.lists.lengths.empty()) {
      tensors.own("extra_topk_length", Tensor::from_i32(extra.lists.lengths));
    }
    if (key_.stored) {
      const StoredMlaCache& stored = values_.stored_extra(*key_.stored);
      tensors.own("extra_kv_c_dequantized", convert(stored.kv_c_dequantized, Dtype::kF32));
      tensors.own("extra_k_pe_dequantized", convert(stored.k_pe_dequantized, Dtype::kF32));
    }
    if (!extra_cache_) return;
    tensors.borrow("extra_kv_cache", extra_cache_->data);
    tensors.borrow("extra_block_table", extra_cache_->block_table);
  }

  static MlaCapability capability_of(const Backend& backend, const Problem& problem) {
    const MlaCapability* own = backend.mla_capability(problem);
    if (own != nullptr) return *own;
    if (backend.kernel_rules().reads_dequantised) return mla_reference_capability(problem);
    fail(ErrorKind::kInternal, "{} is no MLA backend", backend.name());
  }

  Numerics numerics_of(const MlaReferenceKey& key, const Problem& problem,
                       const PipelineOutput& output) const {
    Numerics numerics;
    numerics.output = output.output.dtype();
    numerics.probability = backend_.probability_dtype(problem);
    numerics.quantised_query = key.quantised_query || key.fp8_prefill;
    numerics.quantised_kv = key.stored.has_value();
    return numerics;
  }

  /// `saved`: where the reference goes that add_tensors() saves; null for a timed sample, of which
  /// `screened` is known.
  std::optional<Judgement> judge_values(MlaValues& values, const MlaReferenceKey& key,
                                        const Problem& problem, const PipelineOutput& output,
                                        const ReferenceOutput** saved,
                                        const ScreenTable* screened = nullptr) {
    const Numerics numerics = numerics_of(key, problem, output);
    Yardsticks yardsticks;
    yardsticks.reference = values.reference(key);
    if (saved != nullptr) *saved = yardsticks.reference;
    if (yardsticks.reference == nullptr) return std::nullopt;
    if (saved == nullptr) {
      check_agreement(*screened,
                      screen_by(*yardsticks.reference, screened_output(problem, output.output)));
      Judgement strict = judge_by_floors(problem, numerics, output, *yardsticks.reference);
      if (strict.reasons.empty()) return strict;
    }
    yardsticks.emulation = values.emulation(key, emulation_rule(problem, numerics));
    if (yardsticks.emulation == nullptr) return std::nullopt;
    if (numerics.quantised_kv) {
      yardsticks.unquantised = values.reference(unquantised_key(key));
      if (yardsticks.unquantised == nullptr) return std::nullopt;
    }
    const EmulationRule rule = emulation_rule(problem, numerics);
    const RowSample& sample = values.screening().sample(values.problem());
    const std::optional<ScreenTable> table =
        values.screen(key, screened_output(problem, output.output));
    std::optional<MlaReferenceKey> unquantised;
    if (numerics.quantised_kv) unquantised = unquantised_key(key);
    ScreenedTrial trial{problem, numerics, output, sample, yardsticks};
    trial.emulate_as_run = [&](const std::vector<std::int32_t>& rows,
                               const std::vector<int>& heads) {
      return values.emulate_as_run(key, rule, rows, heads);
    };
    if (key.quantised_query) {
      trial.other_codes = [&](const std::vector<std::int32_t>& rows,
                              const std::vector<int>& heads) {
        return values.other_codes(key, rule, rows, heads);
      };
    }
    std::optional<Judgement> judgement = judge_screened(
        trial, table ? &*table : nullptr, [&](const std::vector<std::int32_t>& rows) {
          return values.yardsticks(key, rule, unquantised, rows);
        });
    if (!judgement) return std::nullopt;
    judgement->sample_seed = values.screening().drawn_seed();
    // Of a timed sample only the output is kept; ranks share the decodes alone (semantics §8.7).
    const bool has_ranks =
        problem.dcp.world_size > 1 && saved != nullptr && cache_ && key.num_decode_tokens > 0;
    if (!has_ranks) return judgement;
    RankWays ways;
    ways.of_rank = [&](int rank) {
      return Yardsticks{values.rank_reference(key, rank), values.rank_emulation(key, rank, rule)};
    };
    ways.of_rows = [&](int rank, const std::vector<std::int32_t>& rows) {
      return values.rank_yardsticks(key, rank, rule, rows);
    };
    ways.screen = [&](int rank, const ScreenedOutput& part) {
      return values.screen_rank(key, rank, part);
    };
    if (key.quantised_query) {
      ways.other_codes = [&](int rank) -> OtherCodes {
        return [&, rank](const std::vector<std::int32_t>& rows, const std::vector<int>& heads) {
          return values.rank_other_codes(key, rank, rule, rows, heads);
        };
      };
    }
    const bool done = judge_ranks(values.problem(), output, ways, *judgement);
    if (!done) return std::nullopt;
    return judgement;
  }

  static MlaReferenceKey unquantised_key(const MlaReferenceKey& of) {
    MlaReferenceKey key;
    key.num_decode_tokens = of.num_decode_tokens;
    return key;
  }

  MlaValues& values_;
  const Backend& backend_;
  MlaCapability capability_;
  MlaPlan plan_;
  MlaReferenceKey key_;
  const Tensor* entries_ = nullptr;  // what a correct write stores
  std::optional<MlaCache> cache_;    // nothing for REFERENCE, which reads values
  std::optional<MlaCache> extra_cache_;
  MlaReferenceInputs sources_;
  BackendInputs inputs_;
  SampleLook look_;
  const ReferenceOutput* reference_ = nullptr;  // set by judge()
};

}  // namespace

bool MlaCase::move_on(const Problem& problem) {
  if (!values_.move_on(problem)) return false;
  problem_ = &problem;
  return true;
}

std::unique_ptr<CaseRun> MlaCase::start(const Backend& backend) {
  return std::make_unique<MlaCaseRun>(values_, backend);
}

}  // namespace attnbench
