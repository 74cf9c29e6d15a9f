// Formats of programs that keep results over time or compare them: Bencher, Otava, Prometheus,
// nvbench's compare scripts, cuDNN's SDPA benchmark. Those of other benchmarks are in foreign.h.
//
// Only timed results are written. Keys, units and tags are those of the readers: nanoseconds for
// Bencher, seconds for nvbench and Prometheus, milliseconds for cuDNN. A number that a reader does
// not know has no place; the result file has all.
//
// Sources: bencher.dev/bmf.json; otava/importer.py of apache/otava;
// nvbench/json_printer.cu and python/scripts/nvbench_compare.py of NVIDIA/nvbench;
// benchmark/sdpa_benchmark_training/config_types.py of cudnn-frontend; "Exposition formats" in the
// documentation of Prometheus.
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// Bencher Metric Format: by result id the measures latency (ns, with quartiles as bounds),
/// throughput (new tokens/s) and max-abs-error.
void write_bencher(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);

/// A run in a history: what Otava looks for changes in.
struct OtavaRow {
  std::string time;                      // RFC 3339
  std::string commit;                    // attribute
  std::map<std::string, double> values;  // by metric
};
/// A line a row, a column a metric that every row has: Otava takes no empty field. Metrics are
/// in the order of their names.
void write_otava_rows(std::ostream& out, const std::vector<OtavaRow>& rows);
/// The row of one run: the medians in microseconds, by result id.
OtavaRow otava_row(const RunInfo& run, const std::vector<Result>& results);
void write_otava_csv(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);

/// nvbench's JSON, file version 1.0.0: a benchmark "<scenario>/<backend>" with the axis Case.
/// Results of a GPU have the tags nv/cold/time/gpu/..., those of a CPU nv/cpu_only/time/cpu/...
void write_nvbench(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);

/// The columns of cuDNN's SDPA benchmark; forward passes of batches whose requests have equal
/// lengths, others have no line there.
void write_cudnn_csv(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);

/// Gauges in Prometheus's text format, for its node exporter's textfile collector. All results:
/// attnbench_passed is 0 for those that failed.
void write_prometheus(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);

}  // namespace attnbench
