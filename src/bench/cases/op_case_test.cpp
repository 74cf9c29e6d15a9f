// Single operations from a scenario's problem to a verdict: what the tool calls right and wrong.
#include <doctest/doctest.h>

#include <cmath>

#include "backends/backend.h"
#include "backends/bare_reasons_testing.h"
#include "bench/cases/case.h"
#include "bench/cases/op_inputs.h"
#include "bench/judge/op_expect.h"
#include "bench/tensor_list.h"
#include "core/error.h"
#include "ops/ops.h"

namespace attnbench {
namespace {

/// 6 tokens, two of them with context, of 4 heads of 16; 2 KV heads.
Problem op_problem(OpKind op) {
  Problem problem;
  problem.scenario = "s";
  problem.case_name = "c";
  AttentionSpec& a = problem.attention;
  a.type = AttentionType::kOp;
  a.num_heads = 4;
  a.num_kv_heads = 2;
  a.head_size = a.v_head_size = 16;
  problem.kv_cache.num_blocks = 8;
  problem.batch = {{1, 20}, {1, 17}, {4, 4}};
  problem.op.name = op;
  if (op == OpKind::kIndexTopk) problem.mla.sparse_topk = 8;
  return problem;
}

struct Run {
  Problem problem;
  std::unique_ptr<Ops> ops = make_cpu_ops(1);
  std::unique_ptr<Case> the_case;
  std::unique_ptr<CaseRun> case_run;
  std::unique_ptr<Pipeline> pipeline;
  PipelineOutput output;

