// The system of the multimodal encoder: ragged or batched queries, keys and values, also in fp8
// with scales that are loaded or made from the data (semantics §10).
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "backends/reference_sources.h"
#include "bench/cases/case.h"
#include "bench/judge/judge.h"
#include "bench/memo.h"
#include "bench/save.h"
#include "core/error.h"
#include "inputs/files/encoder_scale_file.h"
#include "inputs/mm_inputs.h"
#include "reference/quantise/amax_history.h"
#include "reference/quantise/encoder.h"

namespace attnbench {
namespace {

constexpr std::array<const char*, 3> kNames{"query", "key", "value"};

bool is_fp8(const Problem& problem) { return problem.mm_encoder.attn_dtype == MmAttnDtype::kFp8; }

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

/// Inputs and reference results of a case, shared by its backends.
class MmCase {
 public:
  MmCase(const Problem& problem, ReferenceOptions options)
      : problem_(problem), options_(std::move(options)) {}

  const Problem& problem() const { return problem_; }
  const MmInputs& inputs() {
    if (!inputs_) inputs_ = make_mm_inputs(problem_);
    return *inputs_;
  }
  const MmScales& scales() {
    if (!scales_) scales_ = problem_.mm_encoder.fp8_scale_path ? loaded_scales() : dynamic_scales();
    return *scales_;
  }
  /// fp8 only.
  const MmForward& forward() {
    if (!forward_) forward_ = quantise_mm_forward(sources_of(inputs().tensors), scales());
    return *forward_;
  }

  const std::vector<std::string>& notices() {
    if (notices_) return *notices_;
    const std::vector<std::string> of_inputs = inputs().tensors.notices;
    notices_.emplace(of_inputs);
    if (is_fp8(problem_)) {
      scales();
      add_saturation_notices();
    }
    return *notices_;
  }

  /// Null when should_stop said so. `rule`: nothing = the reference itself.
  const ReferenceOutput* result(const AttentionMath& math, bool quantised,
                                const std::optional<EmulationRule>& rule) {
    return computed_.get({math, quantised, rule}, [&] {
      if (!rows_) rows_ = select_rows(problem_, problem_.inputs.seed);
      const ReferenceInputs source = reference_inputs(quantised);
      return rule ? emulate_attention(math, source, *rule, *rows_, options_)
                  : reference_attention(math, source, *rows_, options_);
    });
  }

 private:
  struct ResultKey {
    AttentionMath math;
    bool quantised = false;
    std::optional<EmulationRule> rule;

    bool operator==(const ResultKey&) const = default;
  };

  MmScales loaded_scales() {
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
  MmScales dynamic_scales() {
    AmaxHistory history;
    if (problem_.mm_encoder.fp8_scale_save_path) {
      for (int step = 0; step < kAmaxHistoryLength - 1; ++step) {
        history.update(amax_of(problem_, make_mm_observation(problem_, 0, step)));
      }
    }
    history.update(amax_of(problem_, inputs().tensors));
    return {history.scales(), {}};
  }

  void add_saturation_notices() {
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
                                      elements, kNames[i],
                                      is_signed ? " (mm_encoder.amax: signed)" : ""));
    }
  }

  ReferenceInputs reference_inputs(bool quantised) {
    ReferenceInputs result = reference_sources(inputs().tensors);
    if (!quantised) return result;
    result.query = &forward().dequantized[0];
    result.key = &forward().dequantized[1];
    result.value = &forward().dequantized[2];
    return result;
  }

  const Problem& problem_;
  ReferenceOptions options_;
  std::optional<MmInputs> inputs_;
  std::optional<MmScales> scales_;
  std::optional<MmForward> forward_;
  std::optional<std::vector<std::string>> notices_;
  std::optional<std::vector<std::int32_t>> rows_;
  Memo<ResultKey, ReferenceOutput> computed_;
};

class MmTrial final : public Trial {
 public:
  MmTrial(MmCase& mm_case, const Backend& backend) : case_(mm_case), backend_(backend) {
    inputs_.mm = &case_.inputs();
    inputs_.inputs = &inputs_.mm->tensors;
    inputs_.query = {inputs_.inputs->query, std::nullopt, 1.0f, {}};
  }

  std::unique_ptr<Pipeline> prepare(Ops& ops) override {
    // Why only then: the scales of a tensor with NaN are refused by the pipeline, in its words.
    if (is_fp8(case_.problem()) && backend_.kernel_rules().reads_dequantised) give_dequantised();
    return backend_.prepare(case_.problem(), inputs_, ops);
  }

