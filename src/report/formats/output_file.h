// Writing the files that a run leaves: a format to a path, whole or not at all.
//
// A run may take hours and its files are read by CI jobs, so a path is checked before anything runs
// (check_writable) and a reader never sees half a file: text goes to a temporary file in the same
// folder, which then takes the name. What is not a regular file (a pipe, /dev/null) has no place
// for that and is written in place. "-" is stdout.
//
// A temporary file in another folder would be on another file system for some users, where taking
// the name is a copy and no longer all or nothing. Links are followed: what a link points to is
// replaced, not the link.
//
// Files of scales and of tensors, which other modules write, go through the same functions of
// core/atomic_file: there is one way in which this program replaces a file.
#pragma once

#include <string>
#include <vector>

#include "core/result/result.h"
#include "report/formats.h"

namespace attnbench {

/// Writes results in a format. The text is made in memory first, except for stdout, where a reader
/// may want the first lines early. Errors: E-IO naming the path, also where a full disk shows only
/// when the file is closed.
void write_output(const OutputFormat& format, const std::string& path, const RunInfo& run,
                  const std::vector<Result>& results);

/// The same for any text (a journal, a report page, a summary), which is written as it is: callers
/// end it with a line break.
void write_text(const std::string& path, const std::string& text);

/// Fails with E-IO when `path` could not be written later: the folder is missing, or no one may
/// write there. Neither makes the file nor touches one that is there. A file or folder
/// without any write permission is refused to the superuser too: the system would let root write
/// it, but whoever took the permissions away meant it.
void check_writable(const std::string& path);

}  // namespace attnbench
