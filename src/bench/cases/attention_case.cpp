// A backend's turn at a case of queries, keys and values, and the tensors that are saved of it
// under the names of contract section 5.
#include "bench/cases/attention_case.h"

#include <cstring>
#include <utility>

#include "bench/cases/sample_look.h"
#include "bench/cases/single_request.h"
#include "bench/judge/judge.h"
#include "bench/judge/ranks.h"
#include "bench/samples/redrawn_request.h"
#include "bench/save.h"
#include "core/error.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/cache/check_cache.h"
#include "inputs/cache/kv_scales.h"
#include "metadata/kv_layout.h"

namespace attnbench {
namespace {

void add_inputs(const BackendInputs& source, TensorList& tensors) {
  const AttentionInputs& inputs = *source.inputs;
  const StoredQuery& query = source.query;
  tensors.own("query", first_rows(query.query, inputs.num_tokens()));
  if (query.dequantized) {
    tensors.own("query_dequantized", first_rows(*query.dequantized, inputs.num_tokens()));
  }
  if (!query.scales.empty()) {
    tensors.own("query_scales", first_rows(query.scales, inputs.num_tokens()));
    tensors.own("query_unquantized", first_rows(inputs.query, inputs.num_tokens()));
  }
  tensors.borrow("key", inputs.key);
  tensors.borrow("value", inputs.value);
  tensors.own("query_start_loc", Tensor::from_i32(inputs.query_start_loc));
  tensors.own("seq_lens", Tensor::from_i32(inputs.seq_lens));
  if (!inputs.sinks.empty()) tensors.own("sinks", Tensor::from_f32(inputs.sinks));
  if (!inputs.alibi_slopes.empty()) {
    tensors.own("alibi_slopes", Tensor::from_f32(inputs.alibi_slopes));
  }
}

/// Per-token-head scales of every slot, f32 [NB, bs, Hk], copied out of the cache's cells.
Tensor scale_cache(const Problem& problem, const ScaleView& view, std::int64_t offset,
                   const Tensor& cache) {
  const KvCacheSpec& spec = problem.kv_cache;
  Tensor scales(Dtype::kF32, {spec.num_blocks, spec.block_size, problem.attention.num_kv_heads});
  float* next = scales.data<float>();
  for (std::int64_t block = 0; block < spec.num_blocks; ++block) {
    for (std::int64_t slot = 0; slot < spec.block_size; ++slot) {
      for (std::int64_t head = 0; head < problem.attention.num_kv_heads; ++head) {
        const std::int64_t index =
            offset + block * view.block_stride + slot * view.slot_stride + head * view.head_stride;
        std::memcpy(next++, cache.bytes() + index * static_cast<std::int64_t>(sizeof(float)),
                    sizeof(float));
      }
    }
  }
  return scales;
}

/// The pair of kv_cache_scale (§11.1): keys f32 [NB, Hk, bs], values f32 [Hk, D] at level 1.
void add_int8_scales(const Problem& problem, const BackendInputs& source,
                     const PipelineOutput& output, TensorList& tensors) {
  const Tensor& before = source.cache->key_scale_cache;
  tensors.borrow("key_scale_cache", output.key_scale_cache ? *output.key_scale_cache : before);
  const std::vector<float>& value_scale = source.inputs->value_channel_scale;
  if (value_scale.empty()) return;
  const AttentionSpec& a = problem.attention;
  tensors.own("value_scale_cache", Tensor::from_f32(value_scale, {a.num_kv_heads, a.v_head_size}));
}

void add_cache(const Problem& problem, const BackendInputs& source, const PipelineOutput& output,
               TensorList& tensors) {
  if (calculates_kv_scales(problem)) {
    tensors.own("kv_scales", kv_scales_of(problem));
    tensors.own("query_unquantized", first_rows(source.inputs->query, source.inputs->num_tokens()));
  }
  if (source.stored != nullptr && cache_is_quantised(problem)) {
    tensors.own("key_dequantized", convert(source.stored->key_dequantized, Dtype::kF32));
    tensors.own("value_dequantized", convert(source.stored->value_dequantized, Dtype::kF32));
  }
  if (!source.cache) return;
  const PagedCache& before = *source.cache;
  const Tensor& data = output.cache ? *output.cache : before.data;
  tensors.borrow("kv_cache", data);
  tensors.borrow("block_table", before.block_table);
  tensors.borrow("slot_mapping", before.slot_mapping);
  if (problem.kv_cache.int8_level > 0) add_int8_scales(problem, source, output, tensors);
  if (!is_per_token_head(problem.kv_cache.dtype)) return;
  const ScaleView view = per_token_head_scale_view(before.layout);
  tensors.own("key_scale_cache", scale_cache(problem, view, view.key_offset, data));
  tensors.own("value_scale_cache", scale_cache(problem, view, view.value_offset, data));
}

class AttentionCaseRun final : public CaseRun {
 public:
  AttentionCaseRun(AttentionValues& values, const Backend& backend)
      : values_(values),
        backend_(backend),
        inputs_(values.backend_inputs(backend)),
        look_(values.screening()) {}

