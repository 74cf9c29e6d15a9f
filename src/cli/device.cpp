#include "cli/device.h"

#include <dlfcn.h>

#include <regex>

#include "core/error.h"

namespace attnbench {
namespace {

/// Compute capabilities that exist or are announced lie well inside.
constexpr int kMinSm = 50;
constexpr int kMaxSm = 129;

int parse_sm(const std::string& text) {
  std::smatch match;
  if (std::regex_match(text, match, std::regex("(?:sm_)?(\\d{1,2})\\.?(\\d)[af]?"))) {
    const int sm = 10 * std::stoi(match[1]) + std::stoi(match[2]);
    if (sm >= kMinSm && sm <= kMaxSm) return sm;
  }
  fail(ErrorKind::kUsage,
       "--assume-sm: expected a compute capability from 5.0 to 12.9, e.g. 90 or 9.0, found '{}'",
       text);
}

bool has_nvidia_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return false;
  dlclose(library);
  return true;
}

}  // namespace

DeviceChoice choose_device(const std::string& device, const std::string& assume_sm) {
  DeviceChoice choice;
  if (!assume_sm.empty()) choice.facts.sm = parse_sm(assume_sm);
  if (device == "auto" || device == "cpu") return choice;
  std::smatch match;
  if (!std::regex_match(device, match, std::regex("cuda(?::(\\d{1,3}))?"))) {
    fail(ErrorKind::kUsage, "--device: expected auto, cpu or cuda[:N], found '{}'", device);
  }
  choice.name = "cuda:" + (match[1].matched ? std::to_string(std::stoi(match[1])) : "0");
  choice.refusals = {has_nvidia_driver()
                         ? "CUDA backends are not in this version of attnbench"
                         : "no CUDA device: the NVIDIA driver (libcuda.so.1) was not found"};
  return choice;
}

}  // namespace attnbench
