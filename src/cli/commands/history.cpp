// attnbench history: how cases developed over the runs that `run --history` recorded.
//
// For each case of each machine: a line with the trend, and one for every change point, worst
// first. It looks and does not judge: `gate` is for a pull request, this is for the question in
// which week it happened. The files for Apache Otava hold the same series.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>

#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/options/shared_options.h"
#include "cli/outputs.h"
#include "cli/session/gate_options.h"
#include "cli/terminal/text.h"
#include "core/error.h"
#include "core/parsing.h"
#include "core/sha256.h"
#include "core/system/printable.h"
#include "core/value.h"
#include "gate/change_points.h"
#include "gate/history.h"
#include "gate/rules.h"
#include "report/format.h"
#include "report/formats/output_file.h"

namespace attnbench {
namespace {

constexpr std::size_t kTrendWidth = 24;
/// The divergence takes time and memory with the square of it.
constexpr std::size_t kMostRuns = 1000;

struct HistoryCommand {
  std::vector<std::string> files;
  std::string metric = "median_us";
  std::string filter;
  std::vector<std::string> backends;
  std::string min_change = "2%";
  int last = 200;
  bool changed_only = false;
  std::string json;
  std::string otava;
  ConsoleOptions console;
};

/// A series with its changes. Means are of the values themselves.
struct Development {
  HistorySeries series;
  std::vector<ChangePoint> changes;
  bool is_relative = true;  // means are ratios of each other: all values are above 0
};

/// after / before - 1; the difference where values may be 0.
double change_of(const Development& development, const ChangePoint& point) {
  const double difference = point.mean_after - point.mean_before;
  return development.is_relative ? std::expm1(difference) : difference;
}

double level(const Development& development, double mean) {
  return development.is_relative ? std::exp(mean) : mean;
}

Development develop(HistorySeries series, double min_change) {
  Development development;
  std::vector<double> values = series.values;
  development.is_relative =
      std::all_of(values.begin(), values.end(), [](double value) { return value > 0; });
  ChangePointOptions options;
  if (development.is_relative) {
    for (double& value : values) value = std::log(value);
    options.min_difference = std::log1p(min_change);
  }
  development.changes = change_points(values, options);
  development.series = std::move(series);
  return development;
}

/// The newest values of each series.
void keep_last(HistorySeries& series, std::size_t count) {
  if (series.values.size() <= count) return;
  const auto drop = static_cast<std::ptrdiff_t>(series.values.size() - count);
  series.values.erase(series.values.begin(), series.values.begin() + drop);
  series.records.erase(series.records.begin(), series.records.begin() + drop);
}

std::string backend_of(const std::string& id) { return id.substr(id.rfind('/') + 1); }

std::vector<Development> developments(const HistoryCommand& command,
                                      const std::vector<HistoryRecord>& records) {
  const std::set<std::string> backends(command.backends.begin(), command.backends.end());
  std::optional<Pattern> filter;
  try {
    filter.emplace(command.filter);
  } catch (const std::runtime_error&) {  // std::regex_error
    fail(ErrorKind::kUsage, "--filter: expected a regular expression, found '{}'", command.filter);
  }
  const double min_change = parse_threshold(command.min_change, "--min-change");
  std::vector<Development> all;
  for (HistorySeries& series : history_series(records, history_metric(command.metric))) {
    if (!filter->is_in(series.id)) continue;
    if (!backends.empty() && !backends.contains(backend_of(series.id))) continue;
    keep_last(series, static_cast<std::size_t>(command.last));
    Development development = develop(std::move(series), min_change);
    if (command.changed_only && development.changes.empty()) continue;
    all.push_back(std::move(development));
  }
  return all;
}

/// The values in `width` bars, each the mean of its share, from the least to the largest.
std::string trend(const std::vector<double>& values, std::size_t width) {
  static constexpr std::array<const char*, 8> kBars{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::size_t bars = std::min(width, values.size());
  std::vector<double> means(bars, 0.0);
  for (std::size_t i = 0; i < bars; ++i) {
    const std::size_t begin = i * values.size() / bars;
    const std::size_t end = (i + 1) * values.size() / bars;
    for (std::size_t j = begin; j < end; ++j) means[i] += values[j];
    means[i] /= static_cast<double>(end - begin);
  }
  const auto [least, most] = std::minmax_element(means.begin(), means.end());
  std::string text;
  for (const double mean : means) {
    // Why at least 5 %: a series that hardly moves must not look like a mountain range.
    const double spread = std::max(*most - *least, 0.05 * std::abs(*most));
    const double share = spread > 0 ? (mean - *least) / spread : 0;
    text += kBars[static_cast<std::size_t>(std::clamp(share * 7.999, 0.0, 7.0))];
  }
  return text;
}

std::string text_of(const HistoryMetric& metric, double value) {
  if (std::string(metric.unit) == "us") return format_time(value);
  return fmt::format("{:.4g}{}{}", value, *metric.unit == '\0' ? "" : " ", metric.unit);
}

std::string change_text(const Development& development, const ChangePoint& point) {
  const double change = change_of(development, point);
  return development.is_relative ? fmt::format("{:+.1f} %", 100 * change)
                                 : fmt::format("{:+.3g}", change);
}

/// Day and commit of a record, and the version of a plugin.
std::string place_of(const HistoryRecord& record) {
  std::string text = record.created.substr(0, 10) + ", attnbench " + record.git.substr(0, 12);
  if (!record.plugin.empty()) text += ", plugin " + record.plugin;
  return printable(text);
}

bool is_worse(const HistoryMetric& metric, const Development& development,
              const ChangePoint& point) {
  return (change_of(development, point) > 0) == metric.less_is_better;
}

void print_change(std::ostream& out, const HistoryMetric& metric, const Development& development,
                  const ChangePoint& point, bool color) {
  const bool worse = is_worse(metric, development, point);
  const std::string word =
      painted(worse ? "worse " : "better", worse ? "\x1b[31m" : "\x1b[32m", color);
  out << fmt::format(
      "    {} {:>9}  {} -> {}  since {} ({} runs before, {} after)\n", word,
      change_text(development, point), text_of(metric, level(development, point.mean_before)),
      text_of(metric, level(development, point.mean_after)),
      place_of(*development.series.records[point.index]), point.count_before, point.count_after);
}

void print_development(std::ostream& out, const HistoryMetric& metric,
                       const Development& development, bool names_machine, bool color) {
  const HistorySeries& series = development.series;
  out << printable(series.id);
  if (names_machine)
    out << printable(" on " + series.device_name + " " + series.fingerprint.substr(0, 8));
  out << "\n    ";
  if (series.values.empty()) {
    out << fmt::format("no values; last {}\n", series.last_status);
    return;
  }
  const std::size_t count = series.values.size();
  out << trend(series.values, kTrendWidth) << "  "
      << (count == 1 ? "" : text_of(metric, series.values.front()) + " to ")
      << fmt::format("{} in {} run{} since {}", text_of(metric, series.values.back()), count,
                     count == 1 ? "" : "s", series.records.front()->created.substr(0, 10));
  if (series.without_value > 0) out << fmt::format("; {} without a value", series.without_value);
  if (series.last_status != "passed") out << "; last " << series.last_status;
  out << "\n";
  for (const ChangePoint& point : development.changes) {
    print_change(out, metric, development, point, color);
  }
}

void print_table(const HistoryCommand& command, const std::vector<Development>& all,
                 const Console& console) {
  const HistoryMetric& metric = history_metric(command.metric);
  std::set<std::string> machines;
  for (const Development& one : all) machines.insert(one.series.fingerprint);
  const bool color = use_color(command.console.color, console.out_is_terminal);
  std::size_t changed = 0;
  for (const Development& one : all) {
    print_development(console.out, metric, one, machines.size() > 1, color);
    changed += one.changes.empty() ? 0 : 1;
  }
  console.out << fmt::format("\n{}: {} case{}, {} changed\n", metric.name, all.size(),
                             all.size() == 1 ? "" : "s", changed);
}

/// {"metric", "series": [{"id", "device_name", "fingerprint", "created": [], "git": [],
/// "values": [], "changes": [{"index", "created", "git", "before", "after", "p"}]}]}.
std::string json_of(const HistoryCommand& command, const std::vector<Development>& all) {
  Value document = Value::map();
  document.at_or_add("schema_version") = Value::of(std::int64_t{1});
  document.at_or_add("metric") = Value::of(command.metric);
  Value& list = document.at_or_add("series") = Value::list();
  for (const Development& one : all) {
    Value series = Value::map();
    series.at_or_add("id") = Value::of(one.series.id);
    series.at_or_add("device_name") = Value::of(one.series.device_name);
    series.at_or_add("fingerprint") = Value::of(one.series.fingerprint);
    for (const char* key : {"created", "git", "values"}) series.at_or_add(key) = Value::list();
    for (std::size_t i = 0; i < one.series.values.size(); ++i) {
      series.at_or_add("created").items.push_back(Value::of(one.series.records[i]->created));
      series.at_or_add("git").items.push_back(Value::of(one.series.records[i]->git));
      series.at_or_add("values").items.push_back(Value::of(one.series.values[i]));
    }
    series.at_or_add("changes") = Value::list();
    for (const ChangePoint& point : one.changes) {
      Value change = Value::map();
      const HistoryRecord& record = *one.series.records[point.index];
      change.at_or_add("index") = Value::of(static_cast<std::int64_t>(point.index));
      change.at_or_add("created") = Value::of(record.created);
      change.at_or_add("git") = Value::of(record.git);
      change.at_or_add("before") = Value::of(level(one, point.mean_before));
      change.at_or_add("after") = Value::of(level(one, point.mean_after));
      change.at_or_add("p") = Value::of(point.p);
      series.at_or_add("changes").items.push_back(std::move(change));
    }
    list.items.push_back(std::move(series));
  }
  return to_json_text(document, 2) + "\n";
}

/// Letters, digits, '.', '_' and '-'; anything else becomes '_'.
std::string file_stem(const HistorySeries& series) {
  std::string name = series.id + "-" + series.fingerprint.substr(0, 8);
  for (char& letter : name) {
    const auto byte = static_cast<unsigned char>(letter);
    if (!std::isalnum(byte) && letter != '.' && letter != '-') letter = '_';
  }
  return name;
}

/// A CSV a series, because Otava takes no empty fields, and the otava.yaml that names them.
void write_otava(const HistoryCommand& command, const std::vector<Development>& all) {
  namespace fs = std::filesystem;
  const fs::path folder = command.otava;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    fail(ErrorKind::kIo, "--otava {}: cannot make the folder: {}", command.otava, error.message());
  }
  const HistoryMetric& metric = history_metric(command.metric);
  std::set<std::string> names;
  std::string config = "# otava analyze TEST --config-file otava.yaml, in this folder\ntests:\n";
  for (const Development& one : all) {
    if (one.series.values.empty()) continue;
    std::string name = file_stem(one.series);
    // Why: ids that differ in what file names lack.
    if (!names.insert(name).second) {
      name += "-" + sha256_hex(one.series.id + "\n" + one.series.fingerprint).substr(0, 8);
      names.insert(name);
    }
    std::string csv = fmt::format("time,commit,{}\n", metric.name);
    for (std::size_t i = 0; i < one.series.values.size(); ++i) {
      const HistoryRecord& record = *one.series.records[i];
      csv += fmt::format("{},{},{}\n", record.created,
                         record.plugin.empty() ? record.git : record.plugin, one.series.values[i]);
    }
    write_text((folder / (name + ".csv")).string(), csv);
    config += fmt::format(
        "  {0}:\n    type: csv\n    file: {0}.csv\n    time_column: time\n"
        "    attributes: [commit]\n    metrics:\n      {1}: {{direction: {2}}}\n"
        "    csv_options: {{delimiter: ',', quote_char: '\"'}}\n",
        name, metric.name, metric.less_is_better ? -1 : 1);
  }
  write_text((folder / "otava.yaml").string(), config);
}

int run_history(const HistoryCommand& command, const Console& console) {
  check_output_paths(input_paths("FILE", command.files), {{"--json", command.json}});
  const std::vector<HistoryRecord> records = read_history(command.files);
  const std::vector<Development> all = developments(command, records);
  if (!command.otava.empty()) write_otava(command, all);
  if (!command.json.empty()) write_text(command.json, json_of(command, all));
  if (command.json != "-") print_table(command, all, console);
  if (all.empty() && !records.empty() && !command.changed_only) {
    print_error(console.err, why_none_selected({command.filter, command.backends}));
  }
  return all.empty() && !command.changed_only ? kExitNothingRan : kExitPassed;
}

}  // namespace

RunCommand declare_history(OptionTable& options) {
  auto command = std::make_shared<HistoryCommand>();
  options.add({.names = "FILES",
               .value = "FILE",
               .help = "Files that 'run --history' appended to",
               .target = &command->files,
               .required = true});
  add_result_selection(options, command->filter, command->backends);
  std::vector<std::string> metrics;
  for (const HistoryMetric& metric : history_metrics()) metrics.emplace_back(metric.name);
  options.add({.names = "--metric",
               .value = "NAME",
               .help = "Number to follow",
               .target = &command->metric,
               .shows_default = true,
               .choices = metrics});
  options.add({.names = "--min-change",
               .value = "SHARE",
               .help = "Smallest change that is reported",
               .target = &command->min_change,
               .shows_default = true});
  options.add({.names = "--last",
               .value = "N",
               .help = "Only the newest N runs of each case",
               .target = &command->last,
               .shows_default = true,
               .numbers = whole_numbers(1, static_cast<int>(kMostRuns))});
  options.add(
      {.names = "--changed", .help = "Only cases that changed", .target = &command->changed_only});
  options.add({.names = "--json",
               .value = "FILE",
               .help = "Write values and change points as JSON",
               .group = kOutputs,
               .target = &command->json});
  options.add({.names = "--otava",
               .value = "DIR",
               .help = "Write a CSV for each case and the otava.yaml of Apache Otava",
               .group = kOutputs,
               .target = &command->otava});
  add_console_options(options, command->console);
  return [command](const Console& console) { return run_history(*command, console); };
}

}  // namespace attnbench
