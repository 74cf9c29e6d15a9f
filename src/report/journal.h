// Results of a run as they come: what a run that is killed leaves behind.
#pragma once

#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// A file of lines: the head of a result file, then a result each. A line is written by one call,
/// so that a killed process leaves at most one that is cut off, which the reader leaves out. While
/// it lives no other Journal takes the same path.
class Journal {
 public:
  /// Starts anew with `results`, replacing what an ended process left at `path`; when another
  /// process writes there, a name of its own beside it. Errors: E-IO.
  Journal(const std::string& path, const RunInfo& run, const std::vector<Result>& results);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Where it is, which may not be where it was asked for.
  const std::string& path() const { return path_; }
  /// Writes a result; returns why it could not be written, once, after which nothing more is
  /// written, and else nothing. The run goes on.
  std::string add(const Result& result);
  /// The run is complete and written elsewhere.
  void remove();

 private:
  std::string path_;
  int file_ = -1;
};

}  // namespace attnbench
