#include "jit/compiler.h"

#include <vector>

#include "core/error.h"
#include "core/parsing.h"

namespace attnbench {

std::string arch_of_sm(int sm) { return fmt::format("sm_{}{}", sm, sm >= 90 ? "a" : ""); }

int sm_of_arch(const std::string& arch) {
  const Pattern::Groups match = Pattern("sm_(\\d{2,3})[af]?").match(arch);
  if (match.empty()) {
    fail(ErrorKind::kUsage, "--arch: expected an architecture as sm_80 or sm_90a, found '{}'",
         arch);
  }
  return std::stoi(match[1]);
}

namespace {

std::vector<std::string> quoted_includes(const std::string& text) {
  static const Pattern include(R"re((?:^|\n)[ \t]*#[ \t]*include[ \t]*"([^"\n]+)")re");
  std::vector<std::string> paths;
  for (const Pattern::Groups& line : include.search_all(text)) paths.push_back(line[1]);
  return paths;
}

void add_includes(const std::string& text, const std::string& who, const KernelFiles& files,
                  KernelFiles& found) {
  for (const std::string& path : quoted_includes(text)) {
    const auto file = files.find(path);
    if (file == files.end()) {
      fail(ErrorKind::kInternal, "{} includes \"{}\", which is no device file", who, path);
    }
    if (found.insert(*file).second) add_includes(file->second, path, files, found);
  }
}

}  // namespace

KernelFiles files_included_by(const std::string& program, const KernelFiles& files) {
  KernelFiles found;
  add_includes(program, "the generated program", files, found);
  return found;
}

}  // namespace attnbench
