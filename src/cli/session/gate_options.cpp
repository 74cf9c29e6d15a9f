#include "cli/session/gate_options.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>

#include "cli/cases/selection.h"
#include "cli/terminal/console.h"
#include "core/error.h"
#include "gate/baseline.h"
#include "gate/statistics.h"
#include "interop/results/foreign.h"
#include "scenario/text/yaml_reader.h"

namespace attnbench {
namespace {

/// A small YAML or JSON file of the user; an empty one is an empty list.
Value read_list(const std::string& path) {
  std::ifstream in(path);
  if (!in) fail(ErrorKind::kIo, "cannot read '{}': {}", path, std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  const bool is_blank = text.str().find_first_not_of(" \t\r\n") == std::string::npos;
  return is_blank ? Value::list()
                  : read_yaml(text.str(), std::make_shared<const std::string>(path));
}

/// In UTC, as "2024-12-31": what dates of known failures are compared with.
std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[16] = {};
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &utc)};
}

/// Where failures of this status are counted; null for one that is none.
int* count_of_failure(Status status, StatusCounts& counts) {
  switch (status) {
    case Status::kIncorrect:
      return &counts.incorrect;
    case Status::kImplausible:
      return &counts.implausible;
    case Status::kError:
      return &counts.error;
    case Status::kPassed:
    case Status::kUnverified:
    case Status::kUnsupported:
    case Status::kSkipped:
      return nullptr;
  }
  return nullptr;
}

}  // namespace

void add_gate_options(OptionTable& options, GateArguments& arguments) {
  options.add({.names = "--threshold",
               .value = "SHARE",
               .help = "Relative difference of medians that counts as a change: 3%, 0.03 or 3",
               .group = kGate,
               .target = &arguments.threshold,
               .shows_default = true});
  options.add({.names = "--floor-us",
               .value = "US",
               .help = "Absolute difference of medians that is always ignored",
               .group = kGate,
               .target = &arguments.floor_us,
               .shows_default = true,
               .numbers = positive_number(/*or_zero=*/true)});
  options.add({.names = "--accuracy-threshold",
               .value = "SHARE",
               .help = "Growth of an error that counts as LESS_ACCURATE",
               .group = kGate,
               .target = &arguments.accuracy_threshold,
               .shows_default = true});
  options.add({.names = "--thresholds",
               .value = "FILE",
               .help = "YAML list of {id, threshold, floor_us, accuracy_threshold}, by pattern",
               .group = kGate,
               .target = &arguments.thresholds_file});
  options.add({.names = "--known",
               .value = "FILE",
               .help = "YAML list of known failures: {id, reason, expires}",
               .group = kGate,
               .target = &arguments.known_file});
  options.add({.names = "--ignore-environment",
               .help = "Accept a baseline from another machine or with changed cases",
               .group = kGate,
               .target = &arguments.ignore_environment});
  options.add({.names = "--lenient",
               .help = "Missing cases and times pass, unverified results are accepted",
               .group = kGate,
               .target = &arguments.lenient});
  options.add({.names = "--fail-on-improvement",
               .help = "FASTER and FIXED fail too: the baseline is out of date",
               .group = kGate,
               .target = &arguments.fail_on_improvement});
  options.add({.names = "--fail-on-ambiguous",
               .help = "AMBIGUOUS fails too",
               .group = kGate,
               .target = &arguments.fail_on_ambiguous});
}

std::vector<InputPath> input_paths(const GateArguments& arguments) {
  std::vector<InputPath> paths;
  if (!arguments.thresholds_file.empty()) {
    paths.push_back({"--thresholds", arguments.thresholds_file});
  }
  if (!arguments.known_file.empty()) paths.push_back({"--known", arguments.known_file});
  return paths;
}

GateOptions gate_options(const GateArguments& arguments) {
  GateOptions options;
  options.threshold = parse_threshold(arguments.threshold, "--threshold");
  options.accuracy_threshold =
      parse_threshold(arguments.accuracy_threshold, "--accuracy-threshold");
  options.floor_us = arguments.floor_us;
  if (!arguments.thresholds_file.empty()) {
    options.rules = threshold_rules(read_list(arguments.thresholds_file));
  }
  if (!arguments.known_file.empty()) {
    options.known = known_failures(read_list(arguments.known_file));
  }
  options.today = today();
  options.ignore_environment = arguments.ignore_environment;
  options.lenient = arguments.lenient;
  options.fail_on_improvement = arguments.fail_on_improvement;
  options.fail_on_ambiguous = arguments.fail_on_ambiguous;
  return options;
}

void keep_selected(const GateSelection& selection, std::vector<Result>& results) {
  const IdFilter filter(selection.filter, "--filter");
  const auto& backends = selection.backends;
  std::erase_if(results, [&](const Result& result) {
    const bool other_backend = !backends.empty() && std::find(backends.begin(), backends.end(),
                                                              result.backend) == backends.end();
    return other_backend || !filter.matches(result.id);
  });
}

std::string why_none_selected(const GateSelection& selection) {
  std::string options;
  if (!selection.filter.empty()) options = fmt::format(" --filter '{}'", selection.filter);
  for (const std::string& backend : selection.backends) options += " --backend " + backend;
  return options.empty() ? "the files have no results" : "no result matches" + options;
}

ResultFile read_results(const std::string& path, std::ostream* err) {
  // Why read once: it may be a pipe.
  const std::string text = result_file_text(path);
  std::optional<ResultFile> foreign = parse_foreign_results(text, path);
  if (!foreign) return parse_result_file(text, path);
  for (Result& result : foreign->results) {
    if (result.timing) summarize(*result.timing);
  }
  if (err != nullptr) {
    print_notice(*err, fmt::format("{}: results of {}, which nobody compared with a reference",
                                   path, foreign->run.tool_version));
  }
  return std::move(*foreign);
}

ResultFile read_baseline(const std::vector<std::string>& paths, const GateOptions& options) {
  std::vector<ResultFile> files;
  for (const std::string& path : paths) files.push_back(read_results(path));
  return pool_baselines(std::move(files), options.floor_us, options.ignore_environment);
}

KnownInRun set_known_apart(const std::vector<Result>& results, const GateOptions& options) {
  KnownInRun apart{count_statuses(results), {}};
  for (const Result& result : results) {
    int* const count = count_of_failure(result.status, apart.counts);
    if (count == nullptr) continue;
    const KnownFailure* known = find_known(options.known, result.id, options.today);
    if (known == nullptr) continue;
    if (has_expired(*known, options.today)) {
      apart.lines.push_back(
          fmt::format("known, but expired {}: {}: {}", known->expires, result.id, known->reason));
      continue;
    }
    // Why as passed: the exit code must not depend on a failure that is expected.
    --*count;
    ++apart.counts.passed;
    apart.lines.push_back(
        fmt::format("known until {}: {}: {}", known->expires, result.id, known->reason));
  }
  return apart;
}

}  // namespace attnbench
