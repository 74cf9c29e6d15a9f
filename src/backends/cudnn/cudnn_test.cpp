// CUDNN without cuDNN: what it is asked for, computed on host memory by cuDNN's documentation, and
// what becomes of the answer, against the float64 reference.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backends/bare_reasons_testing.h"
#include "backends/cudnn/backend.h"
#include "backends/cudnn/fake_cudnn_testing.h"
#include "backends/cudnn/form.h"
#include "inputs/cache/check_cache.h"
#include "metadata/int_math.h"
#include "reference/attention.h"

namespace attnbench::cudnn_test {
namespace {

using List = std::vector<std::string>;
const DeviceFacts kHopper{90, 132, true};

FakeCudnnState& fake_state() {
  static FakeCudnnState state;
  return state;
}

const CudnnChoice& fake_choice() {
  static const FakeCudnn library(fake_state());
  static const CudnnChoice choice{&library, {}};
  return choice;
}

Problem base_problem() {
  Problem p;
  p.scenario = p.case_name = "t";
  p.attention.num_heads = 4;
  p.attention.num_kv_heads = 2;
  p.attention.head_size = p.attention.v_head_size = 16;
  p.attention.scale = 0.25;
  p.batch = {{1, 70}, {5, 40}, {33, 33}};
  p.inputs.seed = 5;
  return p;
}

Problem prefill_problem() {
  Problem p = base_problem();
  p.batch = {{20, 20}, {20, 20}};
  return p;
}

Problem encoder_problem() {
  Problem p = base_problem();
  p.attention.type = AttentionType::kEncoderOnly;
  p.attention.causal = false;
  p.batch = {{20, 20}, {7, 7}, {33, 33}};
  return p;
}

Problem mm_problem() {
  Problem p = encoder_problem();
  p.attention.type = AttentionType::kMmEncoder;
  p.attention.num_kv_heads = p.attention.num_heads;
  p.attention.head_size = p.attention.v_head_size = 72;
  p.mm_encoder.hidden_size = 288;
  return p;
}

Problem fp8_problem() {
  Problem p = prefill_problem();
  p.kv_cache.dtype = KvCacheDtype::kFp8;
  p.kv_cache.k_scale = {0.05};
  p.kv_cache.v_scale = {0.02};
  p.kv_cache.q_scale = 0.03;
  p.output_quant.type = OutputQuantType::kFp8Static;
  p.output_quant.scale = 0.01;
  return p;
}

void add_blocks(Problem& p) {
  p.kv_cache.num_blocks = 3;
  for (const Request& request : p.batch) {
    p.kv_cache.num_blocks += ceil_div(request.seq_len, p.kv_cache.block_size);
  }
}

/// One run of the backend on the library of tests; its answer and the reference's.
struct Run {
  Problem problem;
  AttentionInputs inputs;
  StoredKv stored;
  BackendInputs backend_inputs;
  std::unique_ptr<Backend> backend = make_cudnn_backend(fake_choice);
  std::unique_ptr<Ops> ops = make_cpu_ops(1);
  std::unique_ptr<Pipeline> pipeline;
  PipelineOutput output;

  explicit Run(Problem p) : problem(std::move(p)) {
    add_blocks(problem);
    inputs = make_inputs(problem);
    backend_inputs.inputs = &inputs;
    backend_inputs.query = store_query(problem, inputs, kCudnnRules);
    if (!has_direct_kv(problem.attention.type)) {
      stored = store_kv(inputs, resolve_store_rule(problem, kCudnnRules));
      backend_inputs.stored = &stored;
    }
    if (const auto layout = backend->cache_layout_for(problem)) {
      backend_inputs.cache = make_paged_cache(problem, inputs, stored, *layout);
    }
    pipeline = backend->prepare(problem, backend_inputs, *ops);
    pipeline->poison_outputs();
    for (const Step& step : pipeline->steps()) step.run();
    output = pipeline->read_output();
  }

