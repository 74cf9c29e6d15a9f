// Reads whole result files (contract.md section 4) and the journals of unfinished runs. For
// whatever works on the results of earlier runs: report, gate, resume. Both kinds of file give the
// same record; what a journal has not reached yet is simply not in it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

struct ResultFile {
  std::string path;  // as given, for messages and tables
  /// Of the file's head; what the file does not say is empty or 0.
  RunInfo run;
  /// Numbers and texts of environment.device by key, numbers as JSON writes them; empty without a
  /// device.
  std::map<std::string, std::string> device;
  /// The least and the largest of the clocks of the device over all samples of the file; 0 = not
  /// recorded.
  double sm_mhz_min = 0;
  double sm_mhz_max = 0;
  /// In file order, which is that of the run; ids are distinct.
  std::vector<Result> results;
  /// Of an unfinished run: more results may come, and cases without one are not missing.
  bool is_journal = false;
};

/// Reads a result file, or a journal: a head line, then a result a line, the last of which may be
/// cut off where the run was ended. Errors: E-IO when it cannot be read; E-FORMAT naming the file
/// and the result when it is no such file, of another schema version, or holds an id twice.
ResultFile read_result_file(const std::string& path);
/// All of the file, which may be a pipe. Errors: E-IO when it cannot be read.
std::string result_file_text(const std::string& path);

/// The same of a text, for journals that are still being written and for tests; `path` is for
/// messages.
ResultFile parse_result_file(const std::string& text, const std::string& path);

}  // namespace attnbench
