// What a backend needs so that the tool runs and judges it: this file adds one that nothing else
// knows, with a name and rules of its own.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "backends/attention/capability.h"
#include "backends/attention/pipeline.h"
#include "bench/bench.h"
#include "inputs/files/safetensors.h"
#include "metadata/mask/kernel_rules_testing.h"

namespace attnbench::new_backend_test {
namespace {

namespace fs = std::filesystem;

/// ALiBi and e5m2_as_e4m3 as TRITON_ATTN has them, but dequantised values stay float32.
constexpr KernelRules kOwnRules{.alibi = LinearAlibiRule::kContextRelative,
                                .honours_e5m2_as_e4m3 = true};

Capability capability_with(const KernelRules& rules) {
  Capability c;
  c.name = "NEWCOMER";
  c.rules = rules;
  c.dtypes = {Dtype::kBF16};
  c.kv_dtypes = {KvCacheDtype::kFp8E5M2};
  return c;
}

class NewcomerPipeline final : public AttentionPipeline {
 public:
  NewcomerPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                   const KernelRules& rules)
      : AttentionPipeline(problem, inputs, ops, rules) {
    add_write_step();
    add_attend_step("attend", [this] { this->ops().attend(params()); });
  }
};

class Newcomer final : public NativeBackend {
 public:
  explicit Newcomer(const KernelRules& rules) : Newcomer(rules, rules) {}
  Newcomer(const KernelRules& stated, const KernelRules& computed)
      : NativeBackend(capability_with(stated)), computed_(computed) {}
  std::string_view description() const override { return "a backend of a test"; }
  std::optional<CacheLayoutKind> cache_layout() const override { return CacheLayoutKind::kTr; }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    return std::make_unique<NewcomerPipeline>(problem, inputs, ops, computed_);
  }
  Facts explain(const Problem&, const DeviceFacts&) const override { return {}; }

 private:
  KernelRules computed_;
};

/// A decode with context, a chunked prefill and a fresh one, by all that kOwnRules decide.
Problem example_problem() {
  Problem problem;
  problem.scenario = "suite";
  problem.case_name = "mixed";
  problem.attention.num_heads = 4;
  problem.attention.num_kv_heads = 2;
  problem.attention.head_size = problem.attention.v_head_size = 16;
  problem.attention.scale = 0.25;
  problem.attention.alibi = AlibiKind::kLinear;
  problem.kv_cache.dtype = KvCacheDtype::kFp8E5M2;
  problem.kv_cache.e5m2_as_e4m3 = true;
  problem.kv_cache.k_scale = problem.kv_cache.v_scale = {0.37};
  problem.kv_cache.num_blocks = 24;
  problem.batch = {{1, 33}, {5, 48}, {20, 20}};
  return problem;
}

struct Ran {
  Result result;
  SafetensorsFile saved;

  std::vector<float> values(const char* tensor) const {
    const Tensor* found = saved.find(tensor);
    REQUIRE(found != nullptr);
    std::vector<float> values;
    for (std::int64_t i = 0; i < found->num_elements(); ++i) values.push_back(found->at(i));
    return values;
  }
};

class Silent final : public BenchObserver {
 public:
  void job_started(std::size_t, std::size_t, const Job&) override {}
  void phase(Phase) override {}
  void job_finished(const Result&) override {}
};

Ran run(const Backend& backend) {
  const Problem problem = example_problem();
  std::string name = (fs::temp_directory_path() / "attnbench_newcomer_XXXXXX").string();
  BenchOptions options;
  options.timing = false;
  options.num_threads = 1;
  options.save = SaveTensors::kAlways;
  options.save_dir = mkdtemp(name.data());
  Silent observer;
  Ran ran;
  ran.result =
      run_jobs({{&problem, &backend, "suite/mixed/NEWCOMER", "", {}}}, options, observer).front();
  ran.saved = read_safetensors(options.save_dir / "suite__mixed__NEWCOMER.safetensors");
  fs::remove_all(options.save_dir);
  return ran;
}

}  // namespace

TEST_CASE("a backend that nothing else knows runs and passes by the rules that it states") {
  const Ran ran = run(Newcomer(kOwnRules));
  CHECK(ran.result.reasons == std::vector<std::string>{});
  CHECK(ran.result.status == Status::kPassed);
  CHECK(ran.result.backend == "NEWCOMER");
  REQUIRE(ran.result.lse_error);
  CHECK(ran.saved.metadata.at("kernel_rules") ==
        R"({"window":"symmetric","alibi":"context_relative","honours_e5m2_as_e4m3":true,)"
        R"("rounds_dequantised":false,"quantises_query":false,"reads_dequantised":false,)"
        R"("cache_layout":"TR"})");
}

TEST_CASE("by the rules of FLASH_ATTN the same backend computes and is expected other values") {
  const Ran own = run(Newcomer(kOwnRules)), flash = run(Newcomer(kFlashRules));
  CHECK(flash.result.status == Status::kPassed);
  for (const char* tensor : {"output", "lse", "reference_output", "reference_lse"}) {
    CAPTURE(tensor);
    CHECK(own.values(tensor) != flash.values(tensor));
  }
}

TEST_CASE("a backend that does not keep to the rules that it states is incorrect") {
  KernelRules stated = kOwnRules;
  stated.alibi = LinearAlibiRule::kByMask;
  CHECK(run(Newcomer(stated, kOwnRules)).result.status == Status::kIncorrect);
}

}  // namespace attnbench::new_backend_test
