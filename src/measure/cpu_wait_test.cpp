#include "measure/cpu_wait.h"

#include <doctest/doctest.h>

#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <thread>
#include <vector>

#include "core/system/parallel.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

/// A folder that stands for "/", gone with the object.
class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = (fs::temp_directory_path() / "attnbench-root-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~FakeRoot() { fs::remove_all(path); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  void write(const fs::path& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
  }

  fs::path path;
};

}  // namespace

TEST_CASE("a process with more busy threads than cores waits for them") {
  const ThreadWaits before = thread_waits();
  if (before.empty()) return;  // a kernel without schedstat
  std::atomic<bool> stop = false;
  const auto spin = [&] {
    while (!stop) {
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3 * available_cores(); ++i) threads.emplace_back(spin);
  double waited_us = 0;
  // The threads are alive while they are counted. Waiting shows as soon as one gets its turn.
  for (int i = 0; i < 1000 && !(waited_us > 1e3); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    waited_us = longest_wait_us(before, thread_waits());
  }
  stop = true;
  CHECK(waited_us > 1e3);
}

TEST_CASE("of many threads that wait a little the longest wait counts, and not their sum") {
  const ThreadWaits before{{1, 1000}, {2, 0}, {3, 0}, {4, 5000}};
  CHECK(longest_wait_us(before, {{1, 4000}, {2, 2000}, {3, 2500}, {4, 5000}}) == 3);
  CHECK(longest_wait_us(before, {{1, 1000}, {9, 7000}}) == 7);  // a thread that is new
  CHECK(longest_wait_us(before, before) == 0);
  CHECK(std::isnan(longest_wait_us({}, before)));
  CHECK(std::isnan(longest_wait_us(before, {})));
}

TEST_CASE("a quota of a control group limits the cores that can be used, the least one counts") {
  const FakeRoot root;
  const double all = available_cores();
  CHECK(usable_cores(root.path) == all);
  SUBCASE("version 2") {
    root.write("proc/self/cgroup", "0::/user/job\n");
    CHECK(usable_cores(root.path) == all);
    root.write("sys/fs/cgroup/user/job/cpu.max", "max 100000\n");
    CHECK(usable_cores(root.path) == all);
    root.write("sys/fs/cgroup/user/cpu.max", "50000 100000\n");
    CHECK(usable_cores(root.path) == 0.5);
    root.write("sys/fs/cgroup/user/job/cpu.max", "25000 100000\n");
    CHECK(usable_cores(root.path) == 0.25);
  }
  SUBCASE("a container sees its own group as the root") {
    root.write("proc/self/cgroup", "0::/\n");
    root.write("sys/fs/cgroup/cpu.max", "90000 100000\n");
    CHECK(usable_cores(root.path) == 0.9);
  }
  SUBCASE("version 1") {
    root.write("proc/self/cgroup", "5:memory:/a\n3:cpuacct,cpu:/a\n");
    root.write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
    root.write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    CHECK(usable_cores(root.path) == all);
    root.write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "70000\n");
    CHECK(usable_cores(root.path) == 0.7);
  }
}

TEST_CASE("the CPU time of this process grows while it runs") {
  const double start_us = process_cpu_us();
  CHECK(start_us > 0);
  double now_us = start_us;
  while (now_us < start_us + 100) now_us = process_cpu_us();
  CHECK(now_us >= start_us + 100);
}

}  // namespace attnbench
