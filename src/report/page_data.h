// The data of the report page: result files as one JSON document that its scripts read.
//
// The page holds it in a script element and the scripts under page/ trust its shape, so the two
// change together. It is smaller than the files: six digits are more than a plot shows, keys that
// never vary are said once a scenario, and of many samples an even selection is kept.
//
//   {"files": [...], "scenarios": {"demo": {"axes": ["batch"], "common": {...}}},
//    "results": [{"fields": {...}, "error": {...}, "timing": {..., "num_samples": 13,
//                 "samples_us": [...]}, "throughput": {...}, "kernels": [0, 2]}],
//    "kernels": [...], "comparisons": [...], "metrics": [...]}
//
// `kernels` of a result are indices into the list of all, which are long names that many results
// share.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/result/metric_table.h"
#include "core/result/result_file.h"
#include "core/result/verdict.h"

namespace attnbench {

/// A later file of the page against the first.
struct PageComparison {
  std::size_t file = 0;  // index of the later one
  GateReport report;
  std::vector<std::string> differences;  // of the machines and cases, for which a gate would refuse
};

/// The files with their environments, the scenarios with the keys that vary in them, the results,
/// the comparisons, and the metrics that can be plotted. The text is safe inside of a script
/// element: no "<", and no line separators that JavaScript would take for an end of line. Samples
/// that were thinned out say how many there were.
std::string page_data(const std::vector<ResultFile>& files,
                      const std::vector<PageComparison>& comparisons,
                      const MetricTable& table = metric_table());

}  // namespace attnbench
