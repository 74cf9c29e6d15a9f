// Text inside XML 1.0 documents.
#pragma once

#include <string>
#include <string_view>

namespace attnbench {

/// Markup is escaped, characters that XML cannot hold become U+FFFD.
std::string xml_escape(std::string_view text);

}  // namespace attnbench
