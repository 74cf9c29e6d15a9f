// Pipelines end to end on small problems: inputs, cache write, attention, output and LSE against
// the float64 reference.
#pragma once

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

inline Problem base_problem() {
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

inline void finish(Problem& p) {
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

inline ReferenceOutput reference_of(const Problem& p, const std::string& name, const Run& run) {
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
inline std::string difference(const Tensor& actual, const std::vector<double>& expected,
                              double atol, double rtol) {
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
inline double output_tolerance(const Problem& p, const std::string& name) {
  const bool cached = !is_encoder_type(p.attention.type);
  if (cached && p.kv_cache.int8_level == 0 &&
      query_is_quantised(p, find_kernel_rules(name).value()))
    return 3e-2;
  const double unit = p.attention.dtype == Dtype::kF32   ? 2e-5
                      : p.attention.dtype == Dtype::kF16 ? 2e-3
                                                         : 1e-2;
  return cached && cache_is_quantised(p) ? 2 * unit : unit;
}

inline std::string describe(const Problem& p, const std::string& name) {
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

/// What `pipeline` gives on `ops` from the inputs of `run`, checked against the reference.
inline PipelineOutput checked_output(const Problem& p, const std::string& name, const Run& run,
                                     Pipeline& pipeline, Ops& ops) {
  pipeline.poison_outputs();
  for (const Step& step : pipeline.steps()) step.run();
  ops.synchronize();
  PipelineOutput output = pipeline.read_output(true);
  INFO(describe(p, name));
  const ReferenceOutput reference = reference_of(p, name, run);
  const double tolerance = output_tolerance(p, name);
  CHECK(difference(output.output, reference.output, tolerance, tolerance) == "");
  CHECK(difference(output.lse.value(), reference.lse, 1e-3, 1e-5) == "");
  CHECK(output.defect == "");
  return output;
}

/// Runs one backend and checks output, LSE, cache bytes, padding rows and repeatability.
inline void expect_agreement(Problem p, const std::string& name) {
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

inline bool has_step(const Problem& problem, const std::string& backend, const std::string& name) {
  Problem p = problem;
  finish(p);
  const Run run(p, backend);
  return std::any_of(run.pipeline->steps().begin(), run.pipeline->steps().end(),
                     [&](const Step& step) { return step.name == name; });
}

inline Problem random_problem(std::uint64_t seed) {
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

}  // namespace attnbench
