// The encoder's case: what a run of it finds wrong in codes and scales, its notices, what it judges
// by and what it saves.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "bench/bench.h"
#include "bench/cases/case.h"
#include "bench/cases/encoder_case.h"
#include "bench/tensor_list.h"
#include "core/error.h"
#include "core/test_folder.h"
#include "inputs/files/encoder_scale_file.h"
#include "inputs/mm_inputs.h"
#include "reference/quantise/amax_history.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

/// Head size 72, which fp8 pads to 80; sequences of 33, 0, 1 and 40 tokens.
Problem mm_problem(MmAttnDtype dtype) {
  Problem p;
  p.scenario = "vit";
  p.case_name = "t";
  p.attention.type = AttentionType::kMmEncoder;
  p.attention.causal = false;
  p.attention.num_heads = 4;
  p.attention.num_kv_heads = 2;
  p.attention.head_size = p.attention.v_head_size = 72;
  p.attention.scale = 1 / std::sqrt(72.0);
  p.batch = {{33, 33}, {0, 0}, {1, 1}, {40, 40}};
  p.mm_encoder.hidden_size = 288;
  p.mm_encoder.attn_dtype = dtype;
  p.mm_encoder.layer_names = {"visual.blocks.0.attn.attn"};
  return p;
}

/// A turn of MM_FLASHINFER at a case, run once.
struct Turn {
  Problem problem;
  std::unique_ptr<Case> the_case;
  std::unique_ptr<Ops> ops = make_cpu_ops(1);
  std::unique_ptr<CaseRun> case_run;
  std::unique_ptr<Pipeline> pipeline;
  PipelineOutput output;

  explicit Turn(Problem the_problem) : problem(std::move(the_problem)) {
    the_case = make_case(problem, {1, {}});
    the_case->notices();
    case_run = the_case->start(*find_backend("MM_FLASHINFER"));
    pipeline = case_run->prepare(*ops);
    pipeline->poison_outputs();
    for (const Step& step : pipeline->steps()) step.run();
    output = pipeline->read_output();
  }
  Tensor& more(const std::string& name) {
    for (auto& [known, tensor] : output.more) {
      if (known == name) return tensor;
    }
    FAIL(name);
    return output.output;
  }
};

const Tensor* find(const TensorList& tensors, const std::string& name) {
  for (const auto& [known, tensor] : tensors.list()) {
    if (known == name) return tensor;
  }
  return nullptr;
}

}  // namespace

TEST_CASE("an fp8 encoder's queries and keys are known as e4m3 codes of their scales") {
  Problem problem = mm_problem(MmAttnDtype::kFp8);
  problem.inputs.distribution = Distribution::kOutlier;
  EncoderValues values(problem, {1, {}});
  const AttentionMath math =
      resolve_attention_math(problem, find_backend("MM_FLASHINFER")->kernel_rules());
  const EmulationRule in_float32{Dtype::kBF16, Dtype::kBF16};
  const EmulationRule by_codes{Dtype::kBF16, Dtype::kBF16, true};
  CHECK(values.result(math, true, by_codes)->lse != values.result(math, true, in_float32)->lse);
  CHECK(values.result(math, false, by_codes)->lse == values.result(math, false, in_float32)->lse);
}

TEST_CASE("a right fp8 forward passes, with its quantisation error beside its own") {
  Turn turn(mm_problem(MmAttnDtype::kFp8));
  CHECK(turn.case_run->check_stored(turn.output).empty());
  const std::optional<Judgement> judgement = turn.case_run->judge(turn.output);
  REQUIRE(judgement);
  CHECK(judgement->reasons.empty());
  CHECK(judgement->error.max_abs < 3e-2);
  CHECK(judgement->error.rule == "semantics 14.2 rows, output bfloat16, P bfloat16, fp8 Q K V");
  REQUIRE(judgement->quantization_error);
  CHECK(judgement->quantization_error->max_abs > judgement->error.max_abs);
}

TEST_CASE("16-bit attention is judged by the row of its type and has no quantisation error") {
  Turn turn(mm_problem(MmAttnDtype::kAuto));
  CHECK(turn.output.more.empty());
  CHECK(turn.case_run->check_stored(turn.output).empty());
  const std::optional<Judgement> judgement = turn.case_run->judge(turn.output);
  REQUIRE(judgement);
  CHECK(judgement->error.rule == "semantics 14.2 rows, output bfloat16, P bfloat16");
  CHECK_FALSE(judgement->quantization_error);
}

TEST_CASE("P in e4m3 is judged by its own row and against its own emulation") {
  Problem problem = mm_problem(MmAttnDtype::kFp8);
  Turn wide(problem);
  problem.attention.probability_dtype = ProbabilityDtype::kFp8E4M3;
  Turn narrow(problem);
  const std::optional<Judgement> judgement = narrow.case_run->judge(narrow.output);
  REQUIRE(judgement);
  CHECK(judgement->reasons.empty());
  CHECK(judgement->error.rule == "semantics 14.2 rows, output bfloat16, P fp8_e4m3, fp8 Q K V");
  CHECK(judgement->error.err_ratio < 2);
  // The same output is far off for a kernel that claims P of 16 bits.
  const std::optional<Judgement> claimed = wide.case_run->judge(narrow.output);
  REQUIRE(claimed);
  CHECK_FALSE(claimed->reasons.empty());
}

