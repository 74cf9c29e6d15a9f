// Scales, codes and references of the multimodal encoder, a backend's turn at its case, and the
// tensors that are saved of it. Notices gather on the way: the scales are made before the list of
// notices is complete.
#include "bench/cases/encoder_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "backends/reference_sources.h"
#include "bench/cases/probe.h"
#include "bench/cases/sample_look.h"
#include "bench/cases/single_request.h"
#include "bench/judge/judge.h"
#include "bench/samples/redrawn_request.h"
#include "bench/save.h"
#include "inputs/files/encoder_scale_file.h"
#include "metrics/byte_verdicts.h"
#include "reference/quantise/amax_history.h"

namespace attnbench {
namespace {

/// Q, K and V without padding rows.
std::array<StridedTensor, 3> sources_of(const AttentionInputs& inputs) {
  std::array<StridedTensor, 3> sources{view_of(inputs.query), view_of(inputs.key),
                                       view_of(inputs.value)};
  sources[0].shape[0] = inputs.num_tokens();
  return sources;
}

std::int64_t num_elements(const StridedTensor& tensor) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : tensor.shape) elements *= extent;
  return elements;
}

std::array<float, 3> amax_of(const Problem& problem, const AttentionInputs& inputs) {
  const std::array<StridedTensor, 3> sources = sources_of(inputs);
  std::array<float, 3> amax{};
  for (std::size_t i = 0; i < 3; ++i) amax[i] = tensor_amax(sources[i], problem.mm_encoder.amax);
  return amax;
}

class EncoderCaseRun final : public CaseRun {
 public:
  EncoderCaseRun(EncoderValues& values, const Backend& backend)
      : values_(values), backend_(backend), look_(values.screening()) {
    inputs_.mm = &values_.inputs();
    inputs_.inputs = &inputs_.mm->tensors;
    inputs_.query = {inputs_.inputs->query, std::nullopt, 1.0f, {}};
  }

  std::unique_ptr<Pipeline> prepare(Ops& ops) override {
    // Why only then: the scales of a tensor with NaN are refused by the pipeline, in its words.
    if (is_fp8_encoder(values_.problem()) && backend_.kernel_rules().reads_dequantised)
      give_dequantised();
    return backend_.prepare(values_.problem(), inputs_, ops);
  }

  std::string check_stored(const PipelineOutput& output) override {
    if (output.more.empty()) return "";
    const std::array<float, 3>& scales = values_.scales().scale;
    for (const auto& [name, tensor] : output.more) {
      for (std::size_t i = 0; i < 3; ++i) {
        if (name == "fp8_scales" && tensor.at(static_cast<std::int64_t>(i)) != scales[i]) {
          return fmt::format("fp8 scale of {} is {}, expected {}", kEncoderTensorNames[i],
                             tensor.at(static_cast<std::int64_t>(i)), scales[i]);
        }
        if (name != std::string(kEncoderTensorNames[i]) + "_codes") continue;
        const std::string wrong = first_difference(tensor, values_.forward().codes[i]);
        if (!wrong.empty())
          return fmt::format("fp8 codes of {}: {}", kEncoderTensorNames[i], wrong);
      }
    }
    return "";
  }

  std::optional<Judgement> judge(const PipelineOutput& output) override {
    const Problem& problem = values_.problem();
    const bool quantised = is_fp8_encoder(problem);
    const AttentionMath math = resolve_attention_math(problem, backend_.kernel_rules());
    const Numerics numerics = numerics_of(output);
    Yardsticks yardsticks;
    yardsticks.reference = reference_ = values_.result(math, quantised, std::nullopt);
    yardsticks.emulation = values_.result(math, quantised, emulation_rule(problem, numerics));
    if (quantised) yardsticks.unquantised = values_.result(math, false, std::nullopt);
    const bool stopped = yardsticks.reference == nullptr || yardsticks.emulation == nullptr ||
                         (quantised && yardsticks.unquantised == nullptr);
    if (stopped) return std::nullopt;
    const EmulationRule rule = emulation_rule(problem, numerics);
    const RowSample& sample = values_.screening().sample(problem);
    const std::optional<ScreenTable> table =
        values_.screen(math, quantised, screened_output(problem, output.output));
    std::optional<Judgement> judgement =
        judge_screened({problem, numerics, output, sample, yardsticks}, table ? &*table : nullptr,
                       [&](const std::vector<std::int32_t>& rows) {
                         return values_.yardsticks(math, quantised, rule, rows);
                       });
    if (!judgement) return std::nullopt;
    judgement->sample_seed = values_.screening().drawn_seed();
    if (quantised) note_saturation(values_.saturation(), *judgement);
    return judgement;
  }

