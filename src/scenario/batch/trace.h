// Reading request traces.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/enum_names.h"
#include "scenario/batch/replay.h"

namespace attnbench {

enum class TraceFormat { kAzureLlm, kMooncake };
std::span<const EnumRow<TraceFormat>> enum_rows(TraceFormat);

/// Requests in file order; empty lines are skipped. Errors: E-FORMAT "<file>:<line>: ..." for a
/// line that does not fit, a prompt without tokens, a file without requests; E-IO.
std::vector<TraceRequest> read_trace(const std::filesystem::path& path, TraceFormat format);

/// The same for text in memory.
std::vector<TraceRequest> parse_trace(const std::string& text, const std::string& file,
                                      TraceFormat format);

}  // namespace attnbench
