// Codes of prompts that become pages of 16 bits, on the CPU as a device that wants them.
#include "backends/attention/wide_pages.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "backends/attention/pipeline_testing.h"
#include "ops/forwarding_ops.h"

namespace attnbench {
namespace {

/// What a device wants of keys and values, and of values alone.
struct Wanted {
  WideUse pages = WideUse::kNever;
  WideUse values = WideUse::kNever;
};
constexpr Wanted kPages{.pages = WideUse::kWhereItPays};
constexpr Wanted kValues{.values = WideUse::kWhereItPays};
constexpr Wanted kAlwaysValues{.values = WideUse::kAlways};

/// Writes down what is converted, and which requests each call of attention has over what.
class WideCpu final : public ForwardingOps {
 public:
  WideCpu(Ops& cpu, Wanted wanted) : ForwardingOps(cpu), wanted_(wanted) {}
  WideUse wide_use(const attn::AttendParams& params) const override {
    if (params.kv.value_block_table == nullptr) {
      CHECK(params.kv.element == params.query_element);
      return wanted_.pages;
    }
    const bool is_int8 = params.int8.query_scale != nullptr;
    CHECK((!is_int8 || params.int8.value_element == attn::Element::kF16));
    return wanted_.values;
  }
  void gather_mla(const attn::MlaGatherParams& params) override {
    calls += fmt::format(" gather {}", params.num_tokens);
    inner().gather_mla(params);
  }
  void attend(const attn::AttendParams& params) override {
    const bool is_wide = element_size(params.kv.element) == 2;
    const bool is_apart = params.kv.value_block_table != nullptr;
    calls += fmt::format(" {} {}-{}",
                         is_wide    ? "wide"
                         : is_apart ? "values"
                                    : "codes",
                         params.first_request, params.first_request + params.num_requests);
    inner().attend(params);
  }
  std::string calls;

