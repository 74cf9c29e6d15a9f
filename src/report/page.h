// Result files -> one self-contained HTML page with plots, which needs no network.
#pragma once

#include <ostream>
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

/// What the page shows, as JSON that is safe inside of a script element (no "<", no line separators
/// that JavaScript would take for an end of line): the files with their environments, the
/// scenarios with the keys that vary in them, the results, the comparisons, and the metrics that
/// can be plotted. Numbers have six digits; of many samples an even selection is kept, with their
/// count.
std::string page_data(const std::vector<ResultFile>& files,
                      const std::vector<PageComparison>& comparisons,
                      const MetricTable& table = metric_table());

void write_page(std::ostream& out, const std::vector<ResultFile>& files,
                const std::vector<PageComparison>& comparisons);

}  // namespace attnbench
