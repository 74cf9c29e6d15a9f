// SHA-256 (FIPS 180-4), for short stable names and for saying which file or kernel a result is of;
// not for secrets.
#pragma once

#include <string>
#include <string_view>

namespace attnbench {

/// 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view data);

}  // namespace attnbench
