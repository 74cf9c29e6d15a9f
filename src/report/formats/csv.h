// Results as CSV (RFC 4180): one header line, one line a result.
#pragma once

#include <ostream>
#include <vector>

#include "core/result/metric_table.h"
#include "core/result/result.h"

namespace attnbench {

/// The columns follow the metric table; a number that does not exist is an empty field.
void write_csv(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);
/// The same with the columns of another table.
void write_csv_columns(std::ostream& out, const std::vector<Result>& results,
                       const MetricTable& table);

}  // namespace attnbench
