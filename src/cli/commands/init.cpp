// attnbench init: writes a scenario, or the files of a plugin, to start from.
//
// Nothing is ever replaced: a file that is there already is an error before any other is written.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "cli/cases/starters.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/terminal/text.h"
#include "core/error.h"
#include "report/formats/output_file.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

struct InitArguments {
  std::string kind = "scenario";
  std::string path;
  std::string hf_config;
};

/// Writes the files below `folder`, which is made. Errors: E-IO for one that is there already.
void write_files(const fs::path& folder, const std::vector<StarterFile>& files, std::ostream& out) {
  std::error_code error;
  for (const StarterFile& file : files) {
    const fs::path path = folder / file.path;
    if (fs::exists(path, error)) {
      fail(ErrorKind::kIo, "{}: expected no file, found one; nothing was written", path.string());
    }
  }
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) {
    fail(ErrorKind::kIo, "{}: cannot make the folder: {}", folder.string(), error.message());
  }
  for (const StarterFile& file : files) {
    write_text((folder / file.path).string(), file.text);
    out << "wrote " << (folder / file.path).string() << "\n";
  }
}

int init_scenario(const InitArguments& arguments, const Console& console) {
  StarterFile file =
      arguments.hf_config.empty() ? scenario_starter() : scenario_of_model(arguments.hf_config);
  if (arguments.path == "-") {
    console.out << file.text;
    return kExitPassed;
  }
  if (!arguments.path.empty()) file.path = arguments.path;
  write_files("", {file}, console.out);
  console.out << fmt::format("next: attnbench run {}\n", shell_quote(file.path));
  return kExitPassed;
}

int init_plugin(const InitArguments& arguments, const Console& console) {
  const fs::path folder = arguments.path.empty() ? "my-plugin" : arguments.path;
  write_files(folder, plugin_starter(), console.out);
  const std::string name = shell_quote(folder.string());
  const std::string build = shell_quote((folder / "build").string());
  console.out << fmt::format(
      "next: cmake -S {0} -B {1} && cmake --build {1}\n"
      "      attnbench run {2} --device cpu --plugin {3}\n",
      name, build, shell_quote((folder / "case.yaml").string()),
      shell_quote((fs::absolute(folder) / "build" / "libmy_attention.so").string()));
  return kExitPassed;
}

int init_python(const InitArguments& arguments, const Console& console) {
  const fs::path folder = arguments.path.empty() ? "my-adapter" : arguments.path;
  write_files(folder, python_starter(), console.out);
  console.out << fmt::format(
      "next: cd {} && attnbench run case.yaml --backend python:my_attention:MyAttention\n",
      shell_quote(folder.string()));
  return kExitPassed;
}

/// The words of KIND.
std::vector<std::string> init_kinds() { return {"scenario", "plugin", "python"}; }

/// "init mine.yaml" and "init -" as well as "init scenario mine.yaml".
InitArguments with_kind(InitArguments arguments) {
  const std::string& kind = arguments.kind;
  const std::vector<std::string> kinds = init_kinds();
  if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) return arguments;
  const bool is_file = kind == "-" || kind.find_first_of("./") != std::string::npos;
  if (!is_file || !arguments.path.empty()) {
    fail(ErrorKind::kUsage,
         "KIND: expected one of {}, or the file of a scenario, found '{}'{}; see 'attnbench init "
         "--help'",
         fmt::join(kinds, ", "), kind, did_you_mean(kind, kinds));
  }
  return {.kind = "scenario", .path = kind, .hf_config = arguments.hf_config};
}

int init(const InitArguments& given, const Console& console) {
  const InitArguments arguments = with_kind(given);
  if (arguments.kind == "scenario") return init_scenario(arguments, console);
  if (!arguments.hf_config.empty()) {
    fail(ErrorKind::kUsage, "--hf: expected 'init scenario' with it, found 'init {}'",
         arguments.kind);
  }
  return arguments.kind == "plugin" ? init_plugin(arguments, console)
                                    : init_python(arguments, console);
}

}  // namespace

RunCommand declare_init(OptionTable& options) {
  auto arguments = std::make_shared<InitArguments>();
  options.add({.names = "KIND",
               .help = "scenario (the default), plugin (a kernel in C++ with its build) or python "
                       "(a class over torch tensors); a file name is that of a scenario",
               .target = &arguments->kind,
               .choices = init_kinds(),
               .takes_others = true});
  options.add({.names = "PATH",
               .help = "File of the scenario ('-' is stdout), or folder of the plugin",
               .target = &arguments->path});
  options.add({.names = "--hf",
               .value = "FILE",
               .help = "config.json of a Hugging Face model, or its folder, whose dimensions the "
                       "scenario gets",
               .target = &arguments->hf_config});
  return [arguments](const Console& console) { return init(*arguments, console); };
}

}  // namespace attnbench
