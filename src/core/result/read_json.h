// One element of "results" in a result file (contract.md section 4) back as a Result: the inverse
// of result_to_json(). Also what a parent process reads the results of its children with, so
// nothing of a Result may get lost on the way.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/result/metric_table.h"
#include "core/result/result.h"

namespace attnbench {

/// Whether it has lists and objects in each other deeper than any result: whoever handles such a
/// document runs out of stack.
bool nests_too_deep(std::string_view json);

/// Reads what result_to_json wrote; a null number is NaN, unknown keys are ignored. Errors:
/// E-FORMAT naming the key that is missing or of the wrong type.
Result result_from_json(const std::string& text, const MetricTable& table = metric_table());
/// The same of what is parsed already, and does not nest too deep.
Result result_from_document(const nlohmann::ordered_json& json,
                            const MetricTable& table = metric_table());

}  // namespace attnbench
