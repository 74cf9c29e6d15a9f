#include "cli/cases/selection.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

#include "backends/backend.h"
#include "backends/forced_kernel.h"
#include "bench/cases/case.h"
#include "cli/terminal/text.h"
#include "core/backend_name.h"
#include "core/error.h"
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
  if (std::find(known.begin(), known.end(), kernel) != known.end()) return;
  fail(kind, "{}: unknown kernel '{}'{} (known: {})", where, kernel,
       did_you_mean(std::string(kernel), known), join(known, ", "));
}

/// Null where there is none. A whole name comes before one with a kernel: plugins name themselves.
const Backend* find_named(const std::string& name, ErrorKind kind, const std::string& where,
                          const Backends& plugins) {
  const auto find = [&](std::string_view wanted) {
    const Backend* backend = find_backend(wanted);
    for (const Backend* plugin : plugins) {
      if (plugin->name() == wanted) backend = plugin;
    }
    return backend;
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
Backends native_backends(AttentionType type) {
  Backends backends;
  for (const Backend* backend : all_backends()) {
    if (backend->is_default_for(type)) backends.push_back(backend);
  }
  if (backends.empty() && type != AttentionType::kDecoder) {
    return native_backends(AttentionType::kDecoder);
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
  fail(ErrorKind::kUsage, "--part: expected K/N with 1 <= K <= N, found '{}'", text);
}

/// Deals runs of cases that share their inputs to the parts in turn, like cards: neighbours in a
/// sweep cost about the same.
std::vector<Pair> pairs_of_part(std::vector<Pair> pairs, const Part& part) {
  std::vector<Pair> kept;
  const Problem* last = nullptr;
  int run = -1;
  for (Pair& pair : pairs) {
    const bool goes_on =
        last != nullptr && (last == pair.problem || same_values(*last, *pair.problem));
    if (!goes_on) ++run;
    last = pair.problem;
    if (run % part.count == part.index - 1) kept.push_back(std::move(pair));
  }
  return kept;
}

}  // namespace

IdFilter::IdFilter(const std::string& text, std::string option) : option_(std::move(option)) {
  if (text.empty()) return;
  try {
    regex_.emplace(text, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    fail(ErrorKind::kUsage, "{}: expected an ECMAScript regular expression, found '{}' ({})",
         option_, text, error.what());
  }
}

bool IdFilter::matches(const std::string& id) const {
  if (!regex_) return true;
  try {
    return std::regex_search(id, *regex_);
  } catch (const std::regex_error& error) {
    fail(ErrorKind::kUsage, "{}: the regular expression is too costly for '{}' ({})", option_, id,
         error.what());
  }
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
        backends =
            scenario_backends.empty() ? native_backends(problem.attention.type) : scenario_backends;
        append(libraries, backends);
      }
      for (const Backend* backend : with_kernel(backends, options.kernel)) {
        std::string id =
            fmt::format("{}/{}/{}", problem.scenario, problem.case_name, full_name(*backend));
        if (filter.matches(id)) pairs.push_back({&loaded, &problem, backend, std::move(id)});
      }
    }
  }
  if (options.part.empty()) return pairs;
  return pairs_of_part(std::move(pairs), parse_part(options.part));
}

}  // namespace attnbench
