// attnbench compose: attention by one library, merges by another, ranks by a third.
//
// The backends that are named, and OPS, take part in every place that they do not refuse. One table
// a case, a line for each chain; below it the sentences on LSEs that are written otherwise than
// declared.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "backends/backend.h"
#include "bench/studies/composition.h"
#include "cli/cases/device.h"
#include "cli/cases/plugins.h"
#include "cli/cases/refusals.h"
#include "cli/cases/scenario_files.h"
#include "cli/cases/selection.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/outputs.h"
#include "cli/session/interrupt.h"
#include "core/system/printable.h"
#include "report/formats/output_file.h"

namespace attnbench {
namespace {

/// What came of one case.
struct Composed {
  const Problem* problem = nullptr;
  std::string refusal;  // empty = there are rows
  std::vector<CompositionRow> rows;
};

/// The pairs of one case.
struct CaseOfPairs {
  const Problem* problem = nullptr;
  std::vector<const Backend*> candidates;  // and the program's operations
};

std::vector<CaseOfPairs> cases_of(const std::vector<Pair>& pairs) {
  std::vector<CaseOfPairs> cases;
  for (const Pair& pair : pairs) {
    if (cases.empty() || cases.back().problem != pair.problem) {
      cases.push_back({pair.problem, {}});
    }
    cases.back().candidates.push_back(pair.backend);
  }
  for (CaseOfPairs& one : cases) {
    for (const Backend* backend : all_backends()) {
      const bool is_operation = backend->is_default_for(AttentionType::kOp);
      const bool is_there =
          std::find(one.candidates.begin(), one.candidates.end(), backend) != one.candidates.end();
      if (is_operation && !is_there) one.candidates.push_back(backend);
    }
  }
  return cases;
}

Composed compose_case(const CaseOfPairs& one, Ops& ops, const DeviceChoice& device, int threads) {
  Composed composed{one.problem, why_no_composition(*one.problem), {}};
  if (!composed.refusal.empty()) return composed;
  const CompositionMembers members = members_of(*one.problem, one.candidates, device.facts);
  if (members.attentions.empty()) {
    composed.refusal = "no backend takes its decodes";
    return composed;
  }
  ReferenceOptions options;
  options.num_threads = threads;
  composed.rows = study_composition(*one.problem, members, ops, device.facts, options);
  return composed;
}

std::string verdict_of(const CompositionRow& row) {
  if (!row.refusal.empty()) return row.refusal;
  return fmt::format("{:.1e}  {}", row.row_error, row.fits ? "fits" : "does not fit");
}

std::string name_of(const Problem& problem) {
  return fmt::format("{}/{}", printable(problem.scenario), printable(problem.case_name));
}

void print_case(std::ostream& out, const Composed& composed) {
  out << name_of(*composed.problem) << "\n";
  std::array<std::size_t, 3> widths{9, 6, 8};
  for (const CompositionRow& row : composed.rows) {
    widths = {std::max(widths[0], row.attention.size()), std::max(widths[1], row.merge.size()),
              std::max(widths[2], row.combine.size())};
  }
  const auto line = [&](const std::string& a, const std::string& b, const std::string& c,
                        const std::string& rest) {
    out << fmt::format("  {:<{}}  {:<{}}  {:<{}}  {}\n", a, widths[0], b, widths[1], c, widths[2],
                       rest);
  };
  line("attention", "merges", "combines", "row error");
  std::set<std::string> mismatches;
  for (const CompositionRow& row : composed.rows) {
    line(row.attention, row.merge, row.combine, printable(verdict_of(row)));
    mismatches.insert(row.mismatches.begin(), row.mismatches.end());
  }
  for (const std::string& mismatch : mismatches) out << "  " << printable(mismatch) << "\n";
}

void print_refusals(std::ostream& out, const std::vector<Composed>& all) {
  std::vector<std::vector<std::string>> refusals;
  for (const Composed& composed : all) {
    refusals.emplace_back();
    if (!composed.refusal.empty()) refusals.back().push_back(composed.refusal);
  }
  for (const auto& [reason, places] : shared_refusals(refusals)) {
    const std::string who = places.size() == 1 ? name_of(*all[places.front()].problem)
                                               : fmt::format("{} cases", places.size());
    out << fmt::format("{}: {}\n", who, printable(reason));
  }
}

std::string to_json(const std::vector<Composed>& all) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Composed& composed : all) {
    nlohmann::ordered_json chains = nlohmann::ordered_json::array();
    for (const CompositionRow& row : composed.rows) {
      nlohmann::ordered_json item = {{"attention", row.attention},
                                     {"merge", row.merge},
                                     {"combine", row.combine},
                                     {"mismatches", row.mismatches}};
      if (row.refusal.empty()) {
        item["row_error"] = std::isfinite(row.row_error) ? nlohmann::ordered_json(row.row_error)
                                                         : nlohmann::ordered_json(nullptr);
        item["fits"] = row.fits;
      } else {
        item["refusal"] = row.refusal;
      }
      chains.push_back(std::move(item));
    }
    list.push_back({{"scenario", composed.problem->scenario},
                    {"case", composed.problem->case_name},
                    {"refusal", composed.refusal},
                    {"chains", std::move(chains)}});
  }
  return list.dump(2, ' ', /*ensure_ascii=*/false,
                   nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

int exit_code_of(const std::vector<Composed>& all) {
  bool any = false;
  for (const Composed& composed : all) {
    for (const CompositionRow& row : composed.rows) {
      if (!row.refusal.empty()) continue;
      if (!row.fits || !row.mismatches.empty()) return kExitIncorrect;
      any = true;
    }
  }
  return any ? kExitPassed : kExitNothingRan;
}

int compose(const StudyOptions& arguments, const Console& console) {
  const InterruptGuard guard;
  const DeviceChoice device = choose_device(arguments.selection);
  Plugins plugins(arguments.selection.plugins, device, arguments.threads);
  const std::vector<LoadedScenario> scenarios =
      load_scenarios(arguments.scenarios, scenario_overrides(arguments.selection));
  plugins.add_named(named_backends(arguments.selection, scenarios));
  check_output_paths(input_paths(scenarios, arguments.selection.plugins),
                     {{"--json", arguments.json}});
  if (!device.refusals.empty()) {
    console.out << printable(device.refusals.front()) << "\n";
    return kExitNothingRan;
  }
  const std::unique_ptr<Ops> ops = open_ops(device, arguments.threads, arguments.cache_dir);
  const std::vector<Pair> pairs = select_pairs(scenarios, arguments.selection, plugins.backends());
  if (pairs.empty()) print_error(console.err, why_no_pairs(arguments.selection));
  std::vector<Composed> all;
  for (const CaseOfPairs& one : cases_of(pairs)) {
    if (InterruptGuard::interrupted()) break;
    all.push_back(compose_case(one, *ops, device, arguments.threads));
    if (arguments.json != "-" && all.back().refusal.empty()) print_case(console.out, all.back());
  }
  if (arguments.json != "-") print_refusals(console.out, all);
  if (!arguments.json.empty()) write_text(arguments.json, to_json(all));
  return exit_code_of(all);
}

}  // namespace

RunCommand declare_compose(OptionTable& options) {
  auto arguments = std::make_shared<StudyOptions>();
  add_study_options(options, *arguments, "Write the chains as JSON ('-' = stdout)", /*runs=*/true);
  return [arguments](const Console& console) { return compose(*arguments, console); };
}

}  // namespace attnbench
