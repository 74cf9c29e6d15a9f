// The encoder's pipelines on small problems: every form and head size against the float64
// reference, fp8 codes and scales byte for byte, the history of largest values, the saved scale
// file.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "backends/backend.h"
#include "backends/bare_reasons_testing.h"
#include "backends/encoder/pipeline.h"
#include "core/error.h"
#include "inputs/files/encoder_scale_file.h"
#include "inputs/mm_inputs.h"
#include "reference/attention.h"
#include "reference/quantise/amax_history.h"
#include "reference/quantise/encoder.h"

namespace attnbench::encoder_pipeline_test {
namespace {
namespace fs = std::filesystem;

constexpr std::array<const char*, 4> kBackends{"MM_TORCH_SDPA", "MM_FLASH_ATTN", "MM_TRITON_ATTN",
                                               "MM_FLASHINFER"};

void set_head_size(Problem& p, int head_size) {
  p.attention.head_size = p.attention.v_head_size = head_size;
  p.attention.scale = 1 / std::sqrt(double(head_size));
  p.mm_encoder.hidden_size = p.attention.num_heads * head_size;
}

Problem mm_problem(int head_size = 72) {
  Problem p;
  p.scenario = p.case_name = "t";
  p.attention.type = AttentionType::kMmEncoder;
  p.attention.causal = false;
  p.attention.num_heads = 4;
  p.attention.num_kv_heads = 2;
  set_head_size(p, head_size);
  p.batch = {{33, 33}, {0, 0}, {1, 1}, {70, 70}};
  p.mm_encoder.layer_names = {"visual.blocks.0.attn.attn"};
  p.inputs.seed = 3;
  return p;
}

Problem fp8_problem(int head_size = 72) {
  Problem p = mm_problem(head_size);
  p.mm_encoder.attn_dtype = MmAttnDtype::kFp8;
  return p;
}

/// A pipeline before its first run.
struct Prepared {
  MmInputs inputs;
  BackendInputs backend_inputs;
  std::unique_ptr<Ops> ops = make_cpu_ops(2);
  std::unique_ptr<Pipeline> pipeline;

  Prepared(const Problem& p, const std::string& name, MmInputs given) : inputs(std::move(given)) {
    backend_inputs.mm = &inputs;
    backend_inputs.inputs = &inputs.tensors;
    backend_inputs.query = {inputs.tensors.query, std::nullopt, 1.0f, {}};
    pipeline = find_backend(name)->prepare(p, backend_inputs, *ops);
  }

  void run_steps() {
    pipeline->poison_outputs();
    for (const Step& step : pipeline->steps()) step.run();
    ops->synchronize();
  }
};

struct Run : Prepared {
  PipelineOutput output;

  Run(const Problem& p, const std::string& name) : Run(p, name, make_mm_inputs(p)) {}
  Run(const Problem& p, const std::string& name, MmInputs given)
      : Prepared(p, name, std::move(given)) {
    output = again();
  }

  PipelineOutput again() {
    run_steps();
    return pipeline->read_output();
  }
  const Tensor& more(const std::string& name) const {
    for (const auto& [key, tensor] : output.more) {
      if (key == name) return tensor;
    }
    throw std::out_of_range(name);
  }
};

std::array<StridedTensor, 3> sources_of(const AttentionInputs& inputs) {
  std::array<StridedTensor, 3> sources{view_of(inputs.query), view_of(inputs.key),
                                       view_of(inputs.value)};
  sources[0].shape[0] = inputs.num_tokens();
  return sources;
}

std::array<float, 3> amax_of(const Problem& p, const AttentionInputs& inputs) {
  std::array<float, 3> amax{};
  const auto sources = sources_of(inputs);
  for (std::size_t i = 0; i < 3; ++i) amax[i] = tensor_amax(sources[i], p.mm_encoder.amax);
  return amax;
}

ReferenceOutput reference_of(const Problem& p, const AttentionInputs& inputs, const Tensor& query,
                             const Tensor& key, const Tensor& value) {
  ReferenceInputs sources;
  sources.query = &query;
  sources.key = &key;
  sources.value = &value;
  sources.query_start_loc = inputs.query_start_loc;
  sources.seq_lens = inputs.seq_lens;
  sources.key_start_loc = inputs.key_start_loc;
  std::vector<std::int32_t> rows(static_cast<std::size_t>(inputs.num_tokens()));
  std::iota(rows.begin(), rows.end(), 0);
  return *reference_attention(resolve_attention_math(p, KernelRules{}), sources, rows);
}

double worst_error(const Tensor& actual, const std::vector<double>& expected) {
  REQUIRE(actual.num_elements() == static_cast<std::int64_t>(expected.size()));
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(double{actual.at(static_cast<std::int64_t>(i))} - expected[i]);
    worst = error <= worst ? worst : error;  // NaN is the worst
  }
  return worst;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.bytes(), b.bytes(), a.size_bytes()) == 0;
}

