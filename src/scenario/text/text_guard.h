// Cheap checks of a text before a parser sees it.
#pragma once

#include <string>

namespace attnbench {

/// Throws E-FORMAT with "<file>:<line>: " for text that is too long, holds control characters or is
/// no valid UTF-8, or whose brackets nest deeper than a document may.
void check_text(const std::string& text, const std::string& file);

}  // namespace attnbench
