// argv -> command -> exit code. The commands are one file each in this folder, and rows of one
// table. A new command is
// a file that defines its declare_NAME(), the declaration of that here, and a row in commands.cpp.
#pragma once

#include <functional>
#include <vector>

#include "cli/options/option_table.h"
#include "cli/terminal/console.h"

namespace attnbench {

/// Runs a parsed command and returns the exit code. Errors: Error, which main() reports.
using RunCommand = std::function<int(const Console&)>;

struct Command {
  const char* name;
  const char* summary;
  const char* example;  // last lines of --help, after "Example:"
  /// Adds a row for each argument and option. What it returns owns the variables that the rows set
  /// and may keep a reference to `options`, which live until it has run.
  RunCommand (*declare)(OptionTable& options);
};

RunCommand declare_run(OptionTable& options);
RunCommand declare_support(OptionTable& options);
RunCommand declare_explain(OptionTable& options);
RunCommand declare_compile(OptionTable& options);
RunCommand declare_validate(OptionTable& options);
RunCommand declare_device(OptionTable& options);
RunCommand declare_invariance(OptionTable& options);
RunCommand declare_compose(OptionTable& options);
RunCommand declare_gate(OptionTable& options);
RunCommand declare_merge(OptionTable& options);
RunCommand declare_report(OptionTable& options);
RunCommand declare_calibrate(OptionTable& options);
RunCommand declare_scales(OptionTable& options);
RunCommand declare_import(OptionTable& options);
RunCommand declare_list(OptionTable& options);
RunCommand declare_init(OptionTable& options);
RunCommand declare_diff(OptionTable& options);
RunCommand declare_history(OptionTable& options);
RunCommand declare_completion(OptionTable& options);
RunCommand declare_man(OptionTable& options);

/// In the order of --help.
const std::vector<Command>& all_commands();

/// Shows every argument and option of every command, --help first, in the order of --help: what a
/// completion script or a manual page is generated from. The options are as nobody has given them;
/// they, and what their targets point to, are gone when `visit` returns.
void for_each_option(const std::function<void(const Command&, const Option&)>& visit);

/// Parses console.command (argv) and runs the command that it names; --help, --version and `help
/// COMMAND` print and return 0. Errors: kUsage for a command line that does not parse, and those of
/// the command.
int run_command_line(const Console& console);

}  // namespace attnbench
