// Pipelines end to end on small problems: inputs, cache write, attention, output and LSE against
// the float64 reference.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "backends/backend.h"
#include "inputs/cache/check_cache.h"
#include "metadata/int_math.h"
#include "reference/attention.h"

namespace attnbench {
namespace {

Problem base_problem() {
  Problem p;
  p.scenario = p.case_name = "t";
  p.attention.num_heads = 4;
  p.attention.num_kv_heads = 2;
  p.attention.head_size = p.attention.v_head_size = 64;
  p.attention.scale = 0.125;
  p.batch = {{1, 70}, {5, 40}, {33, 33}};
  p.inputs.seed = 5;
  return p;
}

void finish(Problem& p) {
  std::int64_t blocks = 3;
  for (const Request& request : p.batch) {
    blocks += ceil_div(request.seq_len, p.kv_cache.block_size);
  }
  p.kv_cache.num_blocks = blocks;
  p.attention.v_head_size = std::max(p.attention.v_head_size, 1);
}

struct Run {
  AttentionInputs inputs;
  StoredKv stored;
  BackendInputs backend_inputs;
  std::unique_ptr<Ops> ops = make_cpu_ops(2);
  std::unique_ptr<Pipeline> pipeline;
  PipelineOutput output;

  Run(const Problem& p, const std::string& name) : inputs(make_inputs(p)) {
    const Backend* backend = find_backend(name);
    backend_inputs.inputs = &inputs;
    backend_inputs.query = store_query(p, inputs, backend->kernel_rules());
    if (!is_encoder_type(p.attention.type)) {
      stored = store_kv(inputs, resolve_store_rule(p, backend->kernel_rules()));
      backend_inputs.stored = &stored;
      if (const auto kind = backend->cache_layout()) {
        backend_inputs.cache = make_paged_cache(p, inputs, stored, *kind);
      }
    }
    pipeline = backend->prepare(p, backend_inputs, *ops);
    output = again();
  }

