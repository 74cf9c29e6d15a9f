// One problem on one backend, judged in this process: what the generated tests are made of.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "core/problem/problem.h"
#include "ops/ops.h"

namespace attnbench::matrix {

enum class Outcome { kPassed, kRefused, kWrong };

struct CaseResult {
  Outcome outcome = Outcome::kPassed;
  std::vector<std::string> reasons;  // of the refusal, or what is wrong

  std::string text() const;  // the reasons in one line
};

/// Pipeline against reference on all rows: refusals, stray writes, cache bytes, two equal runs that
/// are queued without a wait of the host, NaN and infinity in their places, the tolerances of
/// semantics §14.2. An error of the pipeline is kWrong with its message.
/// The backend is judged for `device`.
CaseResult run_case(const Problem& problem, const Backend& backend, Ops& ops,
                    const DeviceFacts& device = {});

/// `key`: dotted; `value`: YAML.
using Setting = std::pair<std::string, std::string>;

/// The only case of scenario `text` with `settings` on top. Errors: as parse_scenario.
Problem make_problem(const std::string& text, const std::vector<Setting>& settings);

}  // namespace attnbench::matrix
