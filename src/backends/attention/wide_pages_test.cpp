// Codes of prompts that become pages of 16 bits, on the CPU as a device that wants them.
#include "backends/attention/wide_pages.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "backends/attention/pipeline_testing.h"
#include "ops/forwarding_ops.h"

namespace attnbench {
namespace {

/// Writes down what is converted, and which requests each call of attention has over what.
class WideCpu final : public ForwardingOps {
 public:
  WideCpu(Ops& cpu, bool wants) : ForwardingOps(cpu), wants_(wants) {}
  bool wants_wide_pages(const attn::AttendParams& params) const override {
    CHECK(params.kv.element == params.query_element);
    return wants_;
  }
  void gather_mla(const attn::MlaGatherParams& params) override {
    calls += fmt::format(" gather {}", params.num_tokens);
    inner().gather_mla(params);
  }
  void attend(const attn::AttendParams& params) override {
    const bool is_wide = element_size(params.kv.element) == 2;
    calls += fmt::format(" {} {}-{}", is_wide ? "wide" : "codes", params.first_request,
                         params.first_request + params.num_requests);
    inner().attend(params);
  }
  std::string calls;

 private:
  bool wants_;
};

struct WideRun {
  std::string calls;
  Facts facts;
  PipelineOutput output;
};

WideRun run_wide(Problem p, const std::string& name, bool wants = true) {
  finish(p);
  Run run(p, name);  // whose inputs are used again
  WideCpu ops(*run.ops, wants);
  const std::unique_ptr<Pipeline> pipeline =
      find_backend(name)->prepare(p, run.backend_inputs, ops);
  PipelineOutput output = checked_output(p, name, run, *pipeline, ops);
  return {ops.calls, pipeline->facts(), std::move(output)};
}

/// 4 heads on each KV head, so that prompts of 400 tokens are nine tiles of rows.
Problem prompts(KvCacheDtype dtype = KvCacheDtype::kFp8) {
  Problem p = base_problem();
  p.attention.num_heads = 8;
  p.kv_cache.dtype = dtype;
  p.kv_cache.k_scale = {0.7};
  p.kv_cache.v_scale = {1.3};
  p.batch = {{1, 70}, {1, 33}, {400, 430}, {0, 0}, {420, 420}};
  return p;
}

TEST_CASE("codes of prompts are converted once, decodes in front read theirs as they are") {
  // 27 pages of 16 each.
  CHECK(run_wide(prompts(), "TRITON_ATTN").calls == " gather 864 gather 864 codes 0-2 wide 2-5");
  Problem p = prompts(KvCacheDtype::kFp8E5M2);
  p.kv_cache.layout = CacheLayout::kHnd;
  CHECK(run_wide(p, "TRITON_ATTN").calls == " gather 864 gather 864 codes 0-2 wide 2-5");
  p = prompts();
  p.attention.dtype = Dtype::kF16;
  p.batch = {{400, 430}, {420, 420}};
  const WideRun run = run_wide(p, "TRITON_ATTN");
  CHECK(run.calls == " gather 864 gather 864 wide 0-2");
  REQUIRE(run.facts.size() == 1);
  CHECK(run.facts[0].second == "converted to float16 in front of the attention");
}

TEST_CASE("wide pages give the bits that attention over codes gives") {
  const WideRun wide = run_wide(prompts(), "TRITON_ATTN");
  const WideRun codes = run_wide(prompts(), "TRITON_ATTN", false);
  CHECK(codes.calls == " codes 0-5");
  CHECK(codes.facts.empty());
  const Tensor& a = wide.output.output;
  const Tensor& b = codes.output.output;
  CHECK(std::equal(a.bytes(), a.bytes() + a.size_bytes(), b.bytes(), b.bytes() + b.size_bytes()));
}

TEST_CASE("prompts beside split decodes, and windows and sinks, are attended over wide pages") {
  Problem p = prompts();
  p.kv_cache.k_scale = p.kv_cache.v_scale = {1.0};
  p.attention.num_splits = 2;
  CHECK(run_wide(p, "FLASH_ATTN_IX").calls == " gather 864 gather 864 wide 2-5");
  p.attention.num_splits.reset();
  p.batch = {{400, 430}, {420, 420}};
  p.attention.sliding_window = 150;
  p.attention.sinks = SinksKind::kNormal;
  CHECK(run_wide(p, "TRITON_ATTN").calls == " gather 864 gather 864 wide 0-2");
}

TEST_CASE("where converting is not what attention over codes does, codes stay") {
  Problem p = prompts();
  p.attention.batch_invariant = true;
  CHECK(run_wide(p, "TRITON_ATTN").calls == " codes 0-5");
  p = prompts();
  p.kv_cache.k_scale = {0.7, 0.8};  // a scale for each head
  CHECK(run_wide(p, "TRITON_ATTN").calls == " codes 0-5");
  CHECK(run_wide(prompts(KvCacheDtype::kInt8PerTokenHead), "TRITON_ATTN").calls == " codes 0-5");
  CHECK(run_wide(prompts(KvCacheDtype::kAuto), "TRITON_ATTN").calls == " wide 0-5");  // 16 bits
  CHECK(run_wide(prompts(), "FLASH_ATTN").calls == " codes 0-5");  // its queries are codes too
}

TEST_CASE("converting pays where keys are read by more than two tiles of rows") {
  using Batch = std::vector<Request>;
  constexpr std::int64_t kKey = 4096;  // bytes
  CHECK(wide_pages_pay(Batch(2, {8192, 8192}), 4, -1, kKey));
  CHECK(wide_pages_pay(Batch(64, {512, 512}), 4, -1, kKey));
  CHECK(wide_pages_pay(Batch(64, {128, 128}), 4, -1, kKey));
  CHECK_FALSE(wide_pages_pay(Batch(64, {64, 64}), 4, -1, kKey));
  CHECK(wide_pages_pay({{128, 16384}}, 4, -1, kKey));
  CHECK_FALSE(wide_pages_pay({{96, 16384}}, 4, -1, kKey));
  // Decodes whose keys would be converted as well.
  Batch mixed(60, {1, 4096});
  mixed.resize(64, {1024, 3072});
  CHECK_FALSE(wide_pages_pay(mixed, 4, -1, kKey));
  // Rows that see few of the keys.
  CHECK(wide_pages_pay({{2048, 16384}}, 4, 4096, kKey));
  CHECK_FALSE(wide_pages_pay({{2048, 16384}}, 4, 128, kKey));
  CHECK_FALSE(wide_pages_pay({{8192, 1 << 20}}, 4, -1, kKey));  // 4 GiB
  CHECK_FALSE(wide_pages_pay({}, 4, -1, kKey));
  CHECK_FALSE(wide_pages_pay({{0, 0}}, 4, -1, kKey));
}

}  // namespace
}  // namespace attnbench