  PipelineOutput again() {
    pipeline->poison_outputs();
    for (const Step& step : pipeline->steps()) step.run();
    ops->synchronize();
    return pipeline->read_output();
  }
};

ReferenceOutput reference_of(const Problem& p, const std::string& name, const Run& run) {
  ReferenceInputs sources;
  const BackendInputs& in = run.backend_inputs;
  sources.query = in.query.dequantized ? &*in.query.dequantized : &in.query.query;
  const bool dequantised = in.stored != nullptr && !in.stored->key_dequantized.empty();
  sources.key = dequantised ? &in.stored->key_dequantized : &run.inputs.key;
  sources.value = dequantised ? &in.stored->value_dequantized : &run.inputs.value;
  sources.query_start_loc = run.inputs.query_start_loc;
  sources.seq_lens = run.inputs.seq_lens;
  sources.key_start_loc = run.inputs.key_start_loc;
  sources.sinks = run.inputs.sinks;
  sources.alibi_slopes = run.inputs.alibi_slopes;
  std::vector<std::int32_t> rows(static_cast<std::size_t>(run.inputs.num_tokens()));
  std::iota(rows.begin(), rows.end(), 0);
  return *reference_attention(resolve_attention_math(p, find_kernel_rules(name).value()), sources,
                              rows);
}

/// Where `actual` leaves `expected`, or nothing.
std::string difference(const Tensor& actual, const std::vector<double>& expected, double atol,
                       double rtol) {
  if (actual.num_elements() != static_cast<std::int64_t>(expected.size())) return "wrong extent";
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double a = double{actual.at(static_cast<std::int64_t>(i))};
    const double e = expected[i];
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    if (!(std::fabs(a - e) <= atol + rtol * std::fabs(e))) {
      return fmt::format("element {}: {} instead of {}", i, a, e);
    }
  }
  return "";
}

/// Acceptance of semantics §14.2.
double output_tolerance(const Problem& p, const std::string& name) {
  const bool cached = !is_encoder_type(p.attention.type);
  if (cached && p.kv_cache.int8_level == 0 &&
      query_is_quantised(p, find_kernel_rules(name).value()))
    return 3e-2;
  const double unit = p.attention.dtype == Dtype::kF32   ? 2e-5
                      : p.attention.dtype == Dtype::kF16 ? 2e-3
                                                         : 1e-2;
  return cached && cache_is_quantised(p) ? 2 * unit : unit;
}

std::string describe(const Problem& p, const std::string& name) {
  std::string batch;
  for (const Request& r : p.batch) batch += fmt::format(" q{}s{}", r.query_len, r.seq_len);
  const AttentionSpec& a = p.attention;
  return fmt::format(
      "{} type {} H {}/{} D {} {} kv {} bs {} {} window {} cap {} alibi {} sinks {} prefix {}:{}",
      name, to_string(a.type), a.num_heads, a.num_kv_heads, a.head_size, dtype_name(a.dtype),
      to_string(p.kv_cache.dtype), p.kv_cache.block_size, to_string(p.kv_cache.layout),
      a.sliding_window.value_or(0), a.logits_soft_cap, to_string(a.alibi),
      static_cast<int>(a.sinks), p.cascade.common_prefix_len, batch);
}

/// Runs one backend and checks output, LSE, cache bytes, padding rows and repeatability.
void expect_agreement(Problem p, const std::string& name) {
  finish(p);
  Run run(p, name);
  const ReferenceOutput reference = reference_of(p, name, run);
  INFO(describe(p, name));
  const double tolerance = output_tolerance(p, name);
  CHECK(difference(run.output.output, reference.output, tolerance, tolerance) == "");
  REQUIRE(run.output.lse);
  const double lse_atol = p.attention.dtype == Dtype::kF32 ? 1e-5 : 1e-3;
  CHECK(difference(*run.output.lse, reference.lse, lse_atol, 1e-5) == "");
  CHECK(run.output.defect == "");
  if (run.output.cache) {
    CHECK(check_cache(p, *run.backend_inputs.stored, *run.backend_inputs.cache, *run.output.cache,
                      run.output.key_scale_cache ? &*run.output.key_scale_cache : nullptr) == "");
  }
  const PipelineOutput second = run.again();
  const Tensor& first = run.output.output;
  CHECK(std::equal(first.bytes(), first.bytes() + first.size_bytes(), second.output.bytes()));
}

bool has_step(const Problem& problem, const std::string& backend, const std::string& name) {
  Problem p = problem;
  finish(p);
  const Run run(p, backend);
  return std::any_of(run.pipeline->steps().begin(), run.pipeline->steps().end(),
                     [&](const Step& step) { return step.name == name; });
}

Problem random_problem(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](auto... values) {
    const std::common_type_t<decltype(values)...> list[] = {values...};
    return list[random() % sizeof...(values)];
  };
  Problem p = base_problem();
  AttentionSpec& a = p.attention;
  using enum AttentionType;
  a.type = pick(kDecoder, kDecoder, kDecoder, kEncoder, kEncoderOnly, kEncoderDecoder);
  a.causal = a.type == kDecoder;
  a.num_kv_heads = pick(1, 2, 3);
  a.num_heads = a.num_kv_heads * pick(1, 2, 4, 7, 8, 16);
  a.head_size = a.v_head_size = pick(32, 40, 64, 80, 96, 128, 256);
  a.scale = 1.0 / std::sqrt(double(a.head_size));
  a.dtype = pick(Dtype::kBF16, Dtype::kF16, Dtype::kF32);
  if (pick(0, 0, 1) == 1) a.sliding_window = pick(1, 7, 40, 1000);
  a.logits_soft_cap = pick(0.0, 0.0, 30.0, 50.0);
  a.alibi = pick(AlibiKind::kNone, AlibiKind::kNone, AlibiKind::kLinear, AlibiKind::kSqrt);
  a.sinks = pick(SinksKind::kNone, SinksKind::kNormal);
  using enum KvCacheDtype;
  if (!is_encoder_type(a.type)) {
    p.kv_cache.dtype = pick(kAuto, kAuto, kFp8, kFp8E5M2, kInt8PerTokenHead, kFp8PerTokenHead);
  }
  p.kv_cache.block_size = pick(16, 32, 48);
  p.kv_cache.layout = pick(CacheLayout::kNhd, CacheLayout::kHnd);
  p.kv_cache.k_scale = {pick(1.0, 0.05)};
  p.kv_cache.v_scale = {pick(1.0, 0.05)};
  p.kv_cache.e5m2_as_e4m3 = pick(false, true);
  p.kv_cache.pth_int8_round = pick(PthInt8Round::kHalfAway, PthInt8Round::kTrunc);
  const bool decode_only = pick(0, 1) == 1;
  p.batch.clear();
  for (int b = pick(1, 2, 4); b > 0; --b) {
    const std::int64_t query_len = decode_only ? 1 : pick(0, 1, 3, 20, 70);
    const std::int64_t context = is_encoder_type(a.type) ? 0 : pick(0, 15, 16, 17, 130, 600);
    p.batch.push_back({query_len, query_len == 0 && context < 16 ? 0 : query_len + context});
  }
  if (a.type == kDecoder && pick(0, 0, 1) == 1) a.mm_prefix_ranges[0] = {{2, 30}, {5, 5}};
  p.inputs.seed = seed;
  return p;
}

}  // namespace

