#include "cli/number_check.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>

namespace attnbench {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();

NumberCheck check(double least, double most, std::string expected) {
  return [least, most, expected = std::move(expected)](const std::string& text) -> std::string {
    double value = 0;
    const bool fits = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
    return fits ? "" : fmt::format("expected {}, found {}", expected, text);
  };
}

}  // namespace

NumberCheck number_between(double least, double most) {
  return check(least, most, fmt::format("a number from {} to {}", least, most));
}

NumberCheck positive_number(bool or_zero) {
  const double least = or_zero ? 0 : std::numeric_limits<double>::denorm_min();
  return check(least, kMost, fmt::format("a finite number {} 0", or_zero ? ">=" : ">"));
}

}  // namespace attnbench