void check_against_reference(const Problem& p, const std::string& name) {
  CAPTURE(name);
  CAPTURE(p.attention.head_size);
  const Run run(p, name);
  const AttentionInputs& in = run.inputs.tensors;
  const ReferenceOutput expected = reference_of(p, in, in.query, in.key, in.value);
  CHECK(run.output.defect == "");
  CHECK(worst_error(run.output.output, expected.output) < 1.5e-2);
  CHECK(worst_error(*run.output.lse, expected.lse) < 1e-3);
}

/// The scales of layer 0 for the measured forward, and the forward that they make.
MmForward forward_of(const AttentionInputs& inputs, const MmScales& scales) {
  return quantise_mm_forward(sources_of(inputs), scales);
}

void check_fp8_run(const Problem& p, const Run& run, const MmScales& scales) {
  const MmForward forward = forward_of(run.inputs.tensors, scales);
  CHECK(run.output.defect == "");
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(run.more("fp8_scales").at(static_cast<std::int64_t>(i)) == scales.scale[i]);
  }
  CHECK(same_bytes(run.more("query_codes"), forward.codes[0]));
  CHECK(same_bytes(run.more("key_codes"), forward.codes[1]));
  CHECK(same_bytes(run.more("value_codes"), forward.codes[2]));
  const ReferenceOutput expected = reference_of(p, run.inputs.tensors, forward.dequantized[0],
                                                forward.dequantized[1], forward.dequantized[2]);
  CHECK(worst_error(run.output.output, expected.output) < 3e-2);
  CHECK(worst_error(*run.output.lse, expected.lse) < 1e-3);
}

std::vector<std::string> reasons(const Problem& p, const char* name, int sm = 90) {
  return bare_reasons(find_backend(name)->refusals(p, {sm, 132}));
}

using Strings = std::vector<std::string>;

}  // namespace

TEST_CASE("every wrapper attends inside the sequences of cu_seqlens") {
  for (const int head_size : {64, 72, 80}) {
    for (const char* name : kBackends) check_against_reference(mm_problem(head_size), name);
  }
}

TEST_CASE("plain heads, one KV head and uneven groups agree with the reference") {
  for (const auto& [heads, kv_heads] :
       std::vector<std::pair<int, int>>{{3, 3}, {7, 1}, {6, 2}, {8, 1}}) {
    Problem p = mm_problem();
    p.attention.num_heads = heads;
    p.attention.num_kv_heads = kv_heads;
    set_head_size(p, 40);
    for (const char* name : kBackends) check_against_reference(p, name);
  }
}

TEST_CASE("without cu_seqlens each batch row is a sequence, for SDPA with its own key length") {
  Problem p = mm_problem();
  p.mm_encoder.batch_size = 3;
  p.mm_encoder.kv_len = 20;
  p.batch.assign(3, {20, 20});
  for (const char* name : {"MM_TORCH_SDPA", "MM_FLASH_ATTN", "MM_TRITON_ATTN"}) {
    check_against_reference(p, name);
  }
  p.batch.assign(3, {7, 20});
  check_against_reference(p, "MM_TORCH_SDPA");
  p.batch.assign(3, {33, 20});
  check_against_reference(p, "MM_TORCH_SDPA");
}