TEST_CASE("every supported random problem agrees with the reference on every backend") {
  int runs = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Problem p = random_problem(seed);
    for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"}) {
      if (!find_backend(name)->refusals(p, DeviceFacts{}).empty()) continue;
      expect_agreement(p, name);
      ++runs;
    }
  }
  CHECK(runs > 200);
}

TEST_CASE("a long decode is split over its keys by FLASH_ATTN and segmented by TRITON_ATTN") {
  Problem p = base_problem();
  p.batch = {{1, 1500}, {1, 513}, {1, 1}, {0, 0}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX"}) {
    CHECK(has_step(p, name, "combine"));
    expect_agreement(p, name);
  }
  CHECK(has_step(p, "TRITON_ATTN", "reduce_segments"));
  expect_agreement(p, "TRITON_ATTN");
  p.attention.sinks = SinksKind::kNormal;
  p.attention.sliding_window = 300;
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"}) expect_agreement(p, name);
}

TEST_CASE("layout IX splits the decodes of a mixed batch, layout FA has one call") {
  Problem p = base_problem();
  p.batch = {{1, 900}, {1, 600}, {40, 90}};
  CHECK(has_step(p, "FLASH_ATTN_IX", "combine"));
  CHECK_FALSE(has_step(p, "FLASH_ATTN", "combine"));
  expect_agreement(p, "FLASH_ATTN_IX");
  expect_agreement(p, "FLASH_ATTN");
}

TEST_CASE("speculative decodes of uneven context are split too") {
  Problem p = base_problem();
  p.attention.num_speculative_tokens = 3;
  p.batch = {{4, 900}, {2, 517}, {3, 3}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX"}) {
    CHECK(has_step(p, name, "combine"));
    expect_agreement(p, name);
  }
}

TEST_CASE("splits that are joined, and parts of a plan, give what splits give") {
  Problem p = base_problem();
  p.attention.sinks = SinksKind::kNormal;
  p.batch = {{1, 1500}, {1, 40}, {1, 1}, {0, 0}, {1, 513}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX"}) {
    p.attention.split_form = SplitForm::kJoined;
    CHECK_FALSE(has_step(p, name, "combine"));
    CHECK_FALSE(has_step(p, name, "plan"));
    expect_agreement(p, name);
    p.attention.split_form = SplitForm::kPlanned;
    CHECK(has_step(p, name, "plan"));
    CHECK(has_step(p, name, "combine"));
    expect_agreement(p, name);
    p.attention.split_form = SplitForm::kSeparate;
    CHECK(has_step(p, name, "combine"));
  }
  // Speculative decodes, and prefills behind them in layout IX.
  p.attention.num_speculative_tokens = 3;
  p.batch = {{4, 900}, {2, 517}, {3, 3}, {40, 90}};
  for (const SplitForm form : {SplitForm::kJoined, SplitForm::kPlanned}) {
    p.attention.split_form = form;
    expect_agreement(p, "FLASH_ATTN_IX");
  }
}

