// A history of runs: a file of lines, one a result, that `run --history FILE` appends to and
// `attnbench history` reads.
//
// A line is a JSON object of the numbers that one follows over months, not a whole result:
//   {"schema_version": 1, "created": "2026-11-03T03:17:00Z", "version": "0.1.0", "git": "1a2b3c",
//    "fingerprint": "...", "device": "cuda:0", "device_name": "NVIDIA H200", "plugin": null,
//    "id": "decode/8q1s1k/FLASH_ATTN", "status": "passed", "median_us": 839.2, ...}
// A number that does not exist is null. Lines are appended by one call of write(), so several runs
// may share a file; a line that was cut off is left out when the file is read. A file that is too
// long is shortened with `tail`: no line depends on another.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// A number of a history line. `less_is_better` says which way a change is worse.
struct HistoryMetric {
  const char* name;
  const char* unit;  // "" for ratios
  bool less_is_better;
  double (*get)(const Result& result);  // NaN where there is none
};

/// median_us first, which is what `attnbench history` shows by default.
const std::vector<HistoryMetric>& history_metrics();

/// The row of that name. Errors: kUsage with the names that there are.
const HistoryMetric& history_metric(const std::string& name);

/// A line as it was read.
struct HistoryRecord {
  std::string created;
  std::string git;
  std::string fingerprint;  // of the machine
  std::string device_name;  // of the GPU, else of the CPU
  std::string plugin;       // version of the library under test; empty for built-in backends
  std::string id;
  std::string status;
  std::map<std::string, double> numbers;  // those that exist
};

/// Appends a line for each result, with all lines in one call; skipped results are left out.
/// Errors: E-IO.
void append_history(const std::string& path, const RunInfo& run,
                    const std::vector<Result>& results);

/// All lines of the files in the order of their times. Errors: E-IO, and E-FORMAT naming file and
/// line for one that is no history; a last line without an end is left out.
std::vector<HistoryRecord> read_history(const std::vector<std::string>& paths);

/// The values of one case on one machine, oldest first.
struct HistorySeries {
  std::string id;
  std::string device_name;
  std::string fingerprint;
  std::vector<const HistoryRecord*> records;  // passed, and with the number
  std::vector<double> values;
  int without_value = 0;    // records that did not pass, or lack the number
  std::string last_status;  // of the newest record, whatever it is
};

/// The series of a metric, by id and then by machine. They point into `records`.
std::vector<HistorySeries> history_series(const std::vector<HistoryRecord>& records,
                                          const HistoryMetric& metric);

}  // namespace attnbench
