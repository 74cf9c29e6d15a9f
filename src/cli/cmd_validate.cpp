// attnbench validate: checks scenario files alone.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/options.h"
#include "cli/plugins.h"
#include "cli/scenario_files.h"
#include "cli/selection.h"
#include "core/error.h"

namespace attnbench {
namespace {

struct ValidateArguments {
  std::vector<std::string> files;
  SelectionOptions selection;
};

int validate_files(const ValidateArguments& arguments, const Console& console) {
  ScenarioOptions options;
  options.overrides = scenario_overrides(arguments.selection);
  options.search_path = installed_scenario_dirs();
  Plugins plugins(arguments.selection.plugins, choose_device("cpu", ""));
  int code = kExitPassed;
  for (const std::string& file : arguments.files) {
    try {
      const Scenario scenario = load_scenario(find_scenario(file, options.search_path), options);
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

RunCommand declare_validate(CLI::App& app) {
  auto arguments = std::make_shared<ValidateArguments>();
  app.add_option("FILE", arguments->files, "Scenario files")->required();
  app.add_option("--set", arguments->selection.set, "Override a field first (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  add_plugin_option(app, arguments->selection.plugins);
  return [arguments](const Console& console) { return validate_files(*arguments, console); };
}

}  // namespace attnbench