TEST_CASE("a wrong code is named with its tensor and place, padding columns included") {
  Turn turn(mm_problem(MmAttnDtype::kFp8));
  Tensor& codes = turn.more("key_codes");
  const std::int64_t index = (5 * 2 + 1) * 80 + 79;  // token 5, head 1, last padding column
  codes.data<std::uint8_t>()[index] = 0x38;
  CHECK(turn.case_run->check_stored(turn.output) ==
        "fp8 codes of key: [5, 1, 79] is 0x38, expected 0x00");
}

TEST_CASE("a scale one step off is named") {
  Turn turn(mm_problem(MmAttnDtype::kFp8));
  Tensor& scales = turn.more("fp8_scales");
  const float expected = scales.at(2);
  scales.set(2, std::nextafter(expected, 1.0f));
  CHECK(turn.case_run->check_stored(turn.output).starts_with("fp8 scale of value is "));
}

TEST_CASE("codes of another shape are named, not read past their end") {
  Turn turn(mm_problem(MmAttnDtype::kFp8));
  turn.more("query_codes") = Tensor(Dtype::kE4M3, {74, 4, 72});
  CHECK(turn.case_run->check_stored(turn.output) == "fp8 codes of query: wrong extents");
}

TEST_CASE("with a scale file to save, the measured forward is the 16th of the history") {
  const TestFolder folder;
  Problem problem = mm_problem(MmAttnDtype::kFp8);
  problem.mm_encoder.fp8_scale_save_path = (folder / "saved.json").string();
  Turn turn(problem);
  CHECK(turn.case_run->check_stored(turn.output).empty());
  // The largest of the 15 observations and the measured tensors, straight from the inputs.
  float largest = 0;
  const auto take = [&](const Tensor& key) {
    for (std::int64_t i = 0; i < key.num_elements(); ++i) {
      largest = std::fmax(largest, std::fabs(key.at(i)));
    }
  };
  for (int step = 0; step < 15; ++step) take(make_mm_observation(problem, 0, step).key);
  take(make_mm_inputs(problem).tensors.key);
  CHECK(turn.more("fp8_scales").at(1) == largest / 448.0f);
  CHECK(fs::exists(*problem.mm_encoder.fp8_scale_save_path));
}

TEST_CASE("loaded scales: every layer must be there, and saturation is noticed") {
  const TestFolder folder;
  Problem problem = mm_problem(MmAttnDtype::kFp8);
  problem.mm_encoder.fp8_scale_path = folder.write(
      "scales.json", R"({"visual.blocks.0.attn.attn": {"q": 0.001, "k": 1.0, "v": 0.01}})");
  const auto the_case = make_case(problem, {1, {}});
  const std::vector<std::string> notices = the_case->notices();
  REQUIRE(notices.size() == 1);  // 0.464 is a small query, 4.64 a large value, 464 no key at all
  CHECK(notices[0].starts_with("vit/t: "));
  CHECK(notices[0].ends_with("elements of query saturate in fp8"));

  problem.mm_encoder.layer_names.emplace_back("visual.blocks.1.attn.attn");
  const auto lacking = make_case(problem, {1, {}});
  CHECK_THROWS_WITH_AS(lacking->notices(),
                       doctest::Contains("scales not found for layer 'visual.blocks.1.attn.attn'"),
                       Error);
}

TEST_CASE("saved tensors are those of the contract, dequantised ones with fp8 alone") {
  for (const MmAttnDtype dtype : {MmAttnDtype::kAuto, MmAttnDtype::kFp8}) {
    const bool fp8 = dtype == MmAttnDtype::kFp8;
    Turn turn(mm_problem(dtype));
    turn.case_run->judge(turn.output);
    TensorList tensors;
    turn.case_run->add_tensors(turn.output, tensors);
    REQUIRE(find(tensors, "query") != nullptr);
    CHECK(find(tensors, "query")->shape() == std::vector<std::int64_t>{74, 4, 72});
    CHECK(find(tensors, "key")->shape() == std::vector<std::int64_t>{74, 2, 72});
    CHECK(find(tensors, "output")->shape() == std::vector<std::int64_t>{74, 4, 72});
    REQUIRE(find(tensors, "cu_seqlens") != nullptr);
    CHECK(find(tensors, "cu_seqlens")->data<std::int32_t>()[4] == 74);
    CHECK(find(tensors, "reference_output") != nullptr);
    CHECK((find(tensors, "query_dequantized") != nullptr) == fp8);
    CHECK((find(tensors, "value_codes") != nullptr) == fp8);
  }
}

TEST_CASE("the form without cu_seqlens saves none") {
  Problem problem = mm_problem(MmAttnDtype::kAuto);
  problem.mm_encoder.batch_size = 2;
  problem.mm_encoder.kv_len = 20;
  problem.batch.assign(2, {20, 20});
  const auto the_case = make_case(problem, {1, {}});
  const auto ops = make_cpu_ops(1);
  const auto case_run = the_case->start(*find_backend("MM_TORCH_SDPA"));
  const auto pipeline = case_run->prepare(*ops);
  pipeline->poison_outputs();
  for (const Step& step : pipeline->steps()) step.run();
  const PipelineOutput output = pipeline->read_output();
  CHECK(case_run->judge(output)->reasons.empty());
  TensorList tensors;
  case_run->add_tensors(output, tensors);
  CHECK(find(tensors, "cu_seqlens") == nullptr);
}

}  // namespace attnbench
