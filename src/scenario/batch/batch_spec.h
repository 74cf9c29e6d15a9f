// Limits of a batch and short forms of its numbers; the grammar itself is declared in scenario.h.
#pragma once

#include <cstdint>
#include <string>

namespace attnbench {

/// Token counts are 32-bit in cumulative arrays (semantics §1.1).
inline constexpr std::int64_t kMaxTokens = 2147483647;
inline constexpr std::int64_t kMaxRequests = 1000000;

/// 4096 -> "4k", 1000 -> "1000", 0 -> "0".
std::string token_count_text(std::int64_t tokens);

}  // namespace attnbench
