// attnbench validate: checks scenario files and the names of backends in them.
//
// Goes on after a bad file, so that one call tells about all of them. What depends on the device or
// on files of tensors is left to `support` and `run`.
#include <memory>

#include "cli/cases/plugins.h"
#include "cli/cases/scenario_files.h"
#include "cli/cases/selection.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/options/shared_options.h"
#include "core/error.h"

namespace attnbench {
namespace {

struct ValidateArguments {
  std::vector<std::string> files;
  SelectionOptions selection;
};

/// A line for each good file on stdout, each error on stderr; exit code 2 when one was bad.
int validate_files(const ValidateArguments& arguments, const Console& console) {
  ScenarioOptions options;
  options.overrides = scenario_overrides(arguments.selection);
  options.search_path = installed_scenario_dirs();
  Plugins plugins(arguments.selection.plugins, choose_device("cpu", ""));
  int code = kExitPassed;
  for (const std::string& file : expand_folders(arguments.files, options.search_path)) {
    try {
      const Scenario scenario = load_argument(file, options);
      for (const std::string& notice : scenario.notices) print_notice(console.err, notice);
      plugins.add_named(scenario.backends);
      backends_of(scenario, plugins.backends());
      const std::size_t count = scenario.cases.size();
      console.out << fmt::format("{}: ok ({} case{})\n", file, count, count == 1 ? "" : "s");
    } catch (const Error& error) {
      console.out << std::flush;
      print_error(console.err, error.full_message());
      code = kExitUsage;
    }
  }
  return code;
}

}  // namespace

RunCommand declare_validate(OptionTable& options) {
  auto arguments = std::make_shared<ValidateArguments>();
  options.add({.names = "FILE",
               .help = "Scenario files, folders of them, or - for standard input",
               .target = &arguments->files,
               .required = true});
  options.add({.names = "--set",
               .value = "KEY=VALUE",
               .help = "Override a field before checking (repeatable)",
               .target = &arguments->selection.set});
  add_plugin_option(options, arguments->selection.plugins);
  return [arguments](const Console& console) { return validate_files(*arguments, console); };
}

}  // namespace attnbench
