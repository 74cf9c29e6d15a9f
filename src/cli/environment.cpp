#include "cli/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <fstream>

#include "attnbench_version.h"
#include "core/sha256.h"
#include "core/system/parallel.h"
#include "jit/kernel_folder.h"

namespace attnbench {
namespace {

/// Value of the first line `key : value` of /proc/cpuinfo; empty when there is none.
std::string cpuinfo_field(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t end = line.find_last_not_of(" \t", colon - 1);
    if (colon == 0 || line.substr(0, end + 1) != key) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

/// Different architectures have different keys for it.
std::string cpu_model() {
  for (const char* key : {"model name", "Model", "CPU part", "uarch"}) {
    if (std::string model = cpuinfo_field(key); !model.empty()) return model;
  }
  return "unknown";
}

std::string compiler() {
#ifdef __clang__
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

/// For people who look at a file, not for comparisons.
std::string hostname() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {text.data(), size};
}

/// The same for machines whose times may be compared. Why without the host name: machines of one
/// kind may share a baseline.
std::string fingerprint(const Environment& environment) {
  const CpuInfo& cpu = environment.cpu;
  constexpr std::size_t kDigits = 16;
  std::string text =
      fmt::format("{}\n{}\n{}\n{}", cpu.model, cpu.cores, cpu.features, environment.compiler);
  if (!kernel_folder().empty()) text += "\nkernels of a folder";
  if (environment.device) {
    const DeviceDescription& device = *environment.device;
    text += fmt::format("\n{}\n{}\n{}", device.name, device.sm, device.num_sms);
  }
  return sha256_hex(text).substr(0, kDigits);
}

Environment describe_environment() {
  Environment environment;
  environment.hostname = hostname();
  environment.cpu = {cpu_model(), available_cores(), vector_extensions()};
  environment.compiler = compiler();
  environment.fingerprint = fingerprint(environment);
  return environment;
}

}  // namespace

std::string vector_extensions() {
  std::string names;
  const auto add = [&names](const char* name) {
    if (!names.empty()) names += ' ';
    names += name;
  };
#ifdef __SSE2__
  add("sse2");
#endif
#ifdef __AVX__
  add("avx");
#endif
#ifdef __F16C__
  add("f16c");
#endif
#ifdef __AVX2__
  add("avx2");
#endif
#ifdef __FMA__
  add("fma");
#endif
#ifdef __AVX512F__
  add("avx512f");
#endif
#ifdef __AVX512BW__
  add("avx512bw");
#endif
#ifdef __ARM_NEON
  add("neon");
#endif
#ifdef __ARM_FEATURE_SVE
  add("sve");
#endif
  return names;
}

const char* tool_version() { return ATTNBENCH_VERSION; }
const char* git_commit() { return ATTNBENCH_GIT; }

RunInfo describe_run(const std::vector<std::string>& command) {
  RunInfo info;
  info.tool_version = tool_version();
  info.git = git_commit();
  if (const std::string folder = kernel_folder(); !folder.empty()) {
    info.git += fmt::format(" with kernels of {} ({})", folder, kKernelFolderVariable);
  }
  info.created = utc_now();
  info.command = command;
  info.environment = describe_environment();
  return info;
}

void describe_device(const DeviceInfo& device, Environment& environment) {
  environment.device =
      DeviceDescription{device.name,     device.sm,     device.num_sms, device.memory_bytes,
                        device.l2_bytes, device.driver, device.runtime};
  environment.fingerprint = fingerprint(environment);
}

}  // namespace attnbench