 private:
  Wanted wanted_;
};

struct WideRun {
  std::string calls;
  Facts facts;
  PipelineOutput output;
};

WideRun run_wide(Problem p, const std::string& name, Wanted wanted = kPages) {
  finish(p);
  Run run(p, name);  // whose inputs are used again
  WideCpu ops(*run.ops, wanted);
  const std::unique_ptr<Pipeline> pipeline =
      find_backend(name)->prepare(p, run.backend_inputs, ops);
  PipelineOutput output = checked_output(p, name, run, *pipeline, ops);
  return {ops.calls, pipeline->facts(), std::move(output)};
}

void check_same_bits(const WideRun& one, const WideRun& other) {
  const Tensor& a = one.output.output;
  const Tensor& b = other.output.output;
  CHECK(std::equal(a.bytes(), a.bytes() + a.size_bytes(), b.bytes(), b.bytes() + b.size_bytes()));
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
  const WideRun codes = run_wide(prompts(), "TRITON_ATTN", {});
  CHECK(codes.calls == " codes 0-5");
  CHECK(codes.facts.empty());
  check_same_bits(wide, codes);
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

/// Int8 at level 1.
Problem int8_prompts() {
  Problem p = prompts(KvCacheDtype::kAuto);
  p.kv_cache.k_scale = p.kv_cache.v_scale = {1.0};
  p.kv_cache.int8_level = 1;
  return p;
}

TEST_CASE("values of prompts whose weights keep 16 bits are converted alone, to the same bits") {
  // In one call with the decodes in front: 33 pages of 16.
  const WideRun fp8 = run_wide(prompts(), "FLASH_ATTN", kAlwaysValues);
  CHECK(fp8.calls == " gather 992 values 0-5");
  REQUIRE(fp8.facts.size() == 1);
  CHECK(fp8.facts[0].first == "values of prompts");
  CHECK(fp8.facts[0].second == "converted to float16 in front of the attention");
  check_same_bits(fp8, run_wide(prompts(), "FLASH_ATTN", {}));
  Problem p = prompts();
  p.kv_cache.layout = CacheLayout::kHnd;
  p.kv_cache.v_scale = {0.7, 1.9};  // a scale for each head
  check_same_bits(run_wide(p, "FLASH_ATTN", kAlwaysValues), run_wide(p, "FLASH_ATTN", {}));
  p = int8_prompts();
  p.attention.num_splits = 2;
  const WideRun int8 = run_wide(p, "FLASH_ATTN_IX", kAlwaysValues);
  CHECK(int8.calls == " gather 864 values 2-5");
  check_same_bits(int8, run_wide(p, "FLASH_ATTN_IX", {}));
  p = int8_prompts();
  p.batch = {{400, 430}, {420, 420}};
  p.attention.sliding_window = 150;
  CHECK(run_wide(p, "FLASH_ATTN_IX", kAlwaysValues).calls == " gather 864 values 0-2");
}

TEST_CASE("values stay codes where nothing multiplies them in 16 bits, and where it does not pay") {
  CHECK(run_wide(prompts(), "FLASH_ATTN", kValues).calls == " codes 0-5");  // few rows
  CHECK(run_wide(int8_prompts(), "FLASH_ATTN_IX", kValues).calls == " codes 0-5");
  Problem p = prompts();
  p.batch = {{700, 700}};
  CHECK(run_wide(p, "FLASH_ATTN", kValues).calls == " codes 0-1");
  p.attention.num_heads = 16;
  CHECK(run_wide(p, "FLASH_ATTN", kValues).calls == " gather 704 values 0-1");
  p = prompts();
  p.inputs.std = 0.3;
  p.attention.probability_dtype = ProbabilityDtype::kFp8E4M3;
  CHECK(run_wide(p, "FLASH_ATTN", kAlwaysValues).calls == " codes 0-5");
  p = prompts();
  p.attention.batch_invariant = true;
  CHECK(run_wide(p, "FLASH_ATTN", kAlwaysValues).calls == " codes 0-5");
  CHECK(run_wide(prompts(), "TRITON_ATTN", kAlwaysValues).calls == " codes 0-5");
  p = int8_prompts();
  p.kv_cache.int8_level = 2;  // has them in 16 bits
  CHECK(run_wide(p, "FLASH_ATTN_IX", kAlwaysValues).calls == " codes 0-5");
  p = int8_prompts();
  p.batch = {{1, 400}, {1, 300}};  // saves its keys and values as it attends
  CHECK(run_wide(p, "FLASH_ATTN_IX", kAlwaysValues).calls == "");
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

TEST_CASE(
    "converting values alone pays where fifteen tiles of rows read them, of wide heads five") {
  using Batch = std::vector<Request>;
  constexpr std::int64_t kValue = 4096;  // bytes
  CHECK(wide_values_pay(Batch(2, {8192, 8192}), 4, -1, kValue, 128));
  CHECK(wide_values_pay(Batch(8, {2048, 2048}), 4, -1, kValue, 128));
  CHECK_FALSE(wide_values_pay(Batch(64, {512, 512}), 4, -1, kValue, 128));
  CHECK_FALSE(wide_values_pay(Batch(32, {1024, 1024}), 4, -1, kValue, 128));
  CHECK(wide_values_pay(Batch(64, {512, 512}), 4, -1, 2 * kValue, 256));
  CHECK_FALSE(wide_values_pay(Batch(64, {256, 256}), 4, -1, 2 * kValue, 256));
  CHECK(wide_values_pay({{1024, 16384}}, 4, -1, kValue, 128));
  CHECK_FALSE(wide_values_pay({{256, 16384}}, 4, -1, kValue, 128));
  Batch mixed(60, {1, 4096});
  mixed.resize(64, {1024, 3072});
  CHECK_FALSE(wide_values_pay(mixed, 4, -1, kValue, 128));
  CHECK(wide_values_pay({{16384, 16384}}, 4, 1024, kValue, 128));
  CHECK_FALSE(wide_values_pay({{16384, 16384}}, 4, 256, kValue, 128));
  CHECK_FALSE(wide_values_pay({{8192, 1 << 20}}, 4, -1, kValue, 128));
}

}  // namespace
}  // namespace attnbench
