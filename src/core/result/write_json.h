// Result as JSON: one element of "results" in a result file (contract.md section 4), and one line
// of a journal or of the pipe from a child process. The bytes of equal results are equal, so files
// can be compared as text.
#pragma once

#include <string>

#include "core/result/metric_table.h"
#include "core/result/result.h"

namespace attnbench {

/// Strict JSON: a number that is NaN or infinite becomes null, with the reason in a `notes` array
/// beside it; text that is not UTF-8 is replaced. `indent` as in nlohmann::json::dump; -1 is one
/// line. Errors: kInternal for a metric by name of which the table has no row.
std::string result_to_json(const Result& result, int indent = -1,
                           const MetricTable& table = metric_table());

}  // namespace attnbench
