#include "cli/cases/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

#include "backends/backend.h"
#include "backends/forced_kernel.h"
#include "backends/upstream_names.h"
#include "bench/cases/case.h"
#include "cli/terminal/text.h"
#include "core/backend_name.h"
#include "core/error.h"
#include "core/result/result_file.h"
#include "ops/cuda/attention/candidates.h"
#include "plugin/python_plugin.h"

namespace attnbench {
namespace {

using Backends = std::vector<const Backend*>;

void append(const Backends& more, Backends& backends) {
  for (const Backend* backend : more) {
    if (std::find(backends.begin(), backends.end(), backend) == backends.end()) {
      backends.push_back(backend);
    }
  }
}

/// Errors: `kind` for a name that no attention kernel has.
void check_kernel(std::string_view kernel, ErrorKind kind, const std::string& where) {
  const std::vector<std::string> known = cuda::attend_candidate_names();
  const std::string name(cuda::parse_forced_kernel(kernel).name);
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    fail(kind, "{}: unknown kernel '{}'{} (known: {})", where, name, did_you_mean(name, known),
         join(known, ", "));
  }
  const std::string reason = cuda::forced_options_misfit(kernel);
  if (!reason.empty()) fail(kind, "{}: kernel {}: {}", where, name, reason);
}

/// Null where there is none. A whole name comes before one with a kernel: plugins name themselves.
const Backend* find_named(const std::string& name, ErrorKind kind, const std::string& where,
                          const Backends& plugins) {
  const auto find = [&](std::string_view wanted) {
    const Backend* backend = find_backend(wanted);
    for (const Backend* plugin : plugins) {
      if (plugin->name() == wanted) backend = plugin;
    }
    return backend != nullptr ? backend : find_upstream_backend(wanted);
  };
  const Backend* const whole = find(name);
  const BackendName parts = parse_backend_name(name);
  if (whole != nullptr || parts.backend.size() == name.size()) return whole;
  const Backend* const backend = find(parts.backend);
  if (backend == nullptr) return nullptr;
  check_kernel(parts.kernel, kind, where);
  return &with_forced_kernel(*backend, parts.kernel);
}

/// `where` begins the message: "--backend", or the key with its file and line.
void add_backend(const std::string& name, ErrorKind kind, const std::string& where,
                 const Backends& plugins, Backends& backends) {
  const Backend* const backend = find_named(name, kind, where, plugins);
  if (backend == nullptr && name.starts_with(kPythonPrefix)) {
    fail(kind, "{}: expected python:MODULE:CLASS, e.g. python:mine:Mine, found '{}'", where, name);
  }
  if (backend == nullptr) {
    std::vector<std::string> known;
    for (const Backend* candidate : all_backends()) known.emplace_back(candidate->name());
    for (const Backend* candidate : plugins) known.emplace_back(candidate->name());
    fail(kind, "{}: unknown backend '{}'{} (known: {})", where, name, did_you_mean(name, known),
         join(known, ", "));
  }
  append({backend}, backends);
}

/// All of them held to the kernel of --kernel.
Backends with_kernel(const Backends& backends, const std::string& kernel) {
  if (kernel.empty()) return backends;
  Backends forced;
  for (const Backend* backend : backends) {
    if (!backend->forced_kernel().empty()) {
      fail(ErrorKind::kUsage, "--kernel {}: the backend {} names a kernel itself", kernel,
           full_name(*backend));
    }
    forced.push_back(&with_forced_kernel(*backend, kernel));
  }
  return forced;
}

/// The backends of cases for which nobody names one.
Backends native_backends(const Problem& problem) {
  Backends backends;
  for (const Backend* backend : all_backends()) {
    if (backend->runs_by_default(problem)) backends.push_back(backend);
  }
  if (!backends.empty()) return backends;
  for (const Backend* backend : all_backends()) {
    if (backend->is_default_for(AttentionType::kDecoder)) backends.push_back(backend);
  }
  return backends;
}

/// Part `index` of `count`, from 1 on.
struct Part {
  int index = 1;
  int count = 1;
};

/// Errors: kUsage unless it is K/N with 1 <= K <= N.
Part parse_part(const std::string& text) {
  Part part;
  char slash = 0;
  std::istringstream in(text);
  const bool read = static_cast<bool>(in >> part.index >> slash >> part.count);
  if (read && slash == '/' && in.peek() == EOF && part.index >= 1 && part.index <= part.count) {
    return part;
  }
  fail(ErrorKind::kUsage, "--part: expected K/N with 1 <= K <= N, or slurm, found '{}'", text);
}

/// Cases that share their inputs, which stay in one part.
struct SharedCases {
  std::vector<std::size_t> pairs;
  double cost = 0;
};

std::vector<SharedCases> shared_cases(const std::vector<Pair>& pairs) {
  std::vector<SharedCases> all;
  const Problem* last = nullptr;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Problem* problem = pairs[i].problem;
    const bool goes_on = last != nullptr && (last == problem || same_values(*last, *problem));
    if (!goes_on) all.emplace_back();
    last = problem;
    all.back().pairs.push_back(i);
  }
  return all;
}

