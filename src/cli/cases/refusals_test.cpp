#include "cli/cases/refusals.h"

#include <doctest/doctest.h>

namespace attnbench {

TEST_CASE("forms of attention without a kernel are refused by name before they are run") {
  Problem problem;
  problem.attention.num_heads = problem.attention.num_kv_heads = 1;
  problem.attention.head_size = problem.attention.v_head_size = 1024;
  DeviceChoice device;
  device.name = "cuda:0";
  device.facts = {89, 128};
  const std::vector<std::string> refused = device_refusals(problem, device);
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].starts_with("attend of head_size 1024 needs "));
  CHECK(refused[0].ends_with(" bytes of shared memory of 101376"));
  problem.attention.head_size = problem.attention.v_head_size = 256;
  CHECK(device_refusals(problem, device).empty());
  problem.attention.type = AttentionType::kMla;
  CHECK(device_refusals(problem, device).empty());
  problem.mla.kv_lora_rank = 4096;
  CHECK(device_refusals(problem, device).size() == 1);
  // The CPU has every form, and a device that is there says itself how much memory it has.
  CHECK(device_refusals(problem, DeviceChoice{}).empty());
  problem.attention.type = AttentionType::kDecoder;
  problem.attention.head_size = problem.attention.v_head_size = 1024;
  device.info = DeviceInfo{};
  device.info->max_shared_bytes = 1 << 20;
  CHECK(device_refusals(problem, device).empty());
}

}  // namespace attnbench
