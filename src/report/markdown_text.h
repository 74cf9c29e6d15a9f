// Text inside Markdown tables.
#pragma once

#include <string>

namespace attnbench {

/// Without cell separators, line breaks, tags and control characters.
std::string markdown_cell(const std::string& text);

}  // namespace attnbench