  std::unique_ptr<Pipeline> prepare(Ops& ops) override {
    return backend_.prepare(values_.problem(), inputs_, ops);
  }

  std::string check_stored(const PipelineOutput& output) override {
    if (!inputs_.cache || !output.cache) return "";
    const std::string wrong =
        check_cache(values_.problem(), *inputs_.stored, *inputs_.cache, *output.cache,
                    output.key_scale_cache ? &*output.key_scale_cache : nullptr);
    return wrong.empty() ? "" : "cache write: " + wrong;
  }

  std::optional<Judgement> judge(const PipelineOutput& output) override {
    std::optional<Judgement> judgement = judge_by(values_, output, &reference_);
    if (judgement) note_saturation(values_.saturation(values_.key_of(backend_)), *judgement);
    return judgement;
  }

  std::optional<SampleVerdict> judge_sample(const PipelineOutput& output,
                                            std::uint64_t nonce) override {
    const Problem& problem = values_.problem();
    const RedrawBlocks blocks =
        inputs_.cache
            ? RedrawBlocks::of_cache(problem, inputs_.cache->block_table, page_tokens(problem))
            : RedrawBlocks::of_rows(problem);
    const RedrawBlocks::Sources sources = blocks.sources(nonce);
    SampleLook::Ways ways;
    ways.by_reference = [&](const JudgedRequest& one, const ReferenceOptions& options,
                            const ScreenTable& screened) {
      const std::vector<MovedRows> moved = blocks.moved_rows(one.request, sources);
      AttentionValues values(problem_of_request(problem, one.request),
                             redrawn_rows(*inputs_.inputs, one, nonce, moved), one, backend_,
                             options, inputs_.stored);
      return judge_by(values, output_of_request(output, one), nullptr, &screened);
    };
    ways.by_screening = [&](std::span<const std::int32_t> rows) -> std::optional<ScreenTable> {
      const AttentionInputs& inputs = *inputs_.inputs;
      const auto places = places_of_keys(inputs.key_start_loc, inputs.key.dim(0), blocks, sources);
      if (!places) return std::nullopt;
      return values_.screen_sample(values_.key_of(backend_), backend_, redrawn_batch(inputs, nonce),
                                   *places, rows, screened_output(problem, output.output));
    };
    ways.suspicious = [&](const ScreenTable& table) { return suspicious(output, table); };
    return look_.judge(problem, values_.options(), ways);
  }

  std::optional<std::vector<Mutant>> unseen_mistakes(
      const PipelineOutput& output, const std::optional<std::vector<Mutant>>& candidates) override {
    const ReferenceKey key = values_.key_of(backend_);
    return values_.unseen_mistakes(key, numerics_of(key, output), output.lse.has_value(),
                                   candidates);
  }

  std::optional<AloneRun> run_alone(Ops& ops) override {
    const std::optional<std::int64_t> request = request_to_repeat(values_.problem());
    if (!request) return std::nullopt;
    const Problem problem = problem_of_request(values_.problem(), *request);
    AttentionValues values(problem, inputs_of_request(*inputs_.inputs, *request));
    const BackendInputs alone = values.backend_inputs(backend_);
    std::unique_ptr<Pipeline> pipeline;
    try {
      pipeline = backend_.prepare(problem, alone, ops);
    } catch (const Error& error) {
      // A user's backend need not take every request of its batches by itself.
      if (backend_.plugin() == nullptr || error.kind() != ErrorKind::kUnsupported) throw;
      return std::nullopt;
    }
    pipeline->poison_outputs();
    if (!run_steps(*pipeline)) return std::nullopt;
    ops.synchronize();
    return AloneRun{*request, pipeline->read_output(false)};
  }

  BatchInvariance compare_alone(std::int64_t request, const PipelineOutput& in_batch,
                                const PipelineOutput& alone) override {
    if (request_to_repeat(values_.problem()) != request) {
      fail(ErrorKind::kInternal, "request {} is not run by itself", request);
    }
    const auto first_row = inputs_.inputs->query_start_loc[static_cast<std::size_t>(request)];
    return attnbench::compare_alone(request, in_batch.output, first_row, alone.output);
  }

