// attnbench list: backends, scenarios and metrics: the names that other commands and result files
// use, each with a line about what it is.
#include <unistd.h>

#include <algorithm>
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
#include "core/value.h"

namespace attnbench {
namespace {

using Rows = std::vector<std::vector<std::string>>;

/// In columns, of which the last goes on below itself.
void print_rows(std::ostream& out, const Rows& rows, std::size_t width, const std::string& indent) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line = indent;
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

/// Scenarios of one kind under a heading.
struct ScenarioGroup {
  const char* name;     // in --json
  const char* heading;  // in the terminal
  bool is_folded;       // shown by its number only, unless all are wanted
  Rows rows = {};
};

std::vector<ScenarioGroup> no_scenarios() {
  return {{"benchmark", "benchmarks, at the dimensions of models", false},
          {"peers", "built-in backends and other libraries in turns", false},
          {"model", "models, for 'extends' in a scenario", false},
          {"check", "checks of correctness, one feature each", true}};
}

std::size_t group_of(const std::string& name) {
  if (name.starts_with("models/")) return 2;
  if (name.starts_with("smoke")) return 3;
  return name.starts_with("peers") ? 1 : 0;
}

/// Of the installation or the source tree; the first folder wins where both have a name. A
/// scenario that cannot be read is listed with the error: one bad file must not hide the others.
std::vector<ScenarioGroup> grouped_scenarios() {
  std::set<std::string> seen;
  std::vector<ScenarioGroup> groups = no_scenarios();
  ScenarioOptions options;
  options.search_path = installed_scenario_dirs();
  for (const auto& dir : options.search_path) {
    for (const std::string& name : scenario_names(dir)) {
      if (!seen.insert(name).second) continue;
      Rows& rows = groups[group_of(name)].rows;
      try {
        rows.push_back({name, load_scenario(dir / (name + ".yaml"), options).description});
      } catch (const Error& error) {
        rows.push_back({name, "(" + error.full_message() + ")"});
      }
    }
  }
  for (ScenarioGroup& group : groups) std::sort(group.rows.begin(), group.rows.end());
  return groups;
}

/// The numbers of a result file (contract section 4).
Rows metric_rows() {
  Rows rows;
  for (const ListedMetric& metric : listed_metrics(metric_table())) {
    rows.push_back({metric.name, metric.unit, metric.text});
  }
  return rows;
}

struct ListArguments {
  std::string topic;
  bool all = false;
  bool names = false;
  bool json = false;
  std::vector<std::string> plugins;
  bool wants(const char* name) const { return topic.empty() || topic == name; }
};

constexpr const char* kIndent = "  ";

void print_scenarios(const ListArguments& arguments, std::ostream& out, std::size_t width) {
  for (const ScenarioGroup& group : grouped_scenarios()) {
    if (group.rows.empty()) continue;
    out << kIndent << group.heading << "\n";
    if (group.is_folded && !arguments.all) {
      const std::string text = fmt::format(
          "smoke, and {} parts of it: attnbench list scenarios --all", group.rows.size() - 1);
      out << kIndent << kIndent << hang(text, 4, width, 4) << "\n";
    } else {
      print_rows(out, group.rows, width, "    ");
    }
  }
}

void print_names(const ListArguments& arguments, const Plugins& plugins, std::ostream& out) {
  const auto print = [&out](const Rows& rows) {
    for (const auto& row : rows) out << row.front() << "\n";
  };
  if (arguments.wants("backends")) print(backend_rows(plugins));
  if (arguments.wants("scenarios")) {
    for (const ScenarioGroup& group : grouped_scenarios()) print(group.rows);
  }
  if (arguments.wants("metrics")) print(metric_rows());
}

/// The rows as objects with these keys, and one more that is the same for all.
void add_objects(const Rows& rows, const std::vector<const char*>& keys, const char* group,
                 Value& list) {
  for (const auto& row : rows) {
    Value object = Value::map();
    for (std::size_t i = 0; i < keys.size(); ++i) object.at_or_add(keys[i]) = Value::of(row[i]);
    if (group != nullptr) object.at_or_add("group") = Value::of(group);
    list.items.push_back(std::move(object));
  }
}

/// {"backends": [{"name", "description"}], "scenarios": [{"name", "description", "group"}],
/// "metrics": [{"name", "unit", "description"}]}, of which a topic keeps its own.
void print_json(const ListArguments& arguments, const Plugins& plugins, std::ostream& out) {
  Value document = Value::map();
  if (arguments.wants("backends")) {
    Value& list = document.at_or_add("backends") = Value::list();
    add_objects(backend_rows(plugins), {"name", "description"}, nullptr, list);
  }
  if (arguments.wants("scenarios")) {
    Value& list = document.at_or_add("scenarios") = Value::list();
    for (const ScenarioGroup& group : grouped_scenarios()) {
      add_objects(group.rows, {"name", "description"}, group.name, list);
    }
  }
  if (arguments.wants("metrics")) {
    Value& list = document.at_or_add("metrics") = Value::list();
    add_objects(metric_rows(), {"name", "unit", "description"}, nullptr, list);
  }
  out << to_json_text(document, 2) << "\n";
}

int list(const ListArguments& arguments, const Console& console) {
  const Plugins plugins(arguments.plugins, choose_device("cpu", ""));
  std::ostream& out = console.out;
  if (arguments.json) {
    print_json(arguments, plugins, out);
    return kExitPassed;
  }
  if (arguments.names) {
    print_names(arguments, plugins, out);
    return kExitPassed;
  }
  const auto width = static_cast<std::size_t>(output_width(STDOUT_FILENO));
  const auto heading = [&](const char* name) {
    if (arguments.topic.empty()) out << name << "\n";
    return arguments.wants(name);
  };
  if (heading("backends")) print_rows(out, backend_rows(plugins), width, kIndent);
  if (heading("scenarios")) print_scenarios(arguments, out, width);
  if (heading("metrics")) print_rows(out, metric_rows(), width, kIndent);
  return kExitPassed;
}

}  // namespace

RunCommand declare_list(OptionTable& options) {
  auto arguments = std::make_shared<ListArguments>();
  options.add({.names = "TOPIC",
               .help = "backends, scenarios or metrics; all when not given",
               .target = &arguments->topic,
               .choices = {"backends", "scenarios", "metrics"}});
  options.add({.names = "-a,--all",
               .help = "Also list every small scenario that checks one feature",
               .target = &arguments->all});
  options.add({.names = "--names",
               .help = "Print only names, one per line, for scripts; includes everything",
               .target = &arguments->names});
  options.add({.names = "--json",
               .help = "Print everything as JSON",
               .target = &arguments->json,
               .excludes = "--names"});
  add_plugin_option(options, arguments->plugins);
  return [arguments](const Console& console) { return list(*arguments, console); };
}

}  // namespace attnbench
