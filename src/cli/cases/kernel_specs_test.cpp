#include "cli/cases/kernel_specs.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "bench/cases/case.h"
#include "cli/cases/device.h"
#include "cli/cases/refusals.h"
#include "cli/cases/selection.h"
#include "ops/cuda/cuda_ops.h"

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
  const std::unique_ptr<System> system = make_system(*pair.problem, {});
  const std::unique_ptr<Trial> trial = system->start(*pair.backend);
  const std::unique_ptr<Pipeline> pipeline = trial->prepare(*ops);
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

}  // namespace attnbench
