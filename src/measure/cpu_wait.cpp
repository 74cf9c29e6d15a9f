#include "measure/cpu_wait.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "core/system/parallel.h"

namespace attnbench {
namespace fs = std::filesystem;
namespace {

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

/// Of a control group of version 2: "150000 100000", or "max 100000".
double quota_of_cpu_max(const fs::path& group) {
  std::ifstream file(group / "cpu.max");
  double quota_us = 0;
  double period_us = 0;
  return file >> quota_us >> period_us && period_us > 0 ? quota_us / period_us : kNoQuota;
}

/// Of version 1, where -1 is none.
double quota_of_cfs(const fs::path& group) {
  std::ifstream quota(group / "cpu.cfs_quota_us");
  std::ifstream period(group / "cpu.cfs_period_us");
  double quota_us = 0;
  double period_us = 0;
  const bool known = quota >> quota_us && period >> period_us && quota_us > 0 && period_us > 0;
  return known ? quota_us / period_us : kNoQuota;
}

/// The least quota of a group and of those around it, up to the one that is mounted at `mount`.
template <typename Quota>
double least_quota(const fs::path& mount, const fs::path& path, const Quota& quota_of) {
  double least = quota_of(mount);
  fs::path group = mount;
  for (const fs::path& name : path.relative_path()) {
    group /= name;
    least = std::min(least, quota_of(group));
  }
  return least;
}

/// Whether "cpu" is among names with commas between them.
bool lists_cpu(const std::string& controllers) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

/// A line of /proc/self/cgroup is "number:controllers:path"; version 2 has no controllers.
double quota_of_line(const fs::path& mounts, const std::string& line) {
  const std::size_t first = line.find(':');
  const std::size_t second = line.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return kNoQuota;
  const std::string controllers = line.substr(first + 1, second - first - 1);
  const fs::path path = line.substr(second + 1);
  if (controllers.empty()) return least_quota(mounts, path, quota_of_cpu_max);
  return lists_cpu(controllers) ? least_quota(mounts / "cpu", path, quota_of_cfs) : kNoQuota;
}

}  // namespace

ThreadWaits thread_waits() {
  ThreadWaits waits;
  std::error_code error;
  for (fs::directory_iterator task("/proc/self/task", error), end; !error && task != end;
       task.increment(error)) {
    const std::string name = task->path().filename().string();
    int thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    std::ifstream file(task->path() / "schedstat");
    std::int64_t ran_ns = 0;
    std::int64_t waited_ns = 0;
    // A thread that has just ended has no file any more.
    if (file >> ran_ns >> waited_ns) waits[thread] = waited_ns;
  }
  return waits;
}

double longest_wait_us(const ThreadWaits& before, const ThreadWaits& after) {
  if (before.empty() || after.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::int64_t longest_ns = 0;
  for (const auto& [thread, waited_ns] : after) {
    const auto earlier = before.find(thread);
    const std::int64_t start_ns = earlier == before.end() ? 0 : earlier->second;
    longest_ns = std::max(longest_ns, waited_ns - start_ns);
  }
  return static_cast<double>(longest_ns) * 1e-3;
}

double process_cpu_us() {
  std::timespec time{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

double held_up_us(double longest_wait_us, double elapsed_us, double ran_us, double cores) {
  if (std::isnan(longest_wait_us)) return longest_wait_us;
  return std::min(longest_wait_us, std::max(cores * elapsed_us - ran_us, 0.0));
}

double usable_cores(const fs::path& root) {
  double cores = available_cores();
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    cores = std::min(cores, quota_of_line(root / "sys/fs/cgroup", line));
  }
  return cores;
}

}  // namespace attnbench