/// Seconds that a result took in all; of a file from before these were kept, those of its samples.
double seconds_of(const Result& result) {
  double time_s = 0;
  for (const auto& [phase, phase_s] : result.run_seconds) time_s += phase_s;
  if (time_s > 0 || !result.timing) return time_s;
  const std::vector<double>& samples_us = result.timing->samples_us;
  return std::accumulate(samples_us.begin(), samples_us.end(), 0.0) * 1e-6;
}

/// By the time that their results took; a case without any costs the mean of those that have some.
void set_costs(const std::vector<Pair>& pairs, const std::string& path,
               std::vector<SharedCases>& all) {
  std::map<std::string, double> costs;
  double sum = 0;
  const ResultFile file = read_result_file(path);
  for (const Result& result : file.results) {
    const double time_s = seconds_of(result);
    if (time_s > 0) sum += costs[result.id] = time_s;
  }
  const double mean = costs.empty() ? 1 : sum / static_cast<double>(costs.size());
  for (SharedCases& shared : all) {
    for (const std::size_t i : shared.pairs) {
      const auto known = costs.find(pairs[i].id);
      shared.cost += known == costs.end() ? mean : known->second;
    }
  }
}

/// The part of each of them: without costs dealt in turn, like cards, because neighbours in a sweep
/// cost about the same; else the dearest first, each to the part that has least to do.
std::vector<int> parts_of(const std::vector<SharedCases>& all, int count, bool has_costs) {
  std::vector<int> parts(all.size());
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return all[a].cost > all[b].cost; });
  std::vector<double> work(static_cast<std::size_t>(count), 0.0);
  for (std::size_t turn = 0; turn < order.size(); ++turn) {
    const auto least = std::min_element(work.begin(), work.end()) - work.begin();
    const auto dealt = static_cast<std::ptrdiff_t>(turn) % count;
    const std::ptrdiff_t part = has_costs ? least : dealt;
    work[static_cast<std::size_t>(part)] += all[order[turn]].cost;
    parts[order[turn]] = static_cast<int>(part) + 1;
  }
  return parts;
}

std::vector<Pair> pairs_of_part(std::vector<Pair> pairs, const Part& part,
                                const std::string& costs) {
  std::vector<SharedCases> all = shared_cases(pairs);
  if (!costs.empty()) set_costs(pairs, costs, all);
  const std::vector<int> parts = parts_of(all, part.count, !costs.empty());
  std::vector<Pair> kept;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (parts[i] != part.index) continue;
    for (const std::size_t pair : all[i].pairs) kept.push_back(std::move(pairs[pair]));
  }
  return kept;
}

/// Errors: kUsage where the variable is missing or no number.
int slurm_number(const char* name) {
  const char* const text = std::getenv(name);
  int number = -1;
  std::istringstream in(text == nullptr ? "" : text);
  if (in >> number && in.peek() == EOF && number >= 0) return number;
  fail(ErrorKind::kUsage, "--part slurm: expected a number in {}, found '{}': not in an array job?",
       name, text == nullptr ? "" : text);
}

}  // namespace

