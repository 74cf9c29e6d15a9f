// --json, --csv, ...: an option for every output format, and the files that they name.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "report/formats.h"

namespace CLI {
class App;
}

namespace attnbench {

/// The files to write, by the name of their format. Empty = not written, "-" = stdout.
using OutputFiles = std::map<std::string, std::string>;

/// The heading of options that name outputs.
inline constexpr const char* kOutputGroup = "Outputs (FILE '-' is stdout)";

/// Declares --NAME for every format that has the help text `help`: &OutputFormat::help of `run`,
/// &OutputFormat::verdict_help of `gate`. `files` has to outlive `app`.
void add_output_options(CLI::App& app, OutputFiles& files, const char* OutputFormat::*help,
                        const std::vector<OutputFormat>& formats = output_formats());

/// The file in the format that the program reads back; empty = none is written.
const std::string& result_file_path(const OutputFiles& files);

}  // namespace attnbench
