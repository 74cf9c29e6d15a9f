// Scales, codes and references of a case of the multimodal encoder. Notices gather on the way, so
// the scales are made before the list of notices is complete.
#include "bench/cases/encoder_values.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "backends/reference_sources.h"
#include "inputs/files/encoder_scale_file.h"
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

std::array<float, 3> amax_of(const Problem& problem, const AttentionInputs& inputs) {
  const std::array<StridedTensor, 3> sources = sources_of(inputs);
  std::array<float, 3> amax{};
  for (std::size_t i = 0; i < 3; ++i) amax[i] = tensor_amax(sources[i], problem.mm_encoder.amax);
  return amax;
}

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

void EncoderValues::add_saturation_notices() {
  const MmScales& used = scales();
  for (const float scale : used.scale) {
    if (!std::isfinite(scale)) return;  // an error of the run, which names it
  }
  const std::array<StridedTensor, 3> sources = sources_of(inputs().tensors);
  for (std::size_t i = 0; i < 3; ++i) {
    if (forward().saturated[i] == 0) continue;
    std::int64_t elements = 1;
    for (const std::int64_t extent : sources[i].shape) elements *= extent;
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
  return result;
}

const ReferenceOutput* EncoderValues::result(const AttentionMath& math, bool quantised,
                                             const std::optional<EmulationRule>& rule) {
  return computed_.get({math, quantised, rule}, [&] {
    if (!rows_) rows_ = select_rows(problem_, problem_.inputs.seed);
    const ReferenceInputs source = reference_inputs(quantised);
    return rule ? emulate_attention(math, source, *rule, *rows_, options_)
                : reference_attention(math, source, *rows_, options_);
  });
}

}  // namespace attnbench
