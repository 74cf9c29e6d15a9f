#include "cli/cases/kernel_specs.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "backends/forced_kernel.h"
#include "bench/cases/attention_values.h"
#include "bench/cases/case.h"
#include "cli/cases/device.h"
#include "cli/cases/refusals.h"
#include "cli/cases/selection.h"
#include "ops/cuda/recording_ops.h"

namespace attnbench {
namespace {

/// The small suites as they are shipped.
std::vector<std::string> smoke_suites() {
  std::set<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(ATTNBENCH_SOURCE_DIR) / "scenarios")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("smoke") && name.ends_with(".yaml")) paths.insert(entry.path().string());
  }
  return {paths.begin(), paths.end()};
}

DeviceChoice h100() {
  DeviceChoice device;
  device.name = "cuda:0";
  device.facts = {90, 132};
  return device;
}

/// What is launched with inputs that have values.
std::vector<KernelSpec> specs_with_inputs(const Pair& pair, const cuda::Target& target) {
  std::vector<KernelSpec> specs;
  const std::unique_ptr<Ops> ops = make_recording_ops(target, specs);
  const std::unique_ptr<Case> the_case = make_case(*pair.problem, {});
  const std::unique_ptr<CaseRun> case_run = the_case->start(*pair.backend);
  const std::unique_ptr<Pipeline> pipeline = case_run->prepare(*ops);
  for (const Step& step : pipeline->steps()) step.run();
  return specs;
}

}  // namespace

TEST_CASE("planning without input values finds the kernels that a run with them launches") {
  const std::vector<LoadedScenario> scenarios = load_scenarios(smoke_suites(), {});
  REQUIRE(scenarios.size() > 50);
  const cuda::Target target = cuda::target_of_sm(90);
  // Why not every case: the first of each suite take seconds, all of them half a minute.
  constexpr int kCasesOfSuite = 1;
  std::map<const LoadedScenario*, std::set<const Problem*>> cases;
  for (const Pair& pair : select_pairs(scenarios, {})) {
    cases[pair.source].insert(pair.problem);
    if (cases[pair.source].size() > kCasesOfSuite) continue;
    if (!all_refusals(*pair.backend, *pair.problem, h100()).empty()) continue;
    CAPTURE(pair.id);
    const std::vector<KernelSpec> planned = specs_of_pair(*pair.problem, *pair.backend, target);
    CHECK_FALSE(planned.empty());
    CHECK(planned == specs_with_inputs(pair, target));
  }
}

// Why not: the thread sanitizer clears shadow memory of what is mapped, here terabytes.
#ifdef __SANITIZE_THREAD__
constexpr bool kShadowed = true;
#else
constexpr bool kShadowed = false;
#endif

TEST_CASE("a case is planned without the memory that its inputs would take" *
          doctest::skip(kShadowed)) {
  Problem problem;
  problem.attention.num_heads = 32;
  problem.attention.num_kv_heads = 8;
  problem.attention.head_size = problem.attention.v_head_size = 128;
  problem.attention.scale = 0.1;
  // 1.6 TB of keys and values.
  problem.batch.assign(64, {1, 6'000'000});
  problem.kv_cache.block_size = 256;
  problem.kv_cache.num_blocks = 64 * 23'438;
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"}) {
    CHECK_FALSE(specs_of_pair(problem, *find_backend(name), cuda::target_of_sm(90)).empty());
  }
}

namespace {

/// Two prompts of 300 tokens, or decodes of 2,000 keys.
Problem small_problem(bool decodes) {
  Problem problem;
  problem.attention.num_heads = 4;
  problem.attention.num_kv_heads = 2;
  problem.attention.head_size = problem.attention.v_head_size = 64;
  problem.attention.scale = 0.1;
  problem.batch.assign(2, decodes ? Request{1, 2000} : Request{300, 300});
  problem.kv_cache.num_blocks = 256;
  return problem;
}

std::vector<std::string> functions(const std::vector<KernelSpec>& specs) {
  std::vector<std::string> names;
  for (const KernelSpec& spec : specs) names.push_back(spec.function);
  return names;
}

}  // namespace