  ReferenceOutput reference() const {
    ReferenceInputs sources;
    sources.query = backend_inputs.query.dequantized ? &*backend_inputs.query.dequantized
                                                     : &backend_inputs.query.query;
    const bool dequantised = !stored.key_dequantized.empty();
    sources.key = dequantised ? &stored.key_dequantized : &inputs.key;
    sources.value = dequantised ? &stored.value_dequantized : &inputs.value;
    sources.query_start_loc = inputs.query_start_loc;
    sources.seq_lens = inputs.seq_lens;
    sources.key_start_loc = inputs.key_start_loc;
    sources.sinks = inputs.sinks;
    std::vector<std::int32_t> rows(static_cast<std::size_t>(inputs.num_tokens()));
    std::iota(rows.begin(), rows.end(), 0);
    return *reference_attention(resolve_attention_math(problem, kCudnnRules), sources, rows);
  }
};

/// Where `actual` times `scale` leaves `expected` by more than `limit`, or nothing.
std::string deviation(const Tensor& actual, const std::vector<double>& expected, double limit,
                      double scale = 1) {
  if (actual.num_elements() != static_cast<std::int64_t>(expected.size())) return "wrong extent";
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double a = scale * double{actual.at(static_cast<std::int64_t>(i))};
    if (!(std::fabs(a - expected[i]) <= limit * (1 + std::fabs(expected[i])))) {
      return fmt::format("element {}: {} instead of {}", i, a, expected[i]);
    }
  }
  return "";
}

constexpr double kLseLimit = 1e-5;

void expect_agreement(const Problem& problem) {
  const Run run(problem);
  const ReferenceOutput reference = run.reference();
  const bool fp8 = run.output.output.dtype() == Dtype::kE4M3;
  // Half a unit in the last place of what is stored.
  const double limit = fp8 ? 0.07 : problem.attention.dtype == Dtype::kF16 ? 1e-3 : 5e-3;
  CHECK(deviation(run.output.output, reference.output, limit,
                  fp8 ? problem.output_quant.scale : 1) == "");
  REQUIRE(run.output.lse);
  CHECK(deviation(*run.output.lse, reference.lse, kLseLimit) == "");
  CHECK(run.output.defect == "");
  if (run.output.cache) {
    CHECK(check_cache(run.problem, run.stored, *run.backend_inputs.cache, *run.output.cache) == "");
  }
  CHECK(run.output.cache.has_value() == cudnn_reads_pages(problem));
}

List reasons(const Problem& problem, const DeviceFacts& device = kHopper) {
  return bare_reasons(cudnn_refusals(problem, device, {}));
}

TEST_CASE("what CUDNN asks for is the attention of the problem") {
  fake_state() = {};
  SUBCASE("a prefill of equal lengths") {
    expect_agreement(prefill_problem());
    CHECK(!fake_state().graph.has_lengths);
    CHECK(!fake_state().graph.query_shape.is_ragged);
    CHECK(!fake_state().graph.mask.is_bottom_right);
    CHECK(fake_state().graph.mask.right == 0);
  }
  SUBCASE("a prefill of several lengths") {
    Problem p = base_problem();
    p.batch = {{20, 20}, {7, 7}, {1, 1}, {33, 33}};
    expect_agreement(p);
    CHECK(fake_state().graph.stats_shape.is_ragged);
  }
  SUBCASE("images and windows of an encoder") {
    Problem p = mm_problem();
    expect_agreement(p);
    CHECK(fake_state().graph.query_shape.is_ragged);
    CHECK(!fake_state().graph.mask.right);
    CHECK(!fake_state().graph.pages);
    p.batch = {{16, 16}, {16, 16}};
    expect_agreement(p);
    CHECK(!fake_state().graph.has_lengths);
    // Rows of a batch, with other keys than queries.
    p.mm_encoder.batch_size = 2;
    p.mm_encoder.kv_len = 24;
    p.batch = {{16, 24}, {16, 24}};
    expect_agreement(p);
    CHECK(!fake_state().graph.pages);
  }
  SUBCASE("rows behind context, in pages of either order") {
    Problem p = base_problem();
    expect_agreement(p);
    CHECK(fake_state().graph.mask.is_bottom_right);
    p.kv_cache.layout = CacheLayout::kHnd;
    p.kv_cache.block_size = 32;
    expect_agreement(p);
  }
  SUBCASE("decodes, which need no mask") {
    Problem p = base_problem();
    p.batch = {{1, 70}, {1, 1}, {1, 33}};
    expect_agreement(p);
    CHECK(!fake_state().graph.query_shape.is_ragged);
    CHECK(!fake_state().graph.mask.right);
  }
  SUBCASE("decodes in a window") {
    Problem p = base_problem();
    p.batch = {{1, 70}, {1, 1}, {1, 33}};
    p.attention.sliding_window = 8;
    expect_agreement(p);
    CHECK(fake_state().graph.mask.left == 8);
  }
  SUBCASE("several rows in a window, with one and with no head to share keys") {
    Problem p = base_problem();
    p.attention.sliding_window = 9;
    p.attention.num_kv_heads = 1;
    expect_agreement(p);
    p.attention.num_kv_heads = 4;
    expect_agreement(p);
  }
  SUBCASE("padding rows") {
    Problem p = base_problem();
    p.batch = {{1, 70}, {0, 0}, {3, 20}, {0, 0}};
    expect_agreement(p);
  }
  SUBCASE("sinks") {
    Problem p = base_problem();
    p.attention.sinks = SinksKind::kNormal;
    expect_agreement(p);
  }
  SUBCASE("encoders, windows of two sides, cross attention") {
    expect_agreement(encoder_problem());
    Problem windowed = encoder_problem();
    windowed.attention.sliding_window = 4;
    expect_agreement(windowed);
    CHECK(fake_state().graph.mask.right == 3);
    Problem cross = encoder_problem();
    cross.attention.type = AttentionType::kEncoderDecoder;
    cross.batch = {{3, 40}, {1, 17}, {30, 9}};
    expect_agreement(cross);
  }
  SUBCASE("values of another head size than the keys, with and without context") {
    Problem p = base_problem();
    p.attention.head_size = 24;
    expect_agreement(p);
    Problem encoder = encoder_problem();
    encoder.attention.head_size = 24;
    expect_agreement(encoder);
  }
  SUBCASE("float16") {
    Problem p = base_problem();
    p.attention.dtype = Dtype::kF16;
    expect_agreement(p);
  }
  SUBCASE("e4m3 with an e4m3 output") {
    expect_agreement(fp8_problem());
    CHECK(fake_state().graph.input == Dtype::kE4M3);
    CHECK(fake_state().graph.output == Dtype::kE4M3);
  }
}

TEST_CASE("an LSE in base 2, or a diagonal at the wrong corner, is seen") {
  fake_state() = {};
  fake_state().base_two_stats = true;
  const Run swapped(base_problem());
  CHECK(deviation(swapped.output.output, swapped.reference().output, 5e-3) == "");
  CHECK(deviation(*swapped.output.lse, swapped.reference().lse, kLseLimit) != "");
  fake_state() = {};
  fake_state().top_left_only = true;
  const Run top_left(base_problem());
  CHECK(deviation(top_left.output.output, top_left.reference().output, 5e-3) != "");
}

TEST_CASE("statistics become the LSE of heads and tokens") {
  Problem p = base_problem();
  p.attention.num_heads = 2;
  p.batch = {{2, 2}, {2, 2}};
  const std::vector<float> by_request{0, 1, 10, 11, 2, 3, 12, 13};  // [B, H, Sq]
  const std::vector<float> by_token{0, 10, 1, 11, 2, 12, 3, 13};    // [T, H]
  for (const bool is_uniform : {true, false}) {
    const Tensor lse = lse_of_cudnn_stats(p, is_uniform ? by_request : by_token, is_uniform);
    for (std::int64_t i = 0; i < 8; ++i) {
      CHECK(lse.at(i) == static_cast<float>(i < 4 ? i : 10 + i - 4));
    }
  }
}

TEST_CASE("offsets are in elements, and wide where 32 bits end") {
  Problem p = base_problem();
  p.attention.type = AttentionType::kEncoderOnly;
  p.attention.head_size = 8;
  p.batch = {{3, 3}, {5, 5}};
  CudnnForm form = make_cudnn_form(p, resolve_attention_math(p, kCudnnRules));
  CHECK(form.query_offsets == std::vector<std::int64_t>{0, 3 * 4 * 8, 8 * 4 * 8});
  CHECK(form.key_offsets == std::vector<std::int64_t>{0, 3 * 2 * 8, 8 * 2 * 8});
  CHECK(form.value_offsets == std::vector<std::int64_t>{0, 3 * 2 * 16, 8 * 2 * 16});
  CHECK(form.stats_offsets == std::vector<std::int64_t>{0, 3 * 4, 8 * 4});
  CHECK(!form.graph.wide_offsets);
  p.batch = {{1 << 26, 1 << 26}, {5, 5}};
  CHECK(make_cudnn_form(p, resolve_attention_math(p, kCudnnRules)).graph.wide_offsets);
}

TEST_CASE("cuDNN's block table has no garbage") {
  Problem p = base_problem();
  p.batch = {{1, 33}, {1, 16}};
  const std::vector<std::int32_t> entries{7, 8, 9, -1, 99, 3, -1, 77, 88, -1};
  const Tensor table = Tensor::from_i32(entries, {2, 5});
  CHECK(cudnn_block_table(p, table, 3) == std::vector<std::int32_t>{7, 8, 9, 3, 0, 0});
}

TEST_CASE("cuDNN's cache is finite where nothing is, and a stray write there shows") {
  fake_state() = {};
  const Run run(base_problem());
  const PagedCache& before = *run.backend_inputs.cache;
  const Tensor clean = cudnn_cache(run.problem, before);
  REQUIRE(clean.size_bytes() == before.data.size_bytes());
  std::int64_t unused = 0;
  for (std::int64_t i = 0; i < clean.num_elements(); ++i) {
    if (clean.at(i) == 0.0f && !(before.data.at(i) == 0.0f)) ++unused;
  }
  // Three blocks beside those of the requests, and what is left of their last ones.
  const std::int64_t slots = (3 + 5 + 3 + 3) * 16 - (70 + 40 + 33);
  CHECK(unused == slots * 2 * 2 * 16);
  Tensor after = clean;
  restore_cudnn_cache(run.problem, before, after);
  CHECK(std::equal(after.bytes(), after.bytes() + after.size_bytes(), before.data.bytes()));
  std::int64_t stray = 0;
  while (!(clean.at(stray) == 0.0f) || before.data.at(stray) == 0.0f) ++stray;
  after = clean;
  after.set(stray, 1.0f);
  restore_cudnn_cache(run.problem, before, after);
  CHECK(after.at(stray) == 1.0f);
}

TEST_CASE("a graph that cuDNN has no kernel for is unsupported in its words") {
  fake_state() = {};
  fake_state().refusal = "no engine";
  CHECK_THROWS_WITH_AS(Run{base_problem()}, "no engine", Error);
}

TEST_CASE("where nothing runs, cuDNN is not asked") {
  fake_state() = {};
  Problem p = base_problem();
  p.inputs.shapes_only = true;
  add_blocks(p);
  const AttentionInputs inputs = make_inputs(p);
  BackendInputs backend_inputs;
  backend_inputs.inputs = &inputs;
  backend_inputs.query = store_query(p, inputs, kCudnnRules);
  const StoredKv stored = store_kv(inputs, resolve_store_rule(p, kCudnnRules));
  backend_inputs.cache = make_paged_cache(p, inputs, stored, CacheLayoutKind::kFa);
  const auto ops = make_cpu_ops(1);
  const auto pipeline = make_cudnn_backend(fake_choice)->prepare(p, backend_inputs, *ops);
  CHECK(pipeline->steps().size() == 1);
  CHECK(fake_state().num_plans == 0);
}

TEST_CASE("without its library CUDNN says what is missing, on a CPU that it needs a GPU") {
  static const CudnnChoice none{nullptr, {"built without cudnn-frontend", "cuDNN not found"}};
  const auto backend = make_cudnn_backend([]() -> const CudnnChoice& { return none; });
  CHECK(backend->refusals(base_problem(), kHopper) == none.missing);
  CHECK(backend->refusals(base_problem(), {}) ==
        List{"built without cudnn-frontend", "cuDNN not found", "CUDNN needs a CUDA device"});
  CHECK(backend->plugin() == nullptr);
  CHECK(!backend->is_default_for(AttentionType::kDecoder));
}

TEST_CASE("the version of cuDNN is that of the backend's library") {
  const auto backend = make_cudnn_backend(fake_choice);
  REQUIRE(backend->plugin() != nullptr);
  CHECK(backend->plugin()->version == "9.99.0, frontend 1.99.0");
  CHECK(backend->plugin()->library == "/nowhere/libcudnn.so.9");
  CHECK(!backend->is_users());
}

TEST_CASE("what cuDNN does not do is refused") {
  CHECK(reasons(base_problem()).empty());
  CHECK(reasons(encoder_problem()).empty());
  CHECK(reasons(fp8_problem()).empty());
  Problem p = base_problem();
  SUBCASE("types") {
    p.attention.type = AttentionType::kMla;
    CHECK(reasons(p) == List{"MLA not supported"});
    p.attention.type = AttentionType::kOp;
    CHECK(reasons(p) == List{"attention type op not supported"});
  }
  SUBCASE("encoders of images: in 16 bits") {
    p = mm_problem();
    CHECK(reasons(p).empty());
    p.mm_encoder.attn_dtype = MmAttnDtype::kFp8;
    CHECK(reasons(p) == List{"mm_encoder_attn_dtype='fp8' requires the FLASHINFER backend, got "
                             "CUDNN"});
  }
  SUBCASE("head sizes") {
    p.attention.head_size = p.attention.v_head_size = 20;
    CHECK(reasons(p) == List{"head_size not supported"});
    p.attention.head_size = p.attention.v_head_size = 256;
    CHECK(reasons(p).empty());
    CHECK(reasons(p, {100, 148, true}).empty());
    p.batch = {{1, 70}, {1, 40}};
    CHECK(reasons(p).empty());
    CHECK(reasons(p, {80, 108, true}) == List{"head_size not supported"});
    CHECK(reasons(p, {100, 148, true}) == List{"head_size not supported"});
    p.batch = {{2, 70}};
    p.attention.head_size = p.attention.v_head_size = 264;
    CHECK(reasons(p) == List{"head_size not supported"});
    p.attention.head_size = 192;
    p.attention.v_head_size = 128;
    CHECK(reasons(p).empty());
    CHECK(reasons(p, {80, 108, true}) == List{"v_head_size not supported"});
    p.attention.v_head_size = 64;
    CHECK(reasons(p) == List{"v_head_size not supported"});
  }
  SUBCASE("types of elements and pages") {
    p.attention.dtype = Dtype::kF32;
    CHECK(reasons(p) == List{"dtype not supported"});
    p = base_problem();
    p.kv_cache.dtype = KvCacheDtype::kFp8E5M2;
    CHECK(reasons(p) == List{"kv_cache_dtype not supported"});
    p = base_problem();
    p.kv_cache.block_size = 48;
    CHECK(reasons(p) == List{"block_size not supported"});
    p.batch = {{20, 20}};  // reads no pages
    CHECK(reasons(p).empty());
  }
  SUBCASE("scores") {
    p.attention.alibi = AlibiKind::kLinear;
    p.attention.logits_soft_cap = 30;
    CHECK(reasons(p) == List{"ALiBi not supported", "logits_soft_cap not supported"});
    p = base_problem();
    p.attention.sinks = SinksKind::kNormal;
    CHECK(reasons(p).empty());
    p.batch = {{1, 30}, {1, 40}};
    CHECK(reasons(p) == List{"attention sinks where every request has one row"});
  }
  SUBCASE("e4m3") {
    p = fp8_problem();
    CHECK(reasons(p, {80, 108, true}) == List{"kv_cache_dtype not supported"});
    p.output_quant.type = OutputQuantType::kNone;
    CHECK(reasons(p) == List{"e4m3 inputs without e4m3 output on compute capability < 10.0"});
    CHECK(reasons(p, {100, 148, true}).empty());
    p = fp8_problem();
    p.batch = {{2, 20}};
    CHECK(reasons(p) == List{"e4m3 keys in pages"});
    p = fp8_problem();
    p.attention.head_size = p.attention.v_head_size = 24;
    CHECK(reasons(p) == List{"head_size not supported"});
    p = fp8_problem();
    p.kv_cache.k_scale = {0.1, 0.2};
    CHECK(reasons(p) == List{"per-head quant scales not supported"});
    p = base_problem();
    p.attention.query_dtype = QueryDtype::kFp8E4M3;
    CHECK(reasons(p) == List{"fp8 query"});
    p.attention.query_dtype = QueryDtype::kAuto;
    p.output_quant.type = OutputQuantType::kFp8Static;
    CHECK(reasons(p) == List{"output quantization fp8_static not supported"});
  }
  SUBCASE("other systems") {
    p.dcp.world_size = 2;
    p.attention.batch_invariant = true;
    CHECK(reasons(p) == List{"batch invariance not supported", "DCP not supported"});
    p = base_problem();
    p.cascade.mode = CascadeMode::kAlways;
    p.cascade.common_prefix_len = 16;
    CHECK(reasons(p) == List{"cascade attention not supported by CUDNN"});
    p = base_problem();
    p.batch = {{0, 0}};
    CHECK(reasons(p) == List{"a batch without rows or keys"});
  }
}

}  // namespace
}  // namespace attnbench::cudnn_test