TEST_CASE("P in e4m3 is another rounding of the same attention, P of 16 bits the default") {
  for (const int head_size : {64, 72}) {
    Problem p = fp8_problem(head_size);
    const Run wide(p, "MM_FLASHINFER");
    p.attention.probability_dtype = ProbabilityDtype::kModel;
    CHECK(same_bytes(Run(p, "MM_FLASHINFER").output.output, wide.output.output));
    p.attention.probability_dtype = ProbabilityDtype::kFp8E4M3;
    const Run narrow(p, "MM_FLASHINFER");
    CHECK_FALSE(same_bytes(narrow.output.output, wide.output.output));
    CHECK(same_bytes(*narrow.output.lse, *wide.output.lse));
    const AttentionInputs& in = narrow.inputs.tensors;
    MmScales scales;
    const std::array<float, 3> amax = amax_of(p, in);
    for (std::size_t i = 0; i < 3; ++i) scales.scale[i] = amax[i] / 448.0f;
    const MmForward forward = forward_of(in, scales);
    const ReferenceOutput expected =
        reference_of(p, in, forward.dequantized[0], forward.dequantized[1], forward.dequantized[2]);
    double largest = 0;
    for (const double value : expected.output) largest = std::fmax(largest, std::fabs(value));
    CHECK(worst_error(narrow.output.output, expected.output) < 3e-2 * largest);
    CHECK(worst_error(narrow.output.output, expected.output) >
          worst_error(wide.output.output, expected.output));
  }
}

TEST_CASE("a batch without tokens, and one of empty sequences, give nothing") {
  for (const bool fp8 : {false, true}) {
    Problem p = fp8 ? fp8_problem() : mm_problem();
    p.batch = {{0, 0}, {0, 0}};
    const Run run(p, "MM_FLASHINFER");
    CHECK(run.output.output.dim(0) == 0);
    CHECK(run.output.defect == "");
  }
}

TEST_CASE("V is read from the interleaved rows by FLASHINFER, with its stride of three units") {
  const Problem p = mm_problem();
  const Run run(p, "MM_FLASHINFER");
  MmInputs changed = make_mm_inputs(p);
  // The pipeline gets a contiguous V too; what it must read is the buffer made from it, whose other
  // two thirds are NaN, so a wrong stride or base shows as NaN.
  CHECK_FALSE(std::isnan(run.output.output.at(0)));
  for (std::int64_t i = 0; i < changed.tensors.value.num_elements(); ++i) {
    changed.tensors.value.set(i, 1.0f);
  }
  const Run ones(p, "MM_FLASHINFER", changed);
  for (std::int64_t i = 0; i < ones.output.output.num_elements(); ++i) {
    CHECK(ones.output.output.at(i) == doctest::Approx(1.0).epsilon(0.01));
  }
}

TEST_CASE("golden offsets, buckets and padded batch reach the wrapper") {
  Problem p = mm_problem(80);
  p.attention.num_heads = p.attention.num_kv_heads = 8;
  p.mm_encoder.hidden_size = 1280;
  p.mm_encoder.tp_size = 2;
  p.batch = {{10, 10}, {20, 20}};
  const MmCapability flashinfer = mm_flashinfer_capability();
  const MmCall call = mm_call_of(flashinfer, p);
  CHECK(call.query_unit == 640);
  CHECK(call.value_unit == 1920);
  CHECK((*call.cu_seqlens)[1] == 6400);
  CHECK((*call.cu_seqlens)[8] == 19200);
  CHECK((*call.cu_seqlens)[10] == 19200);
  CHECK((*call.cu_seqlens)[17] == 57600);
  CHECK(call.cu_seqlens->size() == 18);
  CHECK(*call.sequence_lengths == std::vector<std::int32_t>{10, 20, 0, 0, 0, 0, 0, 0});
  CHECK(*call.max_seqlen == 1024);
  check_against_reference(p, "MM_FLASHINFER");

  p.mm_encoder.attn_dtype = MmAttnDtype::kFp8;
  set_head_size(p, 72);
  p.mm_encoder.hidden_size = 1152;
  CHECK(mm_call_of(flashinfer, p).query_unit == 640);  // 16 heads of 80 over two ranks
  CHECK(mm_call_of(flashinfer, p).value_unit == 640);
  CHECK(*mm_call_of(mm_torch_sdpa_capability(), p).max_seqlen == 0);
  CHECK(*mm_call_of(mm_flash_attn_capability(), p).max_seqlen == 20);
}

