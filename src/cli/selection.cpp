#include "cli/selection.h"

#include <algorithm>
#include <utility>

#include "backends/backend.h"
#include "cli/text.h"
#include "core/error.h"

namespace attnbench {
namespace {

using Backends = std::vector<const Backend*>;

/// `where` begins the message: "--backend", or the key with its file and line.
void add_backend(const std::string& name, ErrorKind kind, const std::string& where,
                 Backends& backends) {
  const Backend* backend = find_backend(name);
  if (backend == nullptr) {
    std::vector<std::string> known;
    for (const Backend* candidate : all_backends()) known.emplace_back(candidate->name());
    fail(kind, "{}: unknown backend '{}'{} (known: {})", where, name, did_you_mean(name, known),
         join(known, ", "));
  }
  if (std::find(backends.begin(), backends.end(), backend) == backends.end()) {
    backends.push_back(backend);
  }
}

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

Backends backends_of(const Scenario& scenario) {
  Backends backends;
  for (std::size_t i = 0; i < scenario.backends.size(); ++i) {
    add_backend(scenario.backends[i], ErrorKind::kConfig, scenario.backend_places[i] + "backends",
                backends);
  }
  return backends;
}

std::vector<Pair> select_pairs(const std::vector<LoadedScenario>& scenarios,
                               const SelectionOptions& options) {
  Backends explicit_backends;
  for (const std::string& name : options.backends) {
    add_backend(name, ErrorKind::kUsage, "--backend", explicit_backends);
  }
  const IdFilter filter(options.filter, "--filter");
  std::vector<Pair> pairs;
  for (const LoadedScenario& loaded : scenarios) {
    const Scenario& scenario = loaded.scenario;
    const Backends scenario_backends = backends_of(scenario);
    for (const Problem& problem : scenario.cases) {
      const Backends& backends = !explicit_backends.empty() ? explicit_backends
                                 : !scenario_backends.empty()
                                     ? scenario_backends
                                     : native_backends(problem.attention.type);
      for (const Backend* backend : backends) {
        std::string id =
            fmt::format("{}/{}/{}", problem.scenario, problem.case_name, backend->name());
        if (filter.matches(id)) pairs.push_back({&loaded, &problem, backend, std::move(id)});
      }
    }
  }
  return pairs;
}

}  // namespace attnbench
