// attnbench list: backends, scenarios and metrics: the names that other commands and result files
// use, each with a line about what it is.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include "backends/backend.h"
#include "cli/cases/plugins.h"
#include "cli/cases/scenario_files.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/options/shared_options.h"
#include "cli/terminal/text.h"
#include "core/error.h"
#include "core/result/metric_table.h"
#include "core/system/printable.h"

namespace attnbench {
namespace {

using Rows = std::vector<std::vector<std::string>>;

/// In columns, of which the last goes on below itself.
void print_rows(std::ostream& out, const Rows& rows, std::size_t width) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line = "  ";
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      line += fmt::format("{:<{}}", row[i], widths[i] + 2);
    }
    line += hang(row.back(), line.size(), width, line.size());
    out << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
  }
}

Rows backend_rows(const Plugins& plugins) {
  Rows rows;
  for (const Backend* backend : plugins.all()) {
    rows.push_back({std::string(backend->name()), printable(backend->description())});
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

/// Of the installation and the source tree; the first folder wins where both have a name. A
/// scenario that cannot be read is listed with the error: one bad file must not hide the others.
Rows scenario_rows(const Plugins&) {
  std::set<std::string> seen;
  Rows rows;
  ScenarioOptions options;
  options.search_path = installed_scenario_dirs();
  for (const auto& dir : options.search_path) {
    for (const std::string& name : scenario_names(dir)) {
      if (!seen.insert(name).second) continue;
      try {
        rows.push_back({name, load_scenario(dir / (name + ".yaml"), options).description});
      } catch (const Error& error) {
        rows.push_back({name, "(" + error.full_message() + ")"});
      }
    }
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

/// The numbers of a result file (contract section 4).
Rows metric_rows(const Plugins&) {
  Rows rows;
  for (const ListedMetric& metric : listed_metrics(metric_table())) {
    rows.push_back({metric.name, metric.unit, metric.text});
  }
  return rows;
}

/// What can be listed; the argument TOPIC takes these names.
struct Topic {
  const char* name;
  Rows (*rows)(const Plugins& plugins);
};
constexpr std::array<Topic, 3> kTopics = {
    {{"backends", backend_rows}, {"scenarios", scenario_rows}, {"metrics", metric_rows}}};

struct ListArguments {
  std::string topic;
  std::vector<std::string> plugins;
};

int list(const ListArguments& arguments, const Console& console) {
  const std::string& chosen = arguments.topic;
  const Plugins plugins(arguments.plugins, choose_device("cpu", ""));
  for (const Topic& topic : kTopics) {
    if (!chosen.empty() && chosen != topic.name) continue;
    if (chosen.empty()) console.out << topic.name << "\n";
    print_rows(console.out, topic.rows(plugins),
               static_cast<std::size_t>(output_width(STDOUT_FILENO)));
  }
  return kExitPassed;
}

}  // namespace

RunCommand declare_list(OptionTable& options) {
  auto arguments = std::make_shared<ListArguments>();
  options.add({.names = "TOPIC",
               .help = "backends, scenarios or metrics; all when not given",
               .target = &arguments->topic,
               .choices = {"backends", "scenarios", "metrics"}});
  add_plugin_option(options, arguments->plugins);
  return [arguments](const Console& console) { return list(*arguments, console); };
}

}  // namespace attnbench
