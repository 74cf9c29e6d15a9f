// Reading text files named by scenarios.
#pragma once

#include <filesystem>
#include <string>

#include "core/value.h"

namespace attnbench {

/// Whole content. E-IO when it is no readable regular file; E-FORMAT when longer than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::size_t max_bytes);

/// A path written in a scenario, taken relative to the folder of the file in which it stands; one
/// from the command line is relative to the working directory.
std::filesystem::path resolve_path(const Value& text);

}  // namespace attnbench
