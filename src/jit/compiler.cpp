#include "jit/compiler.h"

#include <regex>
#include <vector>

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

namespace {

std::vector<std::string> quoted_includes(const std::string& text) {
  static const std::regex include(R"re((?:^|\n)[ \t]*#[ \t]*include[ \t]*"([^"\n]+)")re");
  std::vector<std::string> paths;
  for (std::sregex_iterator it(text.begin(), text.end(), include), end; it != end; ++it) {
    paths.push_back((*it)[1]);
  }
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
