#include "bench/loop/ceiling_meter.h"

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

namespace attnbench {

TEST_CASE("a meter measures in a process of its own, and the best of its measurements counts") {
  int calls = 0;
  CeilingMeter meter([&calls]() -> CpuCeilings {
    ++calls;
    return calls == 2 ? CpuCeilings{5, 40} : CpuCeilings{7, 30};
  });
  CHECK(meter.measure().gflops == 7);
  const CpuCeilings second = meter.measure();
  CHECK(second.gflops == 7);
  CHECK(second.gbps == 40);
  CHECK(calls == 0);  // here: the child has its own
}

TEST_CASE("a meter serves the children of its process") {
  CeilingMeter meter([]() -> CpuCeilings { return {3, 4}; });
  const pid_t child = fork();
  if (child == 0) _exit(meter.measure().gbps == 4 ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(meter.measure().gflops == 3);
}

TEST_CASE("a meter that is gone says that nothing was measured") {
  CeilingMeter meter([]() -> CpuCeilings { _exit(1); });
  CHECK(meter.measure().gflops == 0);
  CHECK(meter.measure().gbps == 0);
}

}  // namespace attnbench