  explicit Run(Problem its_problem) : problem(std::move(its_problem)) {
    the_case = make_case(problem, {});
    static_cast<void>(the_case->notices());
    case_run = the_case->start(*find_backend("OPS"));
    pipeline = case_run->prepare(*ops);
    pipeline->poison_outputs();
    for (const Step& step : pipeline->steps()) step.run();
    output = pipeline->read_output();
  }
  std::vector<std::string> reasons() {
    std::vector<std::string> found = case_run->judge(output)->reasons;
    const std::string stored = case_run->check_stored(output);
    if (!stored.empty()) found.push_back(stored);
    if (!output.defect.empty()) found.push_back(output.defect);
    return found;
  }
};

TEST_CASE("a flipped bit of a written cache is named by request and position") {
  Problem problem = op_problem(OpKind::kReshapeAndCache);
  problem.op.cache_layout = OpCacheLayout::kFa;
  Run run(problem);
  CHECK(run.reasons().empty());
  const std::int64_t slot = run.the_case->problem().kv_cache.block_size;  // second block
  run.output.output.bytes()[slot * 2 * 16 * 2] ^= std::byte{1};
  const std::vector<std::string> reasons = run.reasons();
  REQUIRE(reasons.size() == 2);
  CHECK(reasons[0].starts_with("kv_cache["));
  CHECK(reasons[1].starts_with("cache write: "));
}

TEST_CASE("a fused write must store the very keys that the operation rotated") {
  Problem problem = op_problem(OpKind::kRopeAndCache);
  problem.op.cache_layout = OpCacheLayout::kTr;
  problem.op.rotary_dim = 16;
  Run run(problem);
  CHECK(run.reasons().empty());
  // A key one step away is still within the tolerance of the rotation, but is not what was stored.
  auto* codes = run.output.output.data<std::uint16_t>();
  const std::int64_t first_key = 4 * 16;
  codes[first_key] = static_cast<std::uint16_t>(codes[first_key] ^ 1);
  const std::vector<std::string> reasons = run.reasons();
  REQUIRE(reasons.size() == 1);
  CHECK(reasons[0].starts_with("kv_cache["));
}

TEST_CASE("a merge off by more than its tolerance, or unwritten, is incorrect") {
  Run run(op_problem(OpKind::kMerge));
  CHECK(run.reasons().empty());
  Tensor right = run.output.output;
  run.output.output.set(5, right.at(5) + 0.1f);
  CHECK(run.reasons().size() >= 1);
  run.output.output = right;
  run.output.output.set(7, std::nanf(""));
  CHECK(run.reasons().size() >= 1);
  run.output.output = right;
  run.output.lse.reset();
  CHECK_THROWS_WITH_AS(run.reasons(), doctest::Contains("left no 'lse'"), Error);
}

TEST_CASE("NVFP4: a neighbouring code in a thousand is within the rule, more or a scale is not") {
  Problem problem = op_problem(OpKind::kOutputQuant);
  problem.attention.head_size = problem.attention.v_head_size = 256;
  problem.output_quant.type = OutputQuantType::kNvfp4;
  Run run(problem);
  CHECK(run.reasons().empty());
  auto* codes = run.output.output.data<std::uint8_t>();
  // A magnitude of 2 to 4 has a neighbour one step up.
  std::int64_t changed = 0;
  for (std::int64_t i = 0; changed < 8 && i < run.output.output.num_elements(); ++i) {
    const int magnitude = codes[i] & 7;
    if (magnitude < 2 || magnitude > 4) continue;
    codes[i] = static_cast<std::uint8_t>(codes[i] + 1);
    ++changed;
    // 6 rows of 1024 codes: 6 are a thousandth.
    CHECK(run.reasons().empty() == (changed <= 6));
  }
  CHECK(changed == 8);
  Run other(problem);
  other.output.more[0].second.data<std::uint8_t>()[0] ^= 1;
  CHECK(other.reasons().size() == 1);
}

TEST_CASE("padding of TMA-aligned scales stays as it was, a write there is incorrect") {
  Problem problem = op_problem(OpKind::kOutputQuant);
  problem.attention.head_size = problem.attention.v_head_size = 64;
  problem.output_quant.type = OutputQuantType::kFp8Group64;
  problem.output_quant.column_major = problem.output_quant.tma_aligned = true;
  Run run(problem);
  CHECK(run.reasons().empty());
  Tensor& scales = run.output.more[0].second;
  CHECK(scales.shape() == std::vector<std::int64_t>{4, 8});  // 6 rows, rounded up to 8
  scales.set(7, 1.0f);
  CHECK(run.reasons().size() == 1);
}

TEST_CASE("no operation passes without having read its tokens") {
  for (const auto& row : enum_rows(OpKind{})) {
    Problem problem = op_problem(row.value);
    const std::string operation(to_string(*problem.op.name));
    CAPTURE(operation);
    problem.op.mla = problem.op.name == OpKind::kGather;
    if (problem.op.mla) problem.attention.num_kv_heads = 1;
    problem.op.rotary_dim = 16;
    problem.output_quant.type = problem.op.name == OpKind::kOutputQuant
                                    ? OutputQuantType::kFp8Static
                                    : OutputQuantType::kNone;
    Run run(problem);
    CHECK(run.reasons().empty());
    for (std::size_t b = 0; b < run.output.output.size_bytes(); ++b) {
      run.output.output.bytes()[b] ^= std::byte{0x55};
    }
    CHECK(!run.reasons().empty());
  }
}

TEST_CASE("every operation serves a batch without tokens") {
  for (const auto& row : enum_rows(OpKind{})) {
    Problem problem = op_problem(row.value);
    const std::string operation(to_string(*problem.op.name));
    CAPTURE(operation);
    problem.batch = {{0, 0}};
    problem.kv_cache.num_blocks = 2;
    problem.op.mla = problem.op.name == OpKind::kGather;
    if (problem.op.mla) problem.attention.num_kv_heads = 1;
    problem.op.rotary_dim = 16;
    problem.output_quant.type = problem.op.name == OpKind::kOutputQuant
                                    ? OutputQuantType::kFp8Static
                                    : OutputQuantType::kNone;
    Run run(problem);
    CHECK(run.reasons().empty());
  }
}

TEST_CASE("refusals of operations are in the words of semantics 13") {
  const Backend& ops = *find_backend("OPS");
  const auto reasons = [&](const Problem& problem) {
    return bare_reasons(ops.refusals(problem, {}));
  };
  using List = std::vector<std::string>;
  Problem fused = op_problem(OpKind::kRopeAndCache);
  fused.op.cache_layout = OpCacheLayout::kTr;
  fused.kv_cache.dtype = KvCacheDtype::kInt8PerTokenHead;
  CHECK(reasons(fused) == List{"fused rope+kvcache with per-token-head quantization"});
  fused.kv_cache.dtype = KvCacheDtype::kTurboK8V4;
  CHECK(reasons(fused) == List{"fused rope+kvcache with turboquant_k8v4"});
  Problem write = op_problem(OpKind::kReshapeAndCache);
  write.op.cache_layout = OpCacheLayout::kFa;
  CHECK(reasons(write).empty());
  write.kv_cache.dtype = KvCacheDtype::kFp8PerTokenHead;
  CHECK(reasons(write) == List{"kv_cache_dtype not supported"});
  write.op.cache_layout = OpCacheLayout::kTr;
  write.attention.head_size = write.attention.v_head_size = 18;
  CHECK(reasons(write) == List{"per-token-head KV cache requires head_size % 4 == 0"});
  Problem mixed = op_problem(OpKind::kReshapeAndCache);
  mixed.op.cache_layout = OpCacheLayout::kIx;
  mixed.kv_cache.int8_level = 2;
  CHECK(reasons(mixed).empty());
  mixed.attention.dtype = Dtype::kF32;
  CHECK(reasons(mixed) == List{"dtype not supported"});
  write.attention.type = AttentionType::kDecoder;
  CHECK(reasons(write) == List{"attention type decoder not supported"});
}

TEST_CASE("CUDNN is a known name that takes no single operation") {
  const Backend* cudnn = find_backend("CUDNN");
  REQUIRE(cudnn != nullptr);
  using List = std::vector<std::string>;
  const List found = cudnn->refusals(op_problem(OpKind::kMerge), {});
  REQUIRE(found.size() >= 2);
  CHECK(List(found.end() - 2, found.end()) ==
        List{"CUDNN needs a CUDA device", "attention type op not supported"});
  CHECK(!cudnn->is_default_for(AttentionType::kOp));
}

}  // namespace
}  // namespace attnbench
