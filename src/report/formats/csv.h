// Results as CSV (RFC 4180), for spreadsheets and data frames: one header line, one line a result.
//
// Columns are names, status and reasons, then every metric that the metric table gives a column,
// then the command that repeats the case. New metrics add columns in the middle, so readers go by
// name and never by position. A list of samples is its length: one line has no place for them, and
// the result file has them all.
//
//   id,scenario,case,backend,device,status,reasons,max_abs,...,median_us,...,repro
//   demo/q64/FLASH_ATTN,demo,q64,FLASH_ATTN,cpu,passed,,0.0077,...,216.4,...,attnbench run ...
//
// What a metric is called here, and whether it has a column at all, is said by its row of
// core/result/metric_table: error metrics may have further columns with the prefixes lse_ and
// quantization_. Adding a metric therefore changes nothing in csv.cpp.
#pragma once

#include <ostream>
#include <vector>

#include "core/result/metric_table.h"
#include "core/result/result.h"

namespace attnbench {

/// The columns follow the metric table; a number that does not exist is an empty field, one that
/// does is the shortest text that reads back as the same value. Lines end with CR LF.
void write_csv(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);
/// The same with the columns of another table, for tests that add a row.
void write_csv_columns(std::ostream& out, const std::vector<Result>& results,
                       const MetricTable& table);

}  // namespace attnbench