  std::optional<std::vector<Mutant>> unseen_mistakes(
      const PipelineOutput& output, const std::optional<std::vector<Mutant>>& candidates) override {
    const AttentionMath math = resolve_attention_math(values_.problem(), backend_.kernel_rules());
    return values_.unseen_mistakes(math, numerics_of(output), output.lse.has_value(), candidates);
  }

  std::optional<SampleVerdict> judge_sample(const PipelineOutput& output,
                                            std::uint64_t nonce) override {
    const Problem& batch = values_.problem();
    const bool quantised = is_fp8_encoder(batch);
    // Scales may be those of the largest key, so that keys stay where there are scales.
    const RedrawBlocks blocks = RedrawBlocks::of_rows(batch);
    const RedrawBlocks::Sources sources =
        quantised ? RedrawBlocks::Sources{} : blocks.sources(nonce);
    if (quantised) values_.forward();  // once, before several threads ask
    SampleLook::Ways ways;
    ways.by_reference = [&](const JudgedRequest& one, const ReferenceOptions& options,
                            const ScreenTable& screened) {
      const std::vector<MovedRows> moved = blocks.moved_rows(one.request, sources);
      return judge_request(one, redrawn_rows(*inputs_.inputs, one, nonce, moved),
                           output_of_request(output, one), options, screened);
    };
    ways.by_screening = [&](std::span<const std::int32_t> rows) -> std::optional<ScreenTable> {
      const AttentionInputs& inputs = *inputs_.inputs;
      const auto places = places_of_keys(inputs.key_start_loc, inputs.key.dim(0), blocks, sources);
      if (!places) return std::nullopt;
      const AttentionMath math = resolve_attention_math(batch, backend_.kernel_rules());
      return values_.screen_sample(math, redrawn_batch(inputs, nonce), *places, rows,
                                   screened_output(batch, output.output));
    };
    ways.suspicious = [&](const ScreenTable& table) { return suspicious(output, table); };
    return look_.judge(batch, values_.options(), ways);
  }

  void add_tensors(const PipelineOutput& output, TensorList& tensors) const override {
    const AttentionInputs& inputs = *inputs_.inputs;
    tensors.own("query", first_rows(inputs.query, inputs.num_tokens()));
    tensors.borrow("key", inputs.key);
    tensors.borrow("value", inputs.value);
    tensors.own("query_start_loc", Tensor::from_i32(inputs.query_start_loc));
    tensors.own("seq_lens", Tensor::from_i32(inputs.seq_lens));
    if (inputs_.mm->cu_seqlens) {
      tensors.own("cu_seqlens", Tensor::from_i32(*inputs_.mm->cu_seqlens));
    }
    if (is_fp8_encoder(values_.problem())) {
      for (std::size_t i = 0; i < 3; ++i) {
        tensors.borrow(std::string(kEncoderTensorNames[i]) + "_dequantized",
                       values_.forward().dequantized[i]);
      }
    }
    tensors.borrow("output", output.output);
    if (output.lse) tensors.borrow("lse", *output.lse);
    for (const auto& [name, tensor] : output.more) tensors.borrow(name, tensor);
    if (reference_ != nullptr) {
      add_reference_tensors(values_.problem().num_tokens(), *reference_, tensors);
    }
  }

 private:
  Numerics numerics_of(const PipelineOutput& output) const {
    const Problem& problem = values_.problem();
    Numerics numerics;
    numerics.output = output.output.dtype();
    numerics.probability = backend_.probability_dtype(problem);
    numerics.quantised_query = numerics.quantised_kv = is_fp8_encoder(problem);
    return numerics;
  }

  /// Rows of a timed sample, by the limits of the run that was validated.
  std::optional<std::vector<std::int32_t>> suspicious(const PipelineOutput& output,
                                                      const ScreenTable& table) {
    const Problem& problem = values_.problem();
    const bool quantised = is_fp8_encoder(problem);
    const AttentionMath math = resolve_attention_math(problem, backend_.kernel_rules());
    const Numerics numerics = numerics_of(output);
    Yardsticks validated;
    validated.reference = values_.result(math, quantised, std::nullopt);
    validated.emulation = values_.result(math, quantised, emulation_rule(problem, numerics));
    if (validated.reference == nullptr || validated.emulation == nullptr) return std::nullopt;
    const RowSample& sample = values_.screening().sample(problem);
    return suspicious_rows({problem, numerics, output, sample, validated}, table);
  }