TEST_CASE("dynamic scales come from the current tensors, codes byte for byte") {
  for (const int head_size : {64, 72, 80}) {
    for (const AmaxKind kind : {AmaxKind::kAbs, AmaxKind::kSigned}) {
      for (const bool fused : {false, true}) {
        Problem p = fp8_problem(head_size);
        p.mm_encoder.amax = kind;
        p.mm_encoder.fp8_fused = fused;
        const Run run(p, "MM_FLASHINFER");
        MmScales scales;
        const std::array<float, 3> amax = amax_of(p, run.inputs.tensors);
        for (std::size_t i = 0; i < 3; ++i) scales.scale[i] = amax[i] / 448.0f;
        check_fp8_run(p, run, scales);
        std::string names;
        for (const Step& step : run.pipeline->steps()) names += step.name + " ";
        CHECK(names ==
              (fused || head_size % 16 == 0 ? "quantise attend " : "quantise attend slice "));
      }
    }
  }
}

// The sanitizer itself finds a write past a buffer, and ends the program.
#if !defined(__SANITIZE_ADDRESS__)
TEST_CASE("what is timed does not look at guard zones: that is for the wait after it") {
  Run run(fp8_problem(), "MM_FLASHINFER");
  const auto victim = run.ops->allocate(8, "victim");
  victim->as<char>()[8] = 0;
  for (const Step& step : run.pipeline->steps()) CHECK_NOTHROW(step.run());
  CHECK_THROWS_WITH_AS(run.ops->synchronize(), doctest::Contains("victim: 1 byte past its end"),
                       Error);
}
#endif

TEST_CASE("running again gives the same bytes") {
  Run run(fp8_problem(), "MM_FLASHINFER");
  const PipelineOutput second = run.again();
  CHECK(same_bytes(run.output.output, second.output));
  CHECK(same_bytes(*run.output.lse, *second.lse));
  for (std::size_t i = 0; i < second.more.size(); ++i) {
    CHECK(same_bytes(run.output.more[i].second, second.more[i].second));
  }
}

TEST_CASE("tensors of zeros take the scale floor, a subnormal, and give zeros") {
  const Problem p = fp8_problem();
  MmInputs inputs = make_mm_inputs(p);
  for (Tensor* tensor : {&inputs.tensors.query, &inputs.tensors.key, &inputs.tensors.value}) {
    for (std::int64_t i = 0; i < tensor->num_elements(); ++i) tensor->set(i, 0.0f);
  }
  const Run run(p, "MM_FLASHINFER", inputs);
  CHECK(run.more("fp8_scales").at(0) == 0x1p-126f / 448.0f);
  for (std::int64_t i = 0; i < run.output.output.num_elements(); ++i) {
    CHECK(run.output.output.at(i) == 0.0f);
  }
}

TEST_CASE("a NaN among the keys is refused as a scale, once the outputs are read") {
  const Problem p = fp8_problem();
  MmInputs inputs = make_mm_inputs(p);
  inputs.tensors.key.set(5, NAN);
  Prepared prepared(p, "MM_FLASHINFER", inputs);
  CHECK_NOTHROW(prepared.run_steps());
  try {
    prepared.pipeline->read_output();
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kValue);
    CHECK(std::string(error.what()).find("scale of key") != std::string::npos);
  }
}

TEST_CASE("saturated elements are counted from one poisoning to the next") {
  Problem p = fp8_problem();
  p.mm_encoder.amax = AmaxKind::kSigned;
  MmInputs inputs = make_mm_inputs(p);
  for (std::int64_t i = 0; i < 5; ++i) inputs.tensors.query.set(i * 100, -1000.0f);
  const auto ops = make_cpu_ops(2);
  std::array<std::unique_ptr<Buffer>, 3> buffers;
  std::array<MmSource, 3> sources;
  const std::array<const Tensor*, 3> tensors{&inputs.tensors.query, &inputs.tensors.key,
                                             &inputs.tensors.value};
  for (std::size_t i = 0; i < 3; ++i) {
    const Tensor& t = *tensors[i];
    buffers[i] = ops->allocate(t.size_bytes(), "source");
    ops->upload(*buffers[i], t.bytes(), t.size_bytes());
    const std::int64_t tokens = i == 0 ? inputs.tensors.num_tokens() : t.dim(0);
    sources[i] = {buffers[i]->data(), tokens, static_cast<int>(t.dim(1)), t.dim(1) * t.dim(2),
                  t.dim(2)};
  }
  MmScales scales;
  const std::array<float, 3> amax = amax_of(p, inputs.tensors);
  for (std::size_t i = 0; i < 3; ++i) scales.scale[i] = amax[i] / 448.0f;
  const MmForward forward = forward_of(inputs.tensors, scales);
  REQUIRE(forward.saturated[0] >= 5);
  for (const bool fused : {false, true}) {
    p.mm_encoder.fp8_fused = fused;
    MmFp8 fp8(p, *ops, sources);
    for (int run = 0; run < 2; ++run) {
      fp8.poison();
      fp8.quantise();
      CHECK(fp8.read().saturated == forward.saturated);
    }
    fp8.quantise();
    CHECK(fp8.read().saturated[0] == 2 * forward.saturated[0]);
  }
}

