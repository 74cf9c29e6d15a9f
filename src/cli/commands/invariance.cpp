// attnbench invariance: what a request's result depends on beside the request.
//
// One table a case: a line for each change around the request, a column for each backend. The first
// column of numbers that a kernel author looks for is where "same" ends.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "backends/backend.h"
#include "bench/studies/invariance.h"
#include "cli/cases/device.h"
#include "cli/cases/plugins.h"
#include "cli/cases/refusals.h"
#include "cli/cases/scenario_files.h"
#include "cli/cases/selection.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/outputs.h"
#include "cli/session/interrupt.h"
#include "core/error.h"
#include "core/system/printable.h"
#include "report/formats/output_file.h"

namespace attnbench {
namespace {

/// What came of one pair.
struct Studied {
  const Pair* pair = nullptr;
  std::vector<std::string> refusals;  // empty = there is a report
  InvarianceReport report;
};

class Studies {
 public:
  Studies(const StudyOptions& arguments, const DeviceChoice& device)
      : arguments_(arguments), device_(device) {
    options_.num_threads = arguments.threads;
    options_.should_stop = InterruptGuard::interrupted;
  }

  Studied study(const Pair& pair) {
    Studied result{&pair, all_refusals({pair}, device_).front(), {}};
    const std::string none = why_no_invariance(*pair.problem);
    if (!none.empty()) result.refusals.push_back(none);
    if (!result.refusals.empty()) return result;
    if (!ops_) ops_ = open_ops(device_, arguments_.threads, arguments_.cache_dir);
    try {
      result.report =
          study_invariance(*pair.problem, *pair.backend, *ops_, device_.facts, options_);
    } catch (const BackendFailure& failure) {
      result.refusals.push_back(failure.what());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnsupported) throw;
      result.refusals.push_back(error.what());
    }
    return result;
  }

 private:
  const StudyOptions& arguments_;
  const DeviceChoice& device_;
  ReferenceOptions options_;
  std::unique_ptr<Ops> ops_;
};

std::string cell_of(const InvarianceRow& row) {
  if (!row.refusal.empty()) return "-";
  return row.equal ? "same" : fmt::format("{:.1e}", row.max_abs);
}

using Group = std::vector<const Studied*>;  // of one case, each with a report

const InvarianceRow* find_row(const Studied& studied, const std::string& change) {
  for (const InvarianceRow& row : studied.report.rows) {
    if (row.change == change) return &row;
  }
  return nullptr;
}

void print_case(std::ostream& out, const Group& group) {
  const Problem& problem = *group.front()->pair->problem;
  const std::int64_t index = group.front()->report.request;
  const Request& request = problem.batch[static_cast<std::size_t>(index)];
  out << fmt::format("{}/{}: request {}, {} new tokens, {} keys\n", printable(problem.scenario),
                     printable(problem.case_name), index, request.query_len, request.seq_len);
  constexpr std::size_t kChangeWidth = 34;
  std::string head = fmt::format("  {:<{}}", "largest difference when", kChangeWidth);
  for (const Studied* studied : group) head += "  " + full_name(*studied->pair->backend);
  out << head << "\n";
  for (const InvarianceRow& first : group.front()->report.rows) {
    std::string line = fmt::format("  {:<{}}", first.change, kChangeWidth);
    for (const Studied* studied : group) {
      const InvarianceRow* row = find_row(*studied, first.change);
      line += fmt::format("  {:<{}}", row == nullptr ? "-" : cell_of(*row),
                          full_name(*studied->pair->backend).size());
    }
    out << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
  }
  std::string line = fmt::format("  {:<{}}", "relative error of its worst row", kChangeWidth);
  for (const Studied* studied : group) {
    line += fmt::format("  {:<{}}", fmt::format("{:.1e}", studied->report.row_error),
                        full_name(*studied->pair->backend).size());
  }
  out << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
}

/// In the words of the table of a run.
void print_refusals(std::ostream& out, const std::vector<Studied>& studied) {
  std::vector<std::vector<std::string>> refusals;
  for (const Studied& one : studied) refusals.push_back(one.refusals);
  for (const auto& [reason, places] : shared_refusals(refusals)) {
    std::string who = studied[places.front()].pair->id;
    if (places.size() > 1) {
      std::vector<std::string> backends;
      for (const std::size_t place : places) {
        const std::string name = full_name(*studied[place].pair->backend);
        if (std::ranges::find(backends, name) == backends.end()) backends.push_back(name);
      }
      who = fmt::format("{} results of {}", places.size(), fmt::join(backends, ", "));
    }
    out << fmt::format("{}: {}\n", printable(who), printable(reason));
  }
}

void print_text(std::ostream& out, const std::vector<Studied>& studied) {
  for (std::size_t i = 0; i < studied.size();) {
    Group group;
    const Problem* problem = studied[i].pair->problem;
    for (; i < studied.size() && studied[i].pair->problem == problem; ++i) {
      if (studied[i].refusals.empty()) group.push_back(&studied[i]);
    }
    if (!group.empty()) print_case(out, group);
  }
  print_refusals(out, studied);
}

nlohmann::ordered_json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

std::string to_json(const std::vector<Studied>& studied) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Studied& one : studied) {
    nlohmann::ordered_json changes = nlohmann::ordered_json::array();
    for (const InvarianceRow& row : one.report.rows) {
      nlohmann::ordered_json item = {{"change", row.change}};
      if (!row.refusal.empty()) {
        item["refusal"] = row.refusal;
      } else {
        item["equal"] = row.equal;
        item["max_abs"] = number_or_null(row.max_abs);
        item["row_error"] = number_or_null(row.row_error);
      }
      changes.push_back(std::move(item));
    }
    list.push_back({{"id", one.pair->id},
                    {"refusals", one.refusals},
                    {"request", one.report.request},
                    {"row_error", number_or_null(one.report.row_error)},
                    {"changes", std::move(changes)}});
  }
  return list.dump(2, ' ', /*ensure_ascii=*/false,
                   nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

int show_invariance(const StudyOptions& arguments, const Console& console) {
  const InterruptGuard guard;
  const DeviceChoice device = choose_device(arguments.selection);
  Plugins plugins(arguments.selection.plugins, device, arguments.threads);
  const std::vector<LoadedScenario> scenarios =
      load_scenarios(arguments.scenarios, scenario_overrides(arguments.selection));
  plugins.add_named(named_backends(arguments.selection, scenarios));
  check_output_paths(input_paths(scenarios, arguments.selection.plugins),
                     {{"--json", arguments.json}});
  const std::vector<Pair> pairs = select_pairs(scenarios, arguments.selection, plugins.backends());
  if (pairs.empty()) print_error(console.err, why_no_pairs(arguments.selection));
  Studies studies(arguments, device);
  std::vector<Studied> studied;
  for (const Pair& pair : pairs) {
    if (InterruptGuard::interrupted()) break;
    studied.push_back(studies.study(pair));
  }
  if (arguments.json != "-") print_text(console.out, studied);
  if (!arguments.json.empty()) write_text(arguments.json, to_json(studied));
  const bool any = std::any_of(studied.begin(), studied.end(),
                               [](const Studied& one) { return one.refusals.empty(); });
  return any ? kExitPassed : kExitNothingRan;
}

}  // namespace

RunCommand declare_invariance(OptionTable& options) {
  auto arguments = std::make_shared<StudyOptions>();
  add_study_options(options, *arguments, "Write the tables as JSON ('-' = stdout)", /*runs=*/true);
  return [arguments](const Console& console) { return show_invariance(*arguments, console); };
}

}  // namespace attnbench