TEST_CASE("screening of an fp8 cache is planned for what its keys and queries are read as") {
  for (const double scale : {1.0, 0.3}) {
    Problem problem = small_problem(/*decodes=*/true);
    problem.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
    problem.kv_cache.k_scale = {scale};
    std::set<std::string> planned;
    for (const KernelSpec& spec : specs_of_screening(problem)) planned.insert(spec.name);
    AttentionValues values(problem, {1, {}});
    for (const char* name : {"FLASH_ATTN", "TRITON_ATTN"}) {
      const BackendInputs inputs = values.backend_inputs(*find_backend(name));
      std::set<Dtype> read{inputs.stored->key_dequantized.dtype(),
                           inputs.stored->value_dequantized.dtype()};
      read.insert(inputs.query.dequantized ? inputs.query.dequantized->dtype() : Dtype::kBF16);
      std::string types;
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
        if (read.contains(dtype)) types += " " + std::string(dtype_name(dtype));
      }
      CAPTURE(scale);
      CAPTURE(types);
      CHECK(planned.contains("screen attention 16x64" + types));
    }
    CHECK(planned.contains("screen attention 16x64 float32") == (scale != 1.0));
  }
}

TEST_CASE("a backend held to a kernel launches that one and otherwise the same") {
  const cuda::Target target = cuda::target_of_sm(90);
  const Backend& flash = *find_backend("FLASH_ATTN");
  const Problem problem = small_problem(/*decodes=*/true);
  using Names = std::vector<std::string>;
  CHECK(functions(specs_of_pair(problem, flash, target)) ==
        Names{"attn::write_cache", "attn::decode_cluster"});
  CHECK(functions(specs_of_pair(problem, with_forced_kernel(flash, "general"), target)) ==
        Names{"attn::write_cache", "attn::general_splits", "attn::combine_splits"});
}

TEST_CASE("backends held to different kernels take turns on the same operations") {
  const Problem problem = [] {
    Problem planned = small_problem(/*decodes=*/false);
    planned.inputs.shapes_only = true;
    return planned;
  }();
  std::vector<KernelSpec> specs;
  std::vector<cuda::AttendDecision> decisions;
  const std::unique_ptr<Ops> ops = make_recording_ops(cuda::target_of_sm(90), specs, &decisions);
  const std::unique_ptr<Case> the_case = make_case(problem, {});
  std::vector<std::unique_ptr<CaseRun>> case_runs;
  std::vector<std::unique_ptr<Pipeline>> pipelines;
  for (const char* kernel : {"general", "prefill"}) {
    case_runs.push_back(the_case->start(with_forced_kernel(*find_backend("FLASH_ATTN"), kernel)));
    pipelines.push_back(case_runs.back()->prepare(*ops));
  }
  case_runs.push_back(the_case->start(*find_backend("FLASH_ATTN_IX")));
  pipelines.push_back(case_runs.back()->prepare(*ops));
  const auto kernel_of_turn = [&](std::size_t index) {
    specs.clear();
    for (const Step& step : pipelines[index]->steps()) step.run();
    return specs.back().function;
  };
  for (int round = 0; round < 2; ++round) {
    CHECK(kernel_of_turn(0) == "attn::general");
    CHECK(kernel_of_turn(1) == "attn::prefill");
    CHECK(kernel_of_turn(2) == "attn::hopper_prefill");  // the first that fits
  }
}