  std::optional<Judgement> judge_request(const JudgedRequest& one, const RedrawnRows& redrawn,
                                         const PipelineOutput& output,
                                         const ReferenceOptions& options,
                                         const ScreenTable& screened) {
    const Problem alone = problem_of_request(values_.problem(), one.request);
    const Problem problem = problem_of_heads(alone, one.heads);
    const bool quantised = is_fp8_encoder(problem);
    const AttentionMath math = resolve_attention_math(alone, backend_.kernel_rules());
    const Numerics numerics = numerics_of(output);
    ReferenceInputs source = reference_sources(redrawn.inputs);
    source.moved_keys = redrawn.moved;
    source.query_is_of_rows = true;
    source.heads = one.heads;
    MmForward forward;
    if (quantised) {
      // Keys and values are those of the case; only rows of the query are new.
      const StridedTensor query = view_of(redrawn.inputs.query);
      forward = quantise_mm_forward({query, query, query}, values_.scales());
      source.query = &forward.dequantized[0];
      source.key = &values_.forward().dequantized[1];
      source.value = &values_.forward().dequantized[2];
      source.query_scale = values_.scales().scale[0];
      source.key_scales = {&values_.scales().scale[1], 1};
    }
    const auto reference = reference_attention(math, source, one.rows, options);
    if (!reference) return std::nullopt;
    check_agreement(screened, screen_by(*reference, screened_output(problem, output.output)));
    Judgement strict = judge_by_floors(problem, numerics, output, *reference);
    if (strict.reasons.empty()) return strict;
    const auto emulation =
        emulate_attention(math, source, emulation_rule(problem, numerics), one.rows, options);
    if (!emulation) return std::nullopt;
    return attnbench::judge(problem, numerics, output, {&*reference, &*emulation, nullptr});
  }

  /// What the reference reads (§15.1).
  void give_dequantised() {
    const MmForward& forward = values_.forward();
    inputs_.query.dequantized = forward.dequantized[0];
    dequantised_.key_dequantized = forward.dequantized[1];
    dequantised_.value_dequantized = forward.dequantized[2];
    inputs_.stored = &dequantised_;
  }

  EncoderValues& values_;
  const Backend& backend_;
  StoredKv dequantised_;  // where the backend reads that
  BackendInputs inputs_;
  SampleLook look_;
  const ReferenceOutput* reference_ = nullptr;  // set by judge()
};

}  // namespace

const MmInputs& EncoderValues::inputs() {
  if (!inputs_) inputs_ = make_mm_inputs(problem_);
  return *inputs_;
}

const MmScales& EncoderValues::scales() {
  if (!scales_) scales_ = problem_.mm_encoder.fp8_scale_path ? loaded_scales() : dynamic_scales();
  return *scales_;
}

const MmForward& EncoderValues::forward() {
  if (!forward_) forward_ = quantise_mm_forward(sources_of(inputs().tensors), scales());
  return *forward_;
}

const std::vector<std::string>& EncoderValues::notices() {
  if (notices_) return *notices_;
  const std::vector<std::string> of_inputs = inputs().tensors.notices;
  notices_.emplace(of_inputs);
  if (is_fp8_encoder(problem_)) {
    scales();
    add_saturation_notices();
  }
  return *notices_;
}

MmScales EncoderValues::loaded_scales() {
  const std::string& path = *problem_.mm_encoder.fp8_scale_path;
  const MmScaleFile file = read_mm_scales(path);
  for (const std::string& layer : problem_.mm_encoder.layer_names) {
    require_mm_scales(file, layer, path);
  }
  if (notices_) {
    notices_->insert(notices_->end(), file.notices.begin(), file.notices.end());
  }
  const MmLayerScales& layer =
      require_mm_scales(file, problem_.mm_encoder.layer_names.front(), path);
  const std::array<double, 3> loaded{layer.q, layer.k, layer.v};
  MmScales scales;
  for (std::size_t i = 0; i < 3; ++i) {
    scales.scale[i] = static_cast<float>(loaded[i]);
    scales.skip[i] = loaded[i] == 1.0;
  }
  return scales;
}

/// The measured forward is the first one, or, when a scale file is saved, the one that wraps the
/// history.
MmScales EncoderValues::dynamic_scales() {
  AmaxHistory history;
  if (problem_.mm_encoder.fp8_scale_save_path) {
    for (int step = 0; step < kAmaxHistoryLength - 1; ++step) {
      history.update(amax_of(problem_, make_mm_observation(problem_, 0, step)));
    }
  }
  history.update(amax_of(problem_, inputs().tensors));
  return {history.scales(), {}};
}

Saturation EncoderValues::saturation() {
  const std::array<StridedTensor, 3> sources = sources_of(inputs().tensors);
  std::array<double, 3> shares{};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto elements = static_cast<double>(num_elements(sources[i]));
    if (elements > 0) shares[i] = static_cast<double>(forward().saturated[i]) / elements;
  }
  return {shares[0], shares[1], shares[2]};
}

