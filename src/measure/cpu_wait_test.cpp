#include "measure/cpu_wait.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "core/parallel.h"

namespace attnbench {

TEST_CASE("a process with more busy threads than cores waits for them") {
  const double before_s = cpu_wait_s();
  if (std::isnan(before_s)) return;  // a kernel without schedstat
  std::atomic<bool> stop = false;
  const auto spin = [&] {
    while (!stop) {
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3 * available_cores(); ++i) threads.emplace_back(spin);
  double after_s = before_s;
  // The threads are alive while they are counted. Waiting shows as soon as one gets its turn.
  for (int i = 0; i < 1000 && !(after_s > before_s + 1e-3); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    after_s = cpu_wait_s();
  }
  stop = true;
  CHECK(after_s > before_s + 1e-3);
}

}  // namespace attnbench
