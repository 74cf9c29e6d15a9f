#include "backends/device_buffers.h"

#include <doctest/doctest.h>

#include "core/error.h"

namespace attnbench {
namespace {

/// Buffers on the CPU, where device memory can be written like any other.
struct OnCpu {
  std::unique_ptr<Ops> ops = make_cpu_ops(1);
  DeviceBuffers memory{*ops};
};

}  // namespace

TEST_CASE("poison reaches workspaces and neither copies nor other memory") {
  OnCpu cpu;
  auto* workspace = cpu.memory.workspace_of<int>(2, "workspace");
  auto* kept = cpu.memory.allocate(sizeof(int), "kept").as<int>();
  const int* copy = cpu.memory.upload(std::vector<int>{4, 5}, "copy");
  CHECK(workspace[1] == -1);
  CHECK(*kept == -1);
  workspace[1] = *kept = 3;
  cpu.memory.poison();
  CHECK(workspace[1] == -1);
  CHECK(*kept == 3);
  CHECK(copy[1] == 5);
}

TEST_CASE("rows past those that are read are looked through for what was written") {
  OnCpu cpu;
  auto* rows = cpu.memory.workspace_of<float>(5 * 2 * 3, "rows");
  for (int i = 0; i < 18; ++i) rows[i] = static_cast<float>(i);
  const auto read = [&] { return cpu.memory.read_rows(rows, Dtype::kF32, {3, 2, 3}); };
  CHECK(read().rows.shape() == std::vector<std::int64_t>{3, 2, 3});
  CHECK(read().rows.at(17) == 17.0f);
  CHECK_FALSE(read().written_past);
  rows[29] = 0;  // the last element of the last row
  CHECK(read().written_past == 4);
  rows[18] = 0;  // the first one past those of interest
  CHECK(read().written_past == 3);
}

TEST_CASE("an LSE is read without what is behind the tokens of a head") {
  OnCpu cpu;
  auto* lse = cpu.memory.workspace_of<float>(2 * 4, "lse");
  for (int i = 0; i < 8; ++i) lse[i] = static_cast<float>(i);
  const Tensor read = cpu.memory.read_lse(lse, 2, 3, 4);
  CHECK(read.shape() == std::vector<std::int64_t>{2, 3});
  CHECK(read.at(2) == 2.0f);
  CHECK(read.at(3) == 4.0f);
}

TEST_CASE("memory is found by where it begins") {
  OnCpu cpu;
  const int* copy = cpu.memory.upload(std::vector<int>{4, 5}, "copy");
  CHECK(cpu.memory.starting_at(copy).size_bytes() == 2 * sizeof(int));
  CHECK_THROWS_AS(cpu.memory.starting_at(copy + 1), Error);
}

}  // namespace attnbench