IdFilter::IdFilter(const std::string& text, std::string option) : option_(std::move(option)) {
  if (text.empty()) return;
  try {
    pattern_.emplace(text);
  } catch (const std::runtime_error& error) {  // std::regex_error
    fail(ErrorKind::kUsage, "{}: expected an ECMAScript regular expression, found '{}' ({})",
         option_, text, error.what());
  }
}

bool IdFilter::matches(const std::string& id) const {
  if (!pattern_) return true;
  try {
    return pattern_->is_in(id);
  } catch (const std::runtime_error& error) {  // std::regex_error
    fail(ErrorKind::kUsage, "{}: the regular expression is too costly for '{}' ({})", option_, id,
         error.what());
  }
}

std::string numbered_part(const std::string& part) {
  if (part != "slurm") return part;
  const int first = slurm_number("SLURM_ARRAY_TASK_MIN");
  const int last = slurm_number("SLURM_ARRAY_TASK_MAX");
  const int count = slurm_number("SLURM_ARRAY_TASK_COUNT");
  // Ids of an array may have a step ("0-30:10").
  const int step = count > 1 ? (last - first) / (count - 1) : 1;
  const int index = (slurm_number("SLURM_ARRAY_TASK_ID") - first) / std::max(step, 1) + 1;
  return fmt::format("{}/{}", index, count);
}

Backends backends_of(const Scenario& scenario, const Backends& plugins) {
  Backends backends;
  for (std::size_t i = 0; i < scenario.backends.size(); ++i) {
    add_backend(scenario.backends[i], ErrorKind::kConfig, scenario.backend_places[i] + "backends",
                plugins, backends);
  }
  return backends;
}

std::vector<Pair> select_pairs(const std::vector<LoadedScenario>& scenarios,
                               const SelectionOptions& options, const Backends& plugins) {
  Backends explicit_backends;
  for (const std::string& name : options.backends) {
    add_backend(name, ErrorKind::kUsage, "--backend", plugins, explicit_backends);
  }
  if (!options.kernel.empty()) check_kernel(options.kernel, ErrorKind::kUsage, "--kernel");
  Backends libraries;  // a Python class runs where it is named
  std::copy_if(plugins.begin(), plugins.end(), std::back_inserter(libraries),
               [](const Backend* plugin) { return !plugin->name().starts_with(kPythonPrefix); });
  const IdFilter filter(options.filter, "--filter");
  std::vector<Pair> pairs;
  for (const LoadedScenario& loaded : scenarios) {
    const Scenario& scenario = loaded.scenario;
    const Backends scenario_backends = backends_of(scenario, plugins);
    for (const Problem& problem : scenario.cases) {
      Backends backends = explicit_backends;
      if (backends.empty()) {
        backends = scenario_backends.empty() ? native_backends(problem) : scenario_backends;
        append(libraries, backends);
      }
      for (const Backend* backend : with_kernel(backends, options.kernel)) {
        std::string id =
            fmt::format("{}/{}/{}", problem.scenario, problem.case_name, full_name(*backend));
        if (filter.matches(id)) pairs.push_back({&loaded, &problem, backend, std::move(id)});
      }
    }
  }
  if (options.part.empty()) {
    if (options.part_costs.empty()) return pairs;
    fail(ErrorKind::kUsage, "--part-costs: expected --part with it, found none");
  }
  return pairs_of_part(std::move(pairs), parse_part(numbered_part(options.part)),
                       options.part_costs);
}

std::string why_no_pairs(const SelectionOptions& options) {
  const std::string of_part =
      options.part.empty() ? "" : fmt::format(" in --part {}", numbered_part(options.part));
  if (options.filter.empty()) return fmt::format("no cases{}", of_part);
  return fmt::format(
      "no result id matches --filter '{}'{}; 'attnbench support' without it lists "
      "them",
      options.filter, of_part);
}

}  // namespace attnbench
