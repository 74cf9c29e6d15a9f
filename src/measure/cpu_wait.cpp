#include "measure/cpu_wait.h"

#include <filesystem>
#include <fstream>
#include <limits>

namespace attnbench {
namespace fs = std::filesystem;

double cpu_wait_s() {
  double sum_ns = std::numeric_limits<double>::quiet_NaN();
  std::error_code error;
  for (fs::directory_iterator task("/proc/self/task", error), end; !error && task != end;
       task.increment(error)) {
    std::ifstream file(task->path() / "schedstat");
    double ran_ns = 0;
    double waited_ns = 0;
    // A thread that has just ended has no file any more.
    if (file >> ran_ns >> waited_ns) sum_ns = (sum_ns >= 0 ? sum_ns : 0) + waited_ns;
  }
  return sum_ns * 1e-9;
}

}  // namespace attnbench