TEST_CASE("batch invariance turns splits and segments off") {
  Problem p = base_problem();
  p.attention.batch_invariant = true;
  p.batch = {{1, 1500}};
  CHECK_FALSE(has_step(p, "FLASH_ATTN", "combine"));
  CHECK_FALSE(has_step(p, "TRITON_ATTN", "reduce_segments"));
}

TEST_CASE("with batch invariance a request has the same bytes whatever stands beside it") {
  for (const char* name : {"FLASH_ATTN", "TRITON_ATTN"}) {
    Problem alone = base_problem();
    alone.attention.batch_invariant = true;
    alone.batch = {{1, 1500}};
    Problem together = alone;
    together.batch.push_back({1, 20});
    together.batch.push_back({60, 130});
    finish(alone);
    finish(together);
    const Run one(alone, name);
    const Run many(together, name);
    CHECK(std::memcmp(one.output.output.bytes(), many.output.output.bytes(),
                      one.output.output.size_bytes()) == 0);
  }
  Problem p = base_problem();
  p.attention.batch_invariant = true;
  CHECK(find_backend("FLASH_ATTN_IX")->refusals(p, DeviceFacts{}) ==
        std::vector<std::string>{"batch invariance not supported"});
}

TEST_CASE("TRITON_ATTN takes the path that is asked for") {
  Problem p = base_problem();
  p.batch = {{1, 1500}, {1, 40}};
  p.triton.path = TritonPath::k2d;
  CHECK_FALSE(has_step(p, "TRITON_ATTN", "reduce_segments"));
  p.triton.path = TritonPath::k3d;
  p.attention.num_kv_heads = 1;
  CHECK(has_step(p, "TRITON_ATTN", "reduce_segments"));
  p.triton.path = TritonPath::kAuto;
  p.batch.assign(129, {1, 20});  // the threshold of one KV head is 128
  CHECK_FALSE(has_step(p, "TRITON_ATTN", "reduce_segments"));
}

TEST_CASE("cascade equals plain attention, with sinks in the prefix only") {
  Problem p = base_problem();
  p.cascade.common_prefix_len = 64;
  p.cascade.mode = CascadeMode::kAlways;
  p.batch = {{1, 70}, {9, 100}, {40, 130}, {1, 65}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX"}) {
    CHECK(has_step(p, name, "merge"));
    expect_agreement(p, name);
  }
  p.attention.sinks = SinksKind::kNormal;
  p.attention.logits_soft_cap = 30;
  expect_agreement(p, "FLASH_ATTN");
  p.cascade.mode = CascadeMode::kNever;
  CHECK_FALSE(has_step(p, "FLASH_ATTN", "merge"));
}

TEST_CASE("several prefixes in one batch are attended apart, each for its own requests") {
  Problem p = base_problem();
  p.cascade.groups = {{3, 64}, {2, 32}, {1, 16}};
  p.cascade.mode = CascadeMode::kAlways;
  // The last two share nothing, and one of the second group is padding.
  p.batch = {{1, 70}, {9, 100}, {40, 130}, {0, 0}, {1, 65}, {2, 40}, {1, 30}, {5, 5}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX"}) {
    CHECK(has_step(p, name, "merge"));
    expect_agreement(p, name);
  }
  p.attention.sinks = SinksKind::kNormal;
  expect_agreement(p, "FLASH_ATTN");
  p.cascade.mode = CascadeMode::kNever;
  CHECK_FALSE(has_step(p, "FLASH_ATTN", "merge"));
  expect_agreement(p, "FLASH_ATTN");
}

TEST_CASE("padding rows take no part in a cascade") {
  Problem p = base_problem();
  p.cascade = {64, CascadeMode::kAlways};
  // First, so that the shared pages are not those of request 0.
  p.batch = {{0, 0}, {1, 100}, {0, 0}, {7, 90}};
  expect_agreement(p, "FLASH_ATTN");
  p.batch = {{0, 0}, {0, 0}};
  expect_agreement(p, "FLASH_ATTN");
}

