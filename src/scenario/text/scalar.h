// The value of a plain YAML 1.2 scalar.
#pragma once

#include <optional>
#include <string>

#include "core/value.h"

namespace attnbench {

/// Core schema: null and ~ and nothing; true, false; integers (decimal without leading zeros, 0x,
/// 0o); floats, .inf, .nan; anything else is text. Nothing for a number out of range.
std::optional<Value> plain_scalar(const std::string& text);

}  // namespace attnbench