TEST_CASE("loaded scales are those of the first layer, and exactly 1 leaves the scaling out") {
  const fs::path path = fs::temp_directory_path() / "attnbench_mm_static.json";
  write_mm_scales(path, {{"b", {0.5, 0.5, 0.5}}, {"a", {0.02, 1.0, 0.01}}});
  for (const int head_size : {72, 80}) {
    Problem p = fp8_problem(head_size);
    p.mm_encoder.fp8_scale_path = path.string();
    p.mm_encoder.layer_names = {"a", "b"};
    MmScales scales;
    scales.scale = {static_cast<float>(0.02), 1.0f, static_cast<float>(0.01)};
    scales.skip = {false, true, false};
    for (const bool fused : {false, true}) {
      p.mm_encoder.fp8_fused = fused;
      check_fp8_run(p, Run(p, "MM_FLASHINFER"), scales);
    }
    p.mm_encoder.layer_names = {"a", "c"};
    CHECK_THROWS_AS(Run(p, "MM_FLASHINFER"), Error);
  }
  fs::remove(path);
}

TEST_CASE("the first wrap writes every layer once, the first one with sixteen forwards behind it") {
  const fs::path path = fs::temp_directory_path() / "attnbench_mm_saved.json";
  fs::remove(path);
  Problem p = fp8_problem();
  p.batch = {{20, 20}};
  p.mm_encoder.layer_names = {"visual.blocks.10", "visual.blocks.9", "z"};
  p.mm_encoder.fp8_scale_save_path = path.string();
  p.mm_encoder.fp8_scale_save_margin = 1.25;
  Prepared prepared(p, "MM_FLASHINFER", make_mm_inputs(p));
  prepared.run_steps();
  CHECK_FALSE(fs::exists(path));  // running waits for nothing, so it has nothing to write
  Run run(p, "MM_FLASHINFER");

  std::vector<std::array<float, 3>> scales;
  for (std::size_t layer = 0; layer < 3; ++layer) {
    AmaxHistory history;
    for (int step = 0; step < 15; ++step) {
      history.update(amax_of(p, make_mm_observation(p, layer, step)));
    }
    if (layer == 0) history.update(amax_of(p, run.inputs.tensors));
    scales.push_back(history.scales());
  }
  const MmScaleFile file = read_mm_scales(path);
  REQUIRE(file.layers.size() == 3);
  for (std::size_t layer = 0; layer < 3; ++layer) {
    CHECK(file.layers[layer].first == p.mm_encoder.layer_names[layer]);
    CHECK(file.layers[layer].second.q == double{scales[layer][0]} * 1.25);
    CHECK(file.layers[layer].second.k == double{scales[layer][1]} * 1.25);
    CHECK(file.layers[layer].second.v == double{scales[layer][2]} * 1.25);
  }
  MmScales used;
  used.scale = scales[0];
  check_fp8_run(p, run, used);

  fs::remove(path);
  run.again();
  CHECK_FALSE(fs::exists(path));  // saving is off after the first wrap
}

TEST_CASE("a margin that leaves no float32 writes nothing") {
  const fs::path path = fs::temp_directory_path() / "attnbench_mm_margin.json";
  fs::remove(path);
  Problem p = fp8_problem();
  p.batch = {{4, 4}};
  p.mm_encoder.fp8_scale_save_path = path.string();
  p.mm_encoder.fp8_scale_save_margin = 1e300;
  CHECK_THROWS_AS(Run(p, "MM_FLASHINFER"), Error);
  CHECK_FALSE(fs::exists(path));
}