TEST_CASE("an infinite sink and a cascade do not go together") {
  Problem p = base_problem();
  p.cascade = {64, CascadeMode::kAlways};
  p.attention.sinks = SinksKind::kValues;
  const double infinity = std::numeric_limits<double>::infinity();
  p.attention.sink_values = {0, -infinity, 50, infinity};
  p.batch = {{1, 100}, {7, 90}};
  finish(p);
  CHECK(find_backend("FLASH_ATTN")->refusals(p, {}) ==
        std::vector<std::string>{"cascade attention with an infinite sink"});
  p.attention.sink_values[3] = 1;
  expect_agreement(p, "FLASH_ATTN");
}

TEST_CASE("the cascade heuristic decides when the mode is auto") {
  Problem p = base_problem();
  p.cascade.common_prefix_len = 256;
  p.batch.assign(8, {2, 300});  // no flash decoding, so the heuristic says yes
  CHECK(has_step(p, "FLASH_ATTN", "merge"));
  expect_agreement(p, "FLASH_ATTN");
  p.batch.assign(7, {2, 300});
  CHECK_FALSE(has_step(p, "FLASH_ATTN", "merge"));
}

TEST_CASE("ranks of a DCP group agree with plain attention, whatever the exchange") {
  Problem p = base_problem();
  p.attention.num_heads = 8;
  p.batch = {{1, 70}, {1, 1}, {5, 40}, {33, 33}, {0, 0}, {20, 150}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX"}) {
    for (const int world_size : {2, 4, 8}) {
      for (const DcpComm comm : {DcpComm::kAgRs, DcpComm::kAgAr, DcpComm::kA2a}) {
        p.dcp.world_size = world_size;
        p.dcp.interleave_size = world_size == 4 ? 8 : world_size == 8 ? 16 : 1;
        p.dcp.comm = comm;
        expect_agreement(p, name);
      }
    }
  }
}

TEST_CASE("a rank whose heads begin inside a KV group reads the right KV heads") {
  Problem p = base_problem();
  p.attention.num_heads = 12;
  p.attention.num_kv_heads = 4;
  for (const int world_size : {2, 3, 6}) {
    p.dcp.world_size = world_size;
    expect_agreement(p, "FLASH_ATTN");
  }
}

TEST_CASE("ranks see the keys of a window by global positions, however they are striped") {
  Problem p = base_problem();
  p.batch = {{1, 1}, {1, 40}, {1, 333}, {5, 70}, {20, 20}, {17, 300}};
  for (const int world_size : {2, 4}) {
    p.dcp.world_size = world_size;
    for (const int interleave : {1, 4, 16}) {
      p.dcp.interleave_size = interleave;
      for (const int window : {1, 2, 16, 63, 100}) {
        CAPTURE(world_size);
        CAPTURE(interleave);
        CAPTURE(window);
        p.attention.sliding_window = window;
        expect_agreement(p, "FLASH_ATTN");
      }
    }
  }
}

TEST_CASE("ranks have ALiBi by global positions, with and without a window") {
  Problem p = base_problem();
  p.attention.num_heads = 8;
  p.batch = {{1, 1}, {1, 40}, {1, 1333}, {5, 70}, {20, 20}, {0, 0}, {17, 300}};
  for (const auto& [name, kind] :
       {std::pair{"FLASH_ATTN", AlibiKind::kLinear}, std::pair{"FLASH_ATTN_IX", AlibiKind::kLinear},
        std::pair{"FLASH_ATTN_IX", AlibiKind::kSqrt}}) {
    p.attention.alibi = kind;
    for (const int world_size : {2, 4}) {
      p.dcp.world_size = world_size;
      for (const int interleave : {1, 4, 16}) {
        p.dcp.interleave_size = interleave;
        CAPTURE(world_size);
        CAPTURE(interleave);
        p.attention.sliding_window.reset();
        expect_agreement(p, name);
        p.attention.sliding_window = 63;
        expect_agreement(p, name);
      }
    }
  }
  // Decodes alone, whose context is split.
  p.batch = {{1, 2500}, {1, 900}};
  p.attention.sliding_window.reset();
  expect_agreement(p, "FLASH_ATTN");
  p.kv_cache.dtype = KvCacheDtype::kFp8;
  p.kv_cache.k_scale = {0.5F, 0.25F};
  p.kv_cache.v_scale = {0.125F, 0.5F};
  p.attention.alibi = AlibiKind::kLinear;
  expect_agreement(p, "FLASH_ATTN");
}

