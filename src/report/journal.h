// Results of a run as they come: what a run that is killed leaves behind.
//
// A journal is a file of lines, the head of a result file first and then a result each, so that
// --resume can go on where a run ended. A line is written by one call: a process that dies leaves
// at most one line that is cut off, which the reader leaves out. The complete result file replaces
// it at the end.
#pragma once

#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// While it lives no other Journal, of this process or another, takes the same path (flock).
class Journal {
 public:
  /// Starts anew with `results`, replacing what an ended process left at `path`; when another
  /// process writes there, takes a name with this process's id beside it. Errors: E-IO.
  Journal(const std::string& path, const RunInfo& run, const std::vector<Result>& results);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Where it is, which may not be where it was wanted.
  const std::string& path() const { return path_; }
  /// Writes a result. Returns why it could not be written, once, after which nothing more is
  /// written; else nothing. Not an error, since a full disk must not end a run whose results can
  /// still go elsewhere.
  std::string add(const Result& result);
  /// The run is complete and written elsewhere: deletes the file.
  void remove();

 private:
  std::string path_;
  int file_ = -1;  // -1 = closed
};

}  // namespace attnbench
