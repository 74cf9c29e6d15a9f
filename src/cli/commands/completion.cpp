// attnbench completion, attnbench man: texts for shells and for man(1), written from the option
// tables of all commands. Packages install what these commands print
// (cmake/attnbench_install.cmake).
#include <memory>

#include "cli/commands/commands.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/options/shell_texts.h"

namespace attnbench {
namespace {

DescribedProgram described_program() {
  DescribedProgram program;
  program.name = "attnbench";
  program.description = "a referee for attention kernels: is it right, and how fast is it?";
  program.version = tool_version();
  for (const Command& command : all_commands()) {
    program.commands.push_back({command.name, command.summary, command.example, {}});
  }
  for_each_option([&](const Command& command, const Option& option) {
    for (DescribedCommand& described : program.commands) {
      if (described.name == command.name) described.options.push_back(option);
    }
  });
  return program;
}

std::string completion_of(const std::string& shell) {
  const DescribedProgram program = described_program();
  if (shell == "bash") return bash_completion(program);
  if (shell == "zsh") return zsh_completion(program);
  return fish_completion(program);
}

}  // namespace

RunCommand declare_completion(OptionTable& options) {
  auto shell = std::make_shared<std::string>();
  options.add({.names = "SHELL",
               .help = "bash, zsh or fish",
               .target = shell.get(),
               .required = true,
               .choices = {"bash", "zsh", "fish"}});
  return [shell](const Console& console) {
    console.out << completion_of(*shell);
    return kExitPassed;
  };
}

RunCommand declare_man(OptionTable&) {
  return [](const Console& console) {
    console.out << manual_page(described_program());
    return kExitPassed;
  };
}

}  // namespace attnbench
