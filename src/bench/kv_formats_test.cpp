// Every row of the table of KV cache types, from a problem to a verdict: a type without kernels, or
// that no backend lists, fails here.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "backends/backend.h"
#include "bench/bench.h"
#include "core/numbers/kv_format.h"
#include "inputs/mla_problem_testing.h"

namespace attnbench {
namespace {

class Silent final : public BenchObserver {
 public:
  void job_started(std::size_t, std::size_t, const Job&) override {}
  void phase(Phase) override {}
  void job_finished(const Result&) override {}
};

DeviceFacts hopper() {
  DeviceFacts facts;
  facts.sm = 90;
  return facts;
}

/// A decode, a chunked prefill and a fresh prefill; a cache that copies has the type of the model.
Problem with_cache(Problem problem, const KvFormat& format) {
  problem.scenario = "kv";
  problem.case_name = format.name;
  problem.kv_cache.dtype = format.value;
  problem.kv_cache.num_blocks = 24;
  problem.batch = {{1, 33}, {5, 48}, {20, 20}};
  if (!is_quantised(format.value)) problem.attention.dtype = format.codes.value_or(Dtype::kBF16);
  if (reads_tensor_scales(format.value)) problem.kv_cache.k_scale = {0.03};
  return problem;
}

Problem of_heads(const KvFormat& format) {
  Problem problem;
  AttentionSpec& a = problem.attention;
  a.num_heads = 4;
  a.num_kv_heads = 2;
  a.head_size = a.v_head_size = 64;
  a.scale = 0.125;
  return with_cache(problem, format);
}

Problem of_latents(const KvFormat& format, bool sparse) {
  MlaTestDims dims;
  if (format.packed) {
    dims.kv_lora_rank = format.packed->kv_lora_rank;
    dims.qk_rope_head_dim = format.packed->qk_rope_head_dim;
  }
  Problem problem = with_cache(mla_test_problem(dims), format);
  problem.kv_cache.block_size = sparse ? 64 : 16;
  if (sparse) problem.mla.sparse_topk = 128;
  return problem;
}

Problem operation(Problem problem, OpKind op, bool latents) {
  problem.attention.type = AttentionType::kOp;
  problem.op.name = op;
  problem.op.mla = latents;
  problem.op.cache_layout = latents ? OpCacheLayout::kAuto : OpCacheLayout::kTr;
  // Packed entries are gathered from the first token on.
  if (op == OpKind::kGather) problem.batch = {{33, 33}, {20, 20}};
  return problem;
}

/// Runs the problem on every native backend that takes it: how many did, and each must pass.
int num_passed(const Problem& problem) {
  BenchOptions options;
  options.timing = false;
  options.num_threads = 1;
  options.device_facts = hopper();
  Silent silent;
  int passed = 0;
  for (const Backend* backend : all_backends()) {
    if (!backend->runs_by_default(problem)) continue;
    if (!backend->refusals(problem, options.device_facts).empty()) continue;
    const std::string name(backend->name());
    const Result result =
        run_jobs({Job{&problem, backend, "kv/" + name, "", {}}}, options, silent).front();
    CAPTURE(name);
    CAPTURE(result.reasons);
    CHECK(result.status == Status::kPassed);
    passed += result.status == Status::kPassed ? 1 : 0;
  }
  return passed;
}

}  // namespace

TEST_CASE("every KV cache type is attended to by a backend that lists it") {
  for (const KvFormat& format : enum_rows(KvCacheDtype{})) {
    CAPTURE(format.name);
    if (format.of_heads) CHECK(num_passed(of_heads(format)) > 0);
    if (!format.of_latents) continue;
    CHECK(num_passed(of_latents(format, false)) + num_passed(of_latents(format, true)) > 0);
  }
}

TEST_CASE("every KV cache type is written by an operation, and gathered where it stores latents") {
  for (const KvFormat& format : enum_rows(KvCacheDtype{})) {
    CAPTURE(format.name);
    const OpKind write = OpKind::kReshapeAndCache;
    if (format.of_heads) CHECK(num_passed(operation(of_heads(format), write, false)) == 1);
    if (!format.of_latents) continue;
    const Problem latents = of_latents(format, false);
    CHECK(num_passed(operation(latents, write, true)) == 1);
    CHECK(num_passed(operation(latents, OpKind::kGather, true)) == 1);
  }
}

TEST_CASE("a KV cache type is refused where it stores something else") {
  for (const KvFormat& format : enum_rows(KvCacheDtype{})) {
    CAPTURE(format.name);
    if (!format.of_heads) CHECK(num_passed(of_heads(format)) == 0);
    if (!format.of_latents) {
      CHECK(num_passed(of_latents(format, false)) == 0);
      CHECK(num_passed(of_latents(format, true)) == 0);
    }
  }
}

}  // namespace attnbench
