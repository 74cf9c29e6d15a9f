#include "jit/ptxas_report.h"

#include <optional>
#include <regex>
#include <sstream>

#include "core/error.h"

namespace attnbench {
namespace {

std::optional<int> number_before(const std::string& line, const char* words) {
  std::smatch match;
  if (!std::regex_search(line, match, std::regex(std::string("(\\d+) ") + words))) return {};
  return std::stoi(match[1]);
}

}  // namespace

void read_ptxas_report(const std::string& log, CompiledKernel& kernel) {
  std::istringstream lines(log);
  bool is_about_kernel = false;
  bool found = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("Compiling entry function '") != std::string::npos) {
      is_about_kernel = line.find("'" + kernel.lowered_name + "'") != std::string::npos;
    }
    // Properties of functions that were not inlined are reported after those of the kernel.
    if (line.find("Function properties for ") != std::string::npos &&
        line.find("for " + kernel.lowered_name) == std::string::npos) {
      is_about_kernel = false;
    }
    if (!is_about_kernel) continue;
    if (const auto stack = number_before(line, "bytes stack frame")) kernel.stack_bytes = *stack;
    const auto stores = number_before(line, "bytes spill stores");
    const auto loads = number_before(line, "bytes spill loads");
    if (stores && loads) kernel.spill_bytes = *stores + *loads;
    if (const auto registers = number_before(line, "registers")) {
      kernel.registers = *registers;
      kernel.shared_bytes = number_before(line, "bytes smem").value_or(0);
      found = true;
    }
  }
  if (!found) {
    fail(ErrorKind::kCuda, "ptxas reported nothing about {}; its log:\n{}", kernel.lowered_name,
         log);
  }
}

}  // namespace attnbench
