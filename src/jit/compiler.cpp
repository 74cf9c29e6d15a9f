#include "jit/compiler.h"

#include <regex>

#include "core/error.h"

namespace attnbench {

std::string arch_of_sm(int sm) { return fmt::format("sm_{}{}", sm, sm >= 90 ? "a" : ""); }

int sm_of_arch(const std::string& arch) {
  std::smatch match;
  if (!std::regex_match(arch, match, std::regex("sm_(\\d{2,3})[af]?"))) {
    fail(ErrorKind::kUsage, "--arch: expected an architecture as sm_80 or sm_90a, found '{}'",
         arch);
  }
  return std::stoi(match[1]);
}

}  // namespace attnbench