TEST_CASE("ranks attend to the new keys as an fp8 cache stores them") {
  Problem p = base_problem();
  p.kv_cache.dtype = KvCacheDtype::kFp8;
  p.kv_cache.k_scale = {0.5F, 0.25F};
  p.kv_cache.v_scale = {0.125F, 0.5F};
  p.batch = {{1, 1}, {1, 40}, {5, 70}, {20, 20}, {0, 0}, {17, 300}};
  for (const int world_size : {2, 4}) {
    p.dcp.world_size = world_size;
    p.dcp.interleave_size = 4 / world_size;
    expect_agreement(p, "FLASH_ATTN");
    Problem windowed = p;
    windowed.attention.sliding_window = 19;
    expect_agreement(windowed, "FLASH_ATTN");
  }
}

TEST_CASE("a DCP group takes the steps of its order, splits long decodes and keeps its parts") {
  Problem p = base_problem();
  p.attention.logits_soft_cap = 20;
  p.batch = {{1, 2500}, {1, 900}};
  p.dcp.world_size = 2;
  expect_agreement(p, "FLASH_ATTN_IX");
  finish(p);
  const Run run(p, "FLASH_ATTN_IX");
  std::string names;
  for (const Step& step : run.pipeline->steps()) names += step.name + (step.in_median ? "* " : " ");
  CHECK(names ==
        "write_cache all_gather_query attend_context* all_gather_lse correct reduce_scatter "
        "attend_new* merge* ");
  REQUIRE(run.output.more.size() == 2);
  CHECK(run.output.more[0].second.shape() == std::vector<std::int64_t>{2, 2, 4, 64});
  CHECK(run.output.more[1].second.shape() == std::vector<std::int64_t>{2, 4, 2});
}

TEST_CASE("a DCP group that overlaps attends to the new tokens before the context") {
  Problem p = base_problem();
  p.batch = {{1, 70}, {5, 40}};
  p.dcp.world_size = 2;
  for (const DcpComm comm : {DcpComm::kAgRs, DcpComm::kAgAr, DcpComm::kA2a}) {
    p.dcp.comm = comm;
    p.dcp.overlap = false;
    finish(p);
    const Run plain(p, "FLASH_ATTN");
    p.dcp.overlap = true;
    expect_agreement(p, "FLASH_ATTN");
    const Run run(p, "FLASH_ATTN");
    std::string names;
    for (const Step& step : run.pipeline->steps())
      names += step.name + (step.in_median ? "* " : " ");
    CHECK(
        names.starts_with("write_cache all_gather_query attend_new* await_query attend_context* "));
    CHECK(names.ends_with(" merge* "));
    // The same operations in another order: the same bytes.
    const Tensor& output = run.output.output;
    CHECK(std::memcmp(output.bytes(), plain.output.output.bytes(), output.size_bytes()) == 0);
  }
}

TEST_CASE("random DCP problems agree with the reference") {
  std::mt19937_64 random(77);
  const auto pick = [&](auto... values) {
    const std::common_type_t<decltype(values)...> list[] = {values...};
    return list[random() % sizeof...(values)];
  };
  for (int i = 0; i < 120; ++i) {
    Problem p = base_problem();
    AttentionSpec& a = p.attention;
    p.dcp.world_size = pick(2, 3, 4, 5, 7, 8);
    a.num_kv_heads = pick(1, 2, 3);
    a.num_heads = p.dcp.world_size * a.num_kv_heads * pick(1, 2);
    a.head_size = a.v_head_size = pick(32, 64, 80);
    a.scale = 1.0 / std::sqrt(double(a.head_size));
    a.dtype = pick(Dtype::kBF16, Dtype::kF16);
    a.logits_soft_cap = pick(0.0, 30.0);
    p.kv_cache.block_size = pick(16, 32);
    p.kv_cache.layout = pick(CacheLayout::kNhd, CacheLayout::kHnd);
    p.dcp.interleave_size = pick(1, 2, 8, 16);
    p.dcp.comm = pick(DcpComm::kAgRs, DcpComm::kAgAr, DcpComm::kA2a);
    p.dcp.overlap = pick(false, true);
    a.alibi = pick(AlibiKind::kNone, AlibiKind::kLinear);
    p.batch.clear();
    for (int b = pick(1, 2, 5); b > 0; --b) {
      const std::int64_t query_len = pick(0, 1, 1, 3, 20);
      p.batch.push_back({query_len, query_len + pick(0, 1, 15, 16, 17, 130, 600)});
    }
    p.inputs.seed = static_cast<std::uint64_t>(i);
    expect_agreement(p, pick(0, 1) == 1 ? "FLASH_ATTN" : "FLASH_ATTN_IX");
  }
}