void EncoderValues::add_saturation_notices() {
  const MmScales& used = scales();
  for (const float scale : used.scale) {
    if (!std::isfinite(scale)) return;  // an error of the run, which names it
  }
  const std::array<StridedTensor, 3> sources = sources_of(inputs().tensors);
  for (std::size_t i = 0; i < 3; ++i) {
    if (forward().saturated[i] == 0) continue;
    const std::int64_t elements = num_elements(sources[i]);
    const bool is_signed =
        !problem_.mm_encoder.fp8_scale_path && problem_.mm_encoder.amax == AmaxKind::kSigned;
    notices_->push_back(fmt::format("{}/{}: {} of {} elements of {} saturate in fp8{}",
                                    problem_.scenario, problem_.case_name, forward().saturated[i],
                                    elements, kEncoderTensorNames[i],
                                    is_signed ? " (mm_encoder.amax: signed)" : ""));
  }
}

ReferenceInputs EncoderValues::reference_inputs(bool quantised) {
  ReferenceInputs result = reference_sources(inputs().tensors);
  if (!quantised) return result;
  result.query = &forward().dequantized[0];
  result.key = &forward().dequantized[1];
  result.value = &forward().dequantized[2];
  result.query_scale = scales().scale[0];
  result.key_scales = {&scales().scale[1], 1};
  return result;
}

const ReferenceOutput* EncoderValues::result(const AttentionMath& math, bool quantised,
                                             const std::optional<EmulationRule>& rule) {
  return computed_.get({math, quantised, rule}, [&] {
    const std::vector<std::int32_t>& rows = screening_.sample(problem_).rows;
    const ReferenceInputs source = reference_inputs(quantised);
    return rule ? emulate_attention(math, source, *rule, rows, options_)
                : reference_attention(math, source, rows, options_);
  });
}

std::optional<OwnedYardsticks> EncoderValues::yardsticks(const AttentionMath& math, bool quantised,
                                                         const EmulationRule& rule,
                                                         const std::vector<std::int32_t>& rows) {
  const ReferenceInputs source = reference_inputs(quantised);
  auto reference = reference_attention(math, source, rows, options_);
  if (!reference) return std::nullopt;
  auto emulation = emulate_attention(math, source, rule, rows, options_);
  if (!emulation) return std::nullopt;
  OwnedYardsticks result{*std::move(reference), *std::move(emulation), std::nullopt};
  if (!quantised) return result;
  result.unquantised = reference_attention(math, reference_inputs(false), rows, options_);
  if (!result.unquantised) return std::nullopt;
  return result;
}

std::optional<ScreenTable> EncoderValues::screen(const AttentionMath& math, bool quantised,
                                                 const ScreenedOutput& output) {
  const ReferenceInputs source = reference_inputs(quantised);
  Screening::Ways ways;
  ways.on_device = [&](RowScreen& screen) { return screen.compare(math, source, output); };
  ways.on_cpu = [&](const std::vector<std::int32_t>& rows) {
    return in_float32_.get({math, quantised, std::nullopt}, [&] {
      return emulate_attention(math, source, kInFloat32, rows, options_);
    });
  };
  return screening_.compare(problem_, output, ways);
}

std::optional<ScreenTable> EncoderValues::screen_sample(const AttentionMath& math,
                                                        const AttentionInputs& redrawn,
                                                        std::span<const std::int32_t> places,
                                                        std::span<const std::int32_t> rows,
                                                        const ScreenedOutput& output) {
  ReferenceInputs source = reference_inputs(is_fp8_encoder(problem_));
  source.query = &redrawn.query;
  MmForward forward;
  if (is_fp8_encoder(problem_)) {
    const StridedTensor query = sources_of(redrawn)[0];
    forward = quantise_mm_forward({query, query, query}, scales());
    source.query = &forward.dequantized[0];
  }
  const ScreenedPart part{places, rows, {source.query}};
  return screening_.compare_sample(
      [&](RowScreen& screen) { return screen.compare_part(math, source, part, output); });
}

std::optional<std::vector<Mutant>> EncoderValues::unseen_mistakes(
    const AttentionMath& math, const Numerics& numerics, bool gives_lse,
    const std::optional<std::vector<Mutant>>& candidates) {
  const std::vector<std::int32_t> rows = mutant_rows(problem_);
  auto known = std::find_if(unseen_.begin(), unseen_.end(),
                            [&](const auto& entry) { return entry.first == math; });
  if (known == unseen_.end()) known = unseen_.insert(unseen_.end(), {math, {}});
  return known->second.get(
      {&problem_, numerics, gives_lse, rows}, candidates, [&](const MutantChange& change) {
        return mutated_attention(math, reference_inputs(is_fp8_encoder(problem_)), change, rows,
                                 options_);
      });
}

std::unique_ptr<CaseRun> EncoderCase::start(const Backend& backend) {
  return std::make_unique<EncoderCaseRun>(values_, backend);
}

}  // namespace attnbench
