// Files that a scenario names, and whether their text is fit for a parser.
//
// Scenarios may come from a pull request that nobody has read yet. So nothing is handed to the YAML
// parser before its size, its characters and the depth of its brackets are known to be harmless:
// the parser recurses, and a few megabytes of "[" would end the process with a stack overflow. The
// check is made of every text that becomes a document, a value of --set included. It counts
// brackets without parsing, so it is rough where quotes are concerned, and its limit leaves room
// for that: real scenarios nest a few levels.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "core/value.h"

namespace attnbench {

/// Of a scenario document; traces have a limit of their own. Both limits are far above what a
/// person writes and far below what would make the parser slow.
inline constexpr std::size_t kMaxDocumentBytes = 16u << 20;
inline constexpr int kMaxNesting = 64;  // lists and mappings inside of each other

/// Whole content, bytes as they are; the size is checked before any of it is read. E-IO when it is
/// no readable regular file; E-FORMAT when longer than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::size_t max_bytes);

/// A path written in a scenario (of a base file, a trace, tensors, scales), taken relative to the
/// folder of the file in which it stands; one from the command line is relative to the working
/// directory. So a scenario can be moved together with its files, and one that is extended from
/// another folder still finds its own.
std::filesystem::path resolve_path(const Value& text);

/// Whether a parser may see the text. `file` is for messages only; nothing is read from it. Line
/// numbers count from 1, as editors do.
/// Throws E-FORMAT with "<file>:<line>: " for text that is longer than kMaxDocumentBytes, holds
/// control characters or is no valid UTF-8, or whose brackets nest deeper than kMaxNesting.
void check_text(const std::string& text, const std::string& file);

}  // namespace attnbench
