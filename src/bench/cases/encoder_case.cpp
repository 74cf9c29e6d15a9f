// A backend's turn at a case of the multimodal encoder, and the tensors that are saved of it.
#include "bench/cases/encoder_case.h"

#include <fmt/format.h>

#include <array>

#include "bench/judge/judge.h"
#include "bench/save.h"
#include "metrics/byte_verdicts.h"

namespace attnbench {
namespace {

class EncoderCaseRun final : public CaseRun {
 public:
  EncoderCaseRun(EncoderValues& values, const Backend& backend)
      : values_(values), backend_(backend) {
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
    Numerics numerics;
    numerics.output = output.output.dtype();
    numerics.probability = backend_.probability_dtype(problem);
    numerics.quantised_query = numerics.quantised_kv = quantised;
    Yardsticks yardsticks;
    yardsticks.reference = reference_ = values_.result(math, quantised, std::nullopt);
    yardsticks.emulation = values_.result(math, quantised, emulation_rule(problem, numerics));
    if (quantised) yardsticks.unquantised = values_.result(math, false, std::nullopt);
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
  const ReferenceOutput* reference_ = nullptr;  // set by judge()
};

}  // namespace

std::unique_ptr<CaseRun> EncoderCase::start(const Backend& backend) {
  return std::make_unique<EncoderCaseRun>(values_, backend);
}

}  // namespace attnbench
