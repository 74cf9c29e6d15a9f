// attnbench support: the matrix case x backend with the reasons; runs nothing.
//
// Reasons come from the same functions as the refusals of `run`, so that a "yes" here is a case
// that runs there. The text is for reading: a table of yes and no, then all reasons. The JSON is a
// list with one object a pair, for scripts.
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "backends/backend.h"
#include "cli/cases/device.h"
#include "cli/cases/plugins.h"
#include "cli/cases/refusals.h"
#include "cli/cases/scenario_files.h"
#include "cli/cases/selection.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/outputs.h"
#include "cli/terminal/text.h"
#include "core/problem/fields.h"
#include "core/system/printable.h"
#include "report/format.h"
#include "report/formats/output_file.h"
#include "report/row_names.h"

namespace attnbench {
namespace {

/// What is known of one pair.
struct SupportVerdict {
  const Pair* pair = nullptr;
  std::vector<std::string> reasons;  // empty = supported
};

/// What is called what in the text.
using CaseNames = std::map<const Problem*, std::string>;

std::vector<SupportVerdict> judge(const std::vector<Pair>& pairs, const DeviceChoice& device) {
  std::vector<SupportVerdict> verdicts;
  std::vector<std::vector<std::string>> reasons = all_refusals(pairs, device);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    verdicts.push_back({&pairs[i], std::move(reasons[i])});
  }
  return verdicts;
}

/// What the rows of the matrix call their cases, one a case in the order of the verdicts.
RowNames::Chosen case_texts(const std::vector<SupportVerdict>& verdicts, std::size_t room) {
  std::vector<Result> cases;  // without a backend
  std::vector<std::string> names;
  const Problem* last = nullptr;
  for (const SupportVerdict& verdict : verdicts) {
    const Problem* problem = verdict.pair->problem;
    if (std::exchange(last, problem) == problem) continue;
    Result& one = cases.emplace_back();
    one.id = one.case_name = problem->case_name;
    one.scenario = problem->scenario;
    one.problem_json = problem_to_json(*problem);
    names.push_back(problem->case_name);
  }
  return RowNames({&cases}).choose(names, room);
}

/// One row of the matrix a case, one column a backend that any case of the scenario lists. Returns
/// what the rows call the cases.
CaseNames print_matrix(std::ostream& out, const std::vector<SupportVerdict>& verdicts,
                       std::size_t width) {
  constexpr std::size_t kReadableCase = 15;
  std::vector<const Backend*> columns;
  for (const SupportVerdict& verdict : verdicts) {
    const Backend* backend = verdict.pair->backend;
    if (std::find(columns.begin(), columns.end(), backend) == columns.end()) {
      columns.push_back(backend);
    }
  }
  std::size_t taken = 0;
  for (const Backend* backend : columns) taken += full_name(*backend).size() + 2;
  const std::size_t room = std::max(kReadableCase, width - std::min(width, taken));
  const RowNames::Chosen cases = case_texts(verdicts, room);
  std::size_t case_width = cases.own_lines ? kReadableCase : std::string("case").size();
  if (!cases.own_lines) {
    for (const std::string& text : cases.texts) {
      case_width = std::max(case_width, display_width(text));
    }
  }
  if (!cases.shared.empty()) out << wrap_text("every case: " + cases.shared, width, "");
  out << fmt::format("{:<{}}", "case", case_width);
  for (const Backend* backend : columns) out << "  " << full_name(*backend);
  out << "\n";
  CaseNames names;
  for (std::size_t i = 0; i < verdicts.size();) {
    const Problem* problem = verdicts[i].pair->problem;
    std::string line = cases.texts.at(names.size());
    names.emplace(problem, line);
    if (cases.own_lines) out << wrap_text(std::exchange(line, ""), width, "");
    line.append(case_width - display_width(line), ' ');
    for (const Backend* backend : columns) {
      const char* cell = "-";
      if (i < verdicts.size() && verdicts[i].pair->problem == problem &&
          verdicts[i].pair->backend == backend) {
        cell = verdicts[i].reasons.empty() ? "yes" : "no";
        ++i;
      }
      line += fmt::format("  {:<{}}", cell, full_name(*backend).size());
    }
    out << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
  }
  return names;
}

/// A reason, and what it refuses: cases by backend.
struct Refusal {
  std::string reason;
  std::vector<std::pair<const Backend*, std::vector<const Problem*>>> cases;
};

/// Every reason once, in the order in which they are first given.
std::vector<Refusal> refusals_of(const std::vector<SupportVerdict>& verdicts) {
  std::vector<Refusal> refusals;
  for (const SupportVerdict& verdict : verdicts) {
    for (const std::string& reason : verdict.reasons) {
      auto known = std::ranges::find(refusals, reason, &Refusal::reason);
      if (known == refusals.end()) known = refusals.insert(known, {reason, {}});
      const Backend* backend = verdict.pair->backend;
      auto of = std::ranges::find(known->cases, backend, [](const auto& one) { return one.first; });
      if (of == known->cases.end()) of = known->cases.insert(of, {backend, {}});
      of->second.push_back(verdict.pair->problem);
    }
  }
  return refusals;
}

/// "FLASH_ATTN, TRITON_ATTN, 3 cases: q4; q5; q6"; only the backends where it is all of the cases.
std::string refused_text(const std::vector<std::string>& backends,
                         const std::vector<const Problem*>& cases, const CaseNames& names) {
  constexpr std::size_t kShown = 3;
  const std::string who = join(backends, ", ");
  if (cases.size() == names.size()) {
    return who + (cases.size() == 1 ? "" : fmt::format(", all {} cases", cases.size()));
  }
  std::vector<std::string> shown;
  for (const Problem* problem : cases) {
    if (shown.size() < kShown) shown.push_back(names.at(problem));
  }
  return fmt::format("{}, {} case{}: {}{}", who, cases.size(), cases.size() == 1 ? "" : "s",
                     join(shown, "; "), cases.size() > kShown ? "; ..." : "");
}

void print_reasons(std::ostream& out, const std::vector<SupportVerdict>& verdicts,
                   const CaseNames& names, std::size_t width) {
  for (const Refusal& refusal : refusals_of(verdicts)) {
    out << "\n" << hang("unsupported: " + printable(refusal.reason), 0, width, 4) << "\n";
    std::set<const Backend*> said;
    for (const auto& [first, cases] : refusal.cases) {
      std::vector<std::string> backends;
      for (const auto& [backend, others] : refusal.cases) {
        if (others != cases || !said.insert(backend).second) continue;
        backends.push_back(full_name(*backend));
      }
      if (backends.empty()) continue;
      out << "  " << hang(refused_text(backends, cases, names), 2, width, 4) << "\n";
    }
  }
}

/// A matrix for each scenario that has pairs.
void print_text(std::ostream& out, const std::vector<LoadedScenario>& scenarios,
                const std::vector<SupportVerdict>& verdicts, std::size_t width) {
  for (const LoadedScenario& loaded : scenarios) {
    std::vector<SupportVerdict> listed;
    std::copy_if(verdicts.begin(), verdicts.end(), std::back_inserter(listed),
                 [&](const SupportVerdict& verdict) { return verdict.pair->source == &loaded; });
    if (listed.empty()) continue;
    out << (&loaded == &scenarios.front() ? "" : "\n") << loaded.scenario.name << "\n";
    const CaseNames names = print_matrix(out, listed, width);
    print_reasons(out, listed, names, width);
  }
}

/// Why bytes that are no UTF-8 are replaced: names come from files, and a file with a bad name must
/// not keep the rest from being read.
std::string to_json(const std::vector<SupportVerdict>& verdicts) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const SupportVerdict& verdict : verdicts) {
    list.push_back({{"id", verdict.pair->id},
                    {"scenario", verdict.pair->problem->scenario},
                    {"case", verdict.pair->problem->case_name},
                    {"backend", full_name(*verdict.pair->backend)},
                    {"supported", verdict.reasons.empty()},
                    {"reasons", verdict.reasons}});
  }
  return list.dump(2, ' ', /*ensure_ascii=*/false,
                   nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

int show_support(const StudyOptions& arguments, const Console& console) {
  const DeviceChoice device = choose_device(arguments.selection);
  Plugins plugins(arguments.selection.plugins, device);
  const std::vector<LoadedScenario> scenarios =
      load_scenarios(arguments.scenarios, scenario_overrides(arguments.selection));
  if (!arguments.console.quiet) print_notices(scenarios, console);
  plugins.add_named(named_backends(arguments.selection, scenarios));
  check_output_paths(input_paths(scenarios, arguments.selection.plugins),
                     {{"--json", arguments.json}});
  const std::vector<Pair> pairs = select_pairs(scenarios, arguments.selection, plugins.backends());
  if (pairs.empty() && !arguments.console.quiet) {
    print_error(console.err, why_no_pairs(arguments.selection));
  }
  const std::vector<SupportVerdict> verdicts = judge(pairs, device);
  if (arguments.json != "-") {
    const auto width = static_cast<std::size_t>(output_width(STDOUT_FILENO));
    print_text(console.out, scenarios, verdicts, width);
  }
  if (!arguments.json.empty()) write_text(arguments.json, to_json(verdicts));
  const bool any_supported =
      std::any_of(verdicts.begin(), verdicts.end(),
                  [](const SupportVerdict& verdict) { return verdict.reasons.empty(); });
  return any_supported ? kExitPassed : kExitNothingRan;
}

}  // namespace

RunCommand declare_support(OptionTable& options) {
  auto arguments = std::make_shared<StudyOptions>();
  add_study_options(options, *arguments, "Write the matrix as JSON ('-' = stdout)", /*runs=*/false);
  return [arguments](const Console& console) { return show_support(*arguments, console); };
}

}  // namespace attnbench