  std::string check_stored(const PipelineOutput& output) override {
    if (output.more.empty()) return "";
    const std::array<float, 3>& scales = case_.scales().scale;
    for (const auto& [name, tensor] : output.more) {
      for (std::size_t i = 0; i < 3; ++i) {
        if (name == "fp8_scales" && tensor.at(static_cast<std::int64_t>(i)) != scales[i]) {
          return fmt::format("fp8 scale of {} is {}, expected {}", kNames[i],
                             tensor.at(static_cast<std::int64_t>(i)), scales[i]);
        }
        if (name != std::string(kNames[i]) + "_codes") continue;
        const std::string wrong = first_difference(tensor, case_.forward().codes[i]);
        if (!wrong.empty()) return fmt::format("fp8 codes of {}: {}", kNames[i], wrong);
      }
    }
    return "";
  }

  std::optional<Judgement> judge(const PipelineOutput& output) override {
    const Problem& problem = case_.problem();
    const bool quantised = is_fp8(problem);
    const AttentionMath math = resolve_attention_math(problem, backend_.kernel_rules());
    Numerics numerics;
    numerics.output = output.output.dtype();
    numerics.probability = backend_.probability_dtype(problem);
    numerics.quantised_query = numerics.quantised_kv = quantised;
    Yardsticks yardsticks;
    yardsticks.reference = reference_ = case_.result(math, quantised, std::nullopt);
    yardsticks.emulation = case_.result(math, quantised, emulation_rule(problem, numerics));
    if (quantised) yardsticks.unquantised = case_.result(math, false, std::nullopt);
    const bool stopped = yardsticks.reference == nullptr || yardsticks.emulation == nullptr ||
                         (quantised && yardsticks.unquantised == nullptr);
    if (stopped) return std::nullopt;
    return attnbench::judge(problem, numerics, output, yardsticks);
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
    if (is_fp8(case_.problem())) {
      for (std::size_t i = 0; i < 3; ++i) {
        tensors.borrow(std::string(kNames[i]) + "_dequantized", case_.forward().dequantized[i]);
      }
    }
    tensors.borrow("output", output.output);
    if (output.lse) tensors.borrow("lse", *output.lse);
    for (const auto& [name, tensor] : output.more) tensors.borrow(name, tensor);
    if (reference_ != nullptr) {
      add_reference_tensors(case_.problem().num_tokens(), *reference_, tensors);
    }
  }

 private:
  /// What the reference reads (§15.1).
  void give_dequantised() {
    const MmForward& forward = case_.forward();
    inputs_.query.dequantized = forward.dequantized[0];
    dequantised_.key_dequantized = forward.dequantized[1];
    dequantised_.value_dequantized = forward.dequantized[2];
    inputs_.stored = &dequantised_;
  }

  static std::string first_difference(const Tensor& actual, const Tensor& expected) {
    if (actual.shape() != expected.shape()) return "wrong extents";
    const auto* a = actual.data<std::uint8_t>();
    const auto* e = expected.data<std::uint8_t>();
    for (std::int64_t i = 0; i < actual.num_elements(); ++i) {
      if (a[i] == e[i]) continue;
      const std::int64_t width = actual.dim(2);
      const std::int64_t heads = actual.dim(1);
      return fmt::format("[{}, {}, {}] is {:#04x}, expected {:#04x}", i / width / heads,
                         i / width % heads, i % width, a[i], e[i]);
    }
    return "";
  }

  MmCase& case_;
  const Backend& backend_;
  StoredKv dequantised_;  // where the backend reads that
  BackendInputs inputs_;
  const ReferenceOutput* reference_ = nullptr;  // set by judge()
};

class MmSystem final : public System {
 public:
  MmSystem(const Problem& problem, const ReferenceOptions& options) : case_(problem, options) {}
  const Problem& problem() const override { return case_.problem(); }
  const std::vector<std::string>& notices() override { return case_.notices(); }
  std::unique_ptr<Trial> start(const Backend& backend) override {
    return std::make_unique<MmTrial>(case_, backend);
  }

 private:
  MmCase case_;
};

}  // namespace

std::unique_ptr<System> make_mm_system(const Problem& problem, const ReferenceOptions& options) {
  return std::make_unique<MmSystem>(problem, options);
}

}  // namespace attnbench
