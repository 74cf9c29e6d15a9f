// The commands of the tool: one file each, and the one list of all.
#pragma once

#include <functional>
#include <vector>

#include "cli/console.h"

namespace CLI {
class App;
}

namespace attnbench {

/// Runs a parsed command and returns the exit code. Errors: Error, which main() reports.
using RunCommand = std::function<int(const Console&)>;

struct Command {
  const char* name;
  const char* summary;
  const char* example;  // last lines of --help, after "Example:"
  /// Declares arguments and options; what it returns owns their values.
  RunCommand (*declare)(CLI::App& app);
};

RunCommand declare_run(CLI::App& app);
RunCommand declare_support(CLI::App& app);
RunCommand declare_explain(CLI::App& app);
RunCommand declare_compile(CLI::App& app);
RunCommand declare_validate(CLI::App& app);
RunCommand declare_device(CLI::App& app);
RunCommand declare_gate(CLI::App& app);
RunCommand declare_report(CLI::App& app);
RunCommand declare_calibrate(CLI::App& app);
RunCommand declare_scales(CLI::App& app);
RunCommand declare_list(CLI::App& app);

/// In the order of --help.
const std::vector<Command>& all_commands();

}  // namespace attnbench
