// Problem as JSON: the "problem" of result files and saved tensors (contract.md section 4).
#pragma once

#include <string>

#include "core/problem/problem.h"

namespace attnbench {

/// Every resolved field of contract section 1, same nesting and names; the batch as a list of
/// {count, query_len, seq_len}. `indent` as in nlohmann::json::dump; -1 is one line.
std::string problem_to_json(const Problem& problem, int indent = -1);

}  // namespace attnbench