TEST_CASE("per-head scales of an fp8 cache are honoured by FLASH_ATTN") {
  Problem p = base_problem();
  p.kv_cache.dtype = KvCacheDtype::kFp8;
  p.kv_cache.k_scale = {0.02, 0.1};
  p.kv_cache.v_scale = {0.07, 0.01};
  p.kv_cache.q_scale = 0.03;
  expect_agreement(p, "FLASH_ATTN");
}

TEST_CASE("sinks of every size agree, infinite ones included") {
  Problem p = base_problem();
  p.attention.sinks = SinksKind::kValues;
  const double inf = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& values :
       {std::vector<double>{0, 50, -inf, 1}, std::vector<double>{inf, 0, 0, inf}}) {
    p.attention.sink_values = values;
    for (const char* name : {"FLASH_ATTN", "TRITON_ATTN"}) {
      p.batch = {{1, 70}, {5, 40}, {33, 33}};
      expect_agreement(p, name);
      p.batch = {{1, 700}, {1, 40}};
      expect_agreement(p, name);
    }
  }
}

TEST_CASE("batches without work and head counts that are odd run through") {
  Problem p = base_problem();
  p.batch = {{0, 0}, {0, 0}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN", "REFERENCE"}) {
    Problem q = p;
    finish(q);
    CHECK(Run(q, name).output.output.num_elements() == 0);
  }
  p.attention.num_kv_heads = 5;
  p.attention.num_heads = 35;
  p.batch = {{0, 0}, {3, 48}, {0, 17}, {1, 1}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"}) expect_agreement(p, name);
}

TEST_CASE("TRITON_ATTN stores a static FP8 output within one code of the reference") {
  for (const std::int64_t query_len : {1, 7}) {
    Problem p = base_problem();
    p.output_quant.type = OutputQuantType::kFp8Static;
    p.output_quant.scale = 0.01;
    p.batch = {{query_len, 300}};
    finish(p);
    const Run run(p, "TRITON_ATTN");
    CHECK(run.output.output.dtype() == Dtype::kE4M3);
    ReferenceOutput reference = reference_of(p, "TRITON_ATTN", run);
    for (double& value : reference.output) value /= 0.01;
    CHECK(difference(run.output.output, reference.output, 0.01, 0.13) == "");
  }
}

TEST_CASE("every supported random int8 problem agrees with the reference") {
  int runs = 0;
  for (std::uint64_t seed = 1000; seed < 1200; ++seed) {
    Problem p = random_problem(seed);
    p.attention.sinks = SinksKind::kNone;
    p.attention.mm_prefix_ranges.clear();
    p.kv_cache.dtype = KvCacheDtype::kAuto;
    p.kv_cache.int8_level = 1 + static_cast<int>(seed % 2);
    p.attention.num_speculative_tokens = seed % 3 == 0 ? 3 : 0;
    if (!find_backend("FLASH_ATTN_IX")->refusals(p, DeviceFacts{}).empty()) continue;
    expect_agreement(p, "FLASH_ATTN_IX");
    ++runs;
  }
  CHECK(runs > 50);
}

TEST_CASE("int8 decodes save their own keys, batches with a prefill write the cache before") {
  Problem p = base_problem();
  for (const int level : {1, 2}) {
    p.kv_cache.int8_level = level;
    p.batch = {{1, 900}, {1, 40}};
    CHECK(has_step(p, "FLASH_ATTN_IX", "quantise_int8"));
    CHECK(has_step(p, "FLASH_ATTN_IX", "save_and_attend"));
    CHECK(has_step(p, "FLASH_ATTN_IX", "combine"));
    CHECK_FALSE(has_step(p, "FLASH_ATTN_IX", "write_cache"));
    p.batch = {{1, 900}, {1, 40}, {5, 5}};
    CHECK(has_step(p, "FLASH_ATTN_IX", "write_cache"));
    CHECK(has_step(p, "FLASH_ATTN_IX", "combine"));
    CHECK_FALSE(has_step(p, "FLASH_ATTN_IX", "save_and_attend"));
  }
}

TEST_CASE("int8 decode gives the same bytes whether it saves the keys itself or not") {
  for (const std::int64_t seq_len : {60, 900}) {  // whole keys, and split ones
    Problem alone = base_problem();
    alone.kv_cache.int8_level = 2;
    alone.attention.num_speculative_tokens = 2;
    alone.batch = {{1, seq_len}, {3, 33}, {2, 2}};
    Problem mixed = alone;
    mixed.batch.push_back({7, 20});  // a prefill: written by slot mapping, scales transposed
    finish(alone);
    finish(mixed);
    const Run saved(alone, "FLASH_ATTN_IX");
    const Run written(mixed, "FLASH_ATTN_IX");
    CHECK(std::memcmp(saved.output.output.bytes(), written.output.output.bytes(),
                      saved.output.output.size_bytes()) == 0);
  }
}

TEST_CASE("quantising is no part of the median, saving inside decode is") {
  Problem p = base_problem();
  p.kv_cache.int8_level = 1;
  p.batch = {{1, 40}};
  finish(p);
  const Run run(p, "FLASH_ATTN_IX");
  for (const Step& step : run.pipeline->steps()) {
    CHECK(step.in_median == (step.name != "quantise_int8"));
    CHECK((step.bytes > 0) == (step.name != "combine"));
  }
}

TEST_CASE("a shared prefix is no cascade at int8 levels when the heuristic decides") {
  Problem p = base_problem();
  p.cascade.common_prefix_len = 256;
  p.batch.assign(8, {2, 300});
  CHECK(has_step(p, "FLASH_ATTN_IX", "merge"));
  p.kv_cache.int8_level = 1;
  CHECK_FALSE(has_step(p, "FLASH_ATTN_IX", "merge"));
  expect_agreement(p, "FLASH_ATTN_IX");
}

TEST_CASE("int8 cross attention writes every encoder key before it attends") {
  Problem p = base_problem();
  p.attention.type = AttentionType::kEncoderDecoder;
  p.attention.causal = false;
  p.kv_cache.int8_level = 2;
  p.attention.num_speculative_tokens = 3;  // all requests count as decodes
  p.batch = {{2, 70}, {4, 33}};
  CHECK(find_backend("FLASH_ATTN_IX")->refusals(p, DeviceFacts{}).empty());
  expect_agreement(p, "FLASH_ATTN_IX");
}

TEST_CASE("inputs of zeros are int8 codes of zero with scale zero") {
  Problem p = base_problem();
  p.attention.dtype = Dtype::kF16;
  p.inputs.std = 1e-8;  // most vectors are rounded to zeros, some are not
  for (const int level : {1, 2}) {
    p.kv_cache.int8_level = level;
    expect_agreement(p, "FLASH_ATTN_IX");
  }
}

TEST_CASE("the reference as a backend returns the reference rounded to the output type") {
  Problem p = base_problem();
  p.attention.sinks = SinksKind::kNormal;
  p.attention.alibi = AlibiKind::kSqrt;
  p.kv_cache.dtype = KvCacheDtype::kInt8PerTokenHead;
  expect_agreement(p, "REFERENCE");
  p.kv_cache.dtype = KvCacheDtype::kAuto;
  p.kv_cache.int8_level = 1;
  expect_agreement(p, "REFERENCE");
}

}  // namespace attnbench