TEST_CASE("a case that the forced kernel does not fit is refused with the kernel's reason") {
  const cuda::Target target = cuda::target_of_sm(90);
  const Backend& flash = *find_backend("FLASH_ATTN");
  const auto reasons = [&](const Problem& problem, const char* kernel,
                           const char* backend = "FLASH_ATTN") {
    return device_refusals(with_forced_kernel(*find_backend(backend), kernel), problem, [] {
      DeviceChoice device = h100();
      device.facts.is_cuda = true;
      return device;
    }());
  };
  using Reasons = std::vector<std::string>;
  CHECK(reasons(small_problem(false), "prefill").empty());
  CHECK(reasons(small_problem(true), "general").empty());
  CHECK(reasons(small_problem(true), "prefill") ==
        Reasons{"kernel prefill cannot do attend_splits: it has no form of attend_splits"});
  Problem odd = small_problem(false);
  odd.attention.head_size = odd.attention.v_head_size = 92;
  CHECK(reasons(odd, "decode", "TRITON_ATTN") ==
        Reasons{"kernel decode cannot do attend: head size 92 is not a multiple of 8"});
  CHECK(attend_decisions(small_problem(true), flash, target).size() == 1);
}

TEST_CASE("decodes beside prefills are launched apart over fp8 caches, and not by a named kernel") {
  Problem problem = small_problem(/*decodes=*/true);
  problem.attention.num_heads = 32;
  problem.attention.num_kv_heads = 8;
  problem.attention.head_size = problem.attention.v_head_size = 128;
  problem.batch.assign(60, {1, 4096});
  problem.batch.insert(problem.batch.end(), 4, {1024, 3072});
  problem.kv_cache.num_blocks = 64 * 256;
  const Backend& flash = *find_backend("FLASH_ATTN");
  using Names = std::vector<std::string>;
  const auto launched = [&](const Backend& backend, int sm = 90) {
    Names names = functions(specs_of_pair(problem, backend, cuda::target_of_sm(sm)));
    REQUIRE(names.at(0) == "attn::write_cache");
    names.erase(names.begin());
    return names;
  };
  const auto path = [&](const Backend& backend) {
    const Facts facts = planned_facts(problem, backend, cuda::target_of_sm(90));
    return facts.empty() ? std::string() : facts.at(0).second;
  };
  const Names apart{"attn::decode_splits", "attn::hopper_prefill", "attn::combine_splits"};
  const Backend& by_option = with_forced_kernel(flash, "decode:few=1:own_call=1");
  CHECK(launched(flash) == Names{"attn::hopper_tiles"});
  CHECK(launched(by_option) == apart);
  CHECK(launched(flash, 80) == Names{"attn::prefill"});
  problem.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
  // Values of the prefills become f16 in front of their attention; a named kernel does it on the
  // way.
  const Names in_front{"attn::gather_mla", "attn::decode_splits", "attn::hopper_prefill",
                       "attn::combine_splits"};
  CHECK(launched(flash) == in_front);
  CHECK(path(flash) == "decode and prefill calls");
  CHECK(launched(by_option) == apart);
  CHECK(path(by_option) == "decode and prefill calls");
  for (const char* kernel : {"hopper_prefill", "decode:few=1"}) {
    CHECK(launched(with_forced_kernel(flash, kernel)) == Names{"attn::hopper_prefill"});
    CHECK(path(with_forced_kernel(flash, kernel)).empty());
  }
  problem.kv_cache.dtype = KvCacheDtype::kAuto;
  problem.attention.head_size = problem.attention.v_head_size = 256;
  CHECK(launched(flash) == Names{"attn::hopper_prefill"});
  CHECK(launched(by_option) == apart);
}

TEST_CASE("what a pipeline says of itself stands where the backend said otherwise") {
  Facts facts{{"path", "one"}, {"num_splits", "1"}, {"cache", "FA"}};
  replace_facts({}, facts);
  CHECK(facts == Facts{{"path", "one"}, {"num_splits", "1"}, {"cache", "FA"}});
  replace_facts({{"path", "two"}, {"num_splits", "6"}, {"splits", "many"}}, facts);
  CHECK(facts == Facts{{"path", "two"}, {"num_splits", "6"}, {"splits", "many"}, {"cache", "FA"}});
  replace_facts({{"first", "0"}}, facts);
  CHECK(facts.front().first == "first");
}

}  // namespace attnbench