  void add_tensors(const PipelineOutput& output, TensorList& tensors) const override {
    const Problem& problem = values_.problem();
    add_inputs(inputs_, tensors);
    add_cache(problem, inputs_, output, tensors);
    tensors.borrow("output", output.output);
    if (output.output.dtype() != problem.attention.dtype) {
      const auto scale = static_cast<float>(problem.output_quant.scale);
      tensors.own("output_scales", Tensor::from_f32(std::vector<float>{scale}));
    }
    if (output.lse) tensors.borrow("lse", *output.lse);
    for (const auto& [name, tensor] : output.more) tensors.borrow(name, tensor);
    if (reference_ != nullptr) add_reference_tensors(problem.num_tokens(), *reference_, tensors);
  }

 private:
  Numerics numerics_of(const ReferenceKey& key, const PipelineOutput& output) const {
    const Problem& problem = values_.problem();
    Numerics numerics;
    numerics.output = output.output.dtype();
    numerics.probability = backend_.probability_dtype(problem);
    // int8 queries fall under the row of quantised K and V, e4m3 ones have their own.
    numerics.quantised_query = key.quantised_query && problem.kv_cache.int8_level == 0;
    numerics.quantised_kv = key.store_rule.has_value();
    return numerics;
  }

  /// Rows of a timed sample, by the limits of the run that was validated.
  std::optional<std::vector<std::int32_t>> suspicious(const PipelineOutput& output,
                                                      const ScreenTable& table) {
    const Problem problem = values_.judged_problem();
    const ReferenceKey key = values_.key_of(backend_);
    const Numerics numerics = numerics_of(key, output);
    Yardsticks validated;
    validated.reference = values_.reference(key);
    if (validated.reference == nullptr) return std::nullopt;
    validated.emulation = values_.emulation(key, emulation_rule(problem, numerics));
    if (validated.emulation == nullptr) return std::nullopt;
    const RowSample& sample = values_.screening().sample(problem);
    return suspicious_rows({problem, numerics, output, sample, validated}, table);
  }

  /// `saved`: where the reference goes that add_tensors() saves; null for a timed sample, of which
  /// `screened` is known.
  std::optional<Judgement> judge_by(AttentionValues& values, const PipelineOutput& output,
                                    const ReferenceOutput** saved,
                                    const ScreenTable* screened = nullptr) {
    const Problem problem = values.judged_problem();
    const ReferenceKey key = values.key_of(backend_);
    const Numerics numerics = numerics_of(key, output);

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
    const bool quantised = numerics.quantised_query || numerics.quantised_kv ||
                           problem.output_quant.type != OutputQuantType::kNone;
    if (quantised) {
      yardsticks.unquantised = values.reference(AttentionValues::unquantised(key));
      if (yardsticks.unquantised == nullptr) return std::nullopt;
    }
    const EmulationRule rule = emulation_rule(problem, numerics);
    const RowSample& sample = values.screening().sample(problem);
    const std::optional<ScreenTable> table =
        values.screen(key, screened_output(problem, output.output));
    std::optional<Judgement> judgement =
        judge_screened({problem, numerics, output, sample, yardsticks}, table ? &*table : nullptr,
                       [&](const std::vector<std::int32_t>& rows) {
                         return values.yardsticks(key, rule, quantised, rows);
                       });
    if (!judgement) return std::nullopt;
    judgement->sample_seed = values.screening().drawn_seed();
    // Of a timed sample only the output is kept.
    const bool has_ranks = problem.dcp.world_size > 1 && saved != nullptr &&
                           !backend_.kernel_rules().reads_dequantised;
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
    const bool done = judge_ranks(problem, output, ways, *judgement);
    if (!done) return std::nullopt;
    return judgement;
  }

  /// False: the kernel that the backend is held to does not fit, since one request may go another
  /// way than its batch (a decode has its keys split, a batch with prefills does not).
  bool run_steps(const Pipeline& pipeline) const {
    try {
      for (const Step& step : pipeline.steps()) step.run();
    } catch (const Error& error) {
      if (backend_.forced_kernel().empty() || error.kind() != ErrorKind::kUnsupported) throw;
      return false;
    }
    return true;
  }

  AttentionValues& values_;
  const Backend& backend_;
  BackendInputs inputs_;
  SampleLook look_;
  const ReferenceOutput* reference_ = nullptr;  // set by judge()
};

}  // namespace

bool AttentionCase::move_on(const Problem& problem) {
  if (!values_.move_on(problem)) return false;
  problem_ = &problem;
  return true;
}

std::unique_ptr<CaseRun> AttentionCase::start(const Backend& backend) {
  return std::make_unique<AttentionCaseRun>(values_, backend);
}

}  // namespace attnbench