TEST_CASE("reasons of head size, dtype and fp8 are upstream's, with upstream's names") {
  Problem p = mm_problem(20);
  CHECK(reasons(p, "MM_TORCH_SDPA").empty());
  CHECK(reasons(p, "MM_FLASH_ATTN") == Strings{"head_size not supported"});
  CHECK(reasons(p, "MM_TRITON_ATTN") == Strings{"head_size not supported"});
  CHECK(reasons(p, "MM_FLASHINFER").empty());
  p = mm_problem(264);
  CHECK(reasons(p, "MM_FLASH_ATTN") == Strings{"head_size not supported"});
  CHECK(reasons(p, "MM_TRITON_ATTN").empty());
  CHECK(reasons(p, "MM_FLASHINFER") == Strings{"head_size not supported"});
  p = mm_problem();
  p.attention.dtype = Dtype::kF32;
  CHECK(reasons(p, "MM_TORCH_SDPA").empty());
  CHECK(reasons(p, "MM_FLASH_ATTN") == Strings{"dtype not supported"});
  CHECK(reasons(p, "MM_TRITON_ATTN").empty());
  CHECK(reasons(p, "MM_FLASHINFER") == Strings{"dtype not supported"});
  p = fp8_problem();
  for (const auto& [name, upstream] :
       {std::pair{"MM_TORCH_SDPA", "TORCH_SDPA"}, std::pair{"MM_FLASH_ATTN", "FLASH_ATTN"},
        std::pair{"MM_TRITON_ATTN", "TRITON_ATTN"}}) {
    CHECK(reasons(p, name) ==
          Strings{fmt::format("mm_encoder_attn_dtype='fp8' requires the FLASHINFER backend, got {}",
                              upstream)});
  }
  CHECK(reasons(p, "MM_FLASHINFER").empty());
}

TEST_CASE("fp8 needs compute capability 8.9, the 16-bit kernels 8.0") {
  CHECK(reasons(fp8_problem(), "MM_FLASHINFER", 89).empty());
  CHECK(reasons(fp8_problem(), "MM_FLASHINFER", 86) == Strings{"compute capability not supported"});
  CHECK(reasons(mm_problem(), "MM_FLASHINFER", 86).empty());
  CHECK(reasons(mm_problem(), "MM_FLASH_ATTN", 75) == Strings{"compute capability not supported"});
  CHECK(reasons(mm_problem(), "MM_TORCH_SDPA", 75).empty());
  CHECK(reasons(mm_problem(), "MM_TRITON_ATTN", 75).empty());
}

TEST_CASE("only the forms of the table are served, and no other attention type") {
  Problem p = mm_problem();
  p.mm_encoder.batch_size = 2;
  p.mm_encoder.kv_len = 9;
  p.batch.assign(2, {9, 9});
  CHECK(reasons(p, "MM_TORCH_SDPA").empty());
  CHECK(reasons(p, "MM_FLASH_ATTN").empty());
  CHECK(reasons(p, "MM_TRITON_ATTN").empty());
  CHECK(reasons(p, "MM_FLASHINFER").size() == 1);
  p.batch.assign(2, {5, 9});
  CHECK(reasons(p, "MM_TORCH_SDPA").empty());
  CHECK(reasons(p, "MM_FLASH_ATTN").size() == 1);
  CHECK(reasons(p, "MM_TRITON_ATTN").size() == 1);
  p = mm_problem();
  p.attention.type = AttentionType::kDecoder;
  for (const char* name : kBackends) {
    CHECK(reasons(p, name) == Strings{"attention type decoder not supported"});
  }
  CHECK(reasons(mm_problem(), "FLASH_ATTN") == Strings{"attention type mm_encoder not supported"});
}

TEST_CASE("features that the layer has no argument for are refused by every wrapper") {
  Problem p = mm_problem();
  p.attention.sinks = SinksKind::kNormal;
  p.attention.alibi = AlibiKind::kLinear;
  p.attention.logits_soft_cap = 30;
  p.attention.sliding_window = 8;
  CHECK(reasons(p, "MM_FLASH_ATTN") == Strings{"attention sinks not supported",
                                               "FLASH_ATTN encoder attention ignores ALiBi",
                                               "FLASH_ATTN encoder attention ignores softcap",
                                               "FLASH_ATTN encoder attention ignores window"});
  for (const char* name : kBackends) CHECK(reasons(p, name).size() == 4);
}

}  // namespace attnbench::encoder_pipeline_test
