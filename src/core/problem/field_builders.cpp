// What the templates of the header share and need not be compiled for each type: how bounds are
// told in a message, and reading a number against them.
//
// The order of the checks matters to users: a value of the wrong type is told before one that is
// not finite, and that before one out of range, each with the whole condition ("an integer > 0, or
// auto"), so that one message is enough to correct the file.
#include "core/problem/field_builders.h"

namespace attnbench::fields {

/// "an integer >= 1 and <= 64". A limit that only the type sets (2^31 - 1) is left out: few values
/// meet it.
std::string Range::text(std::string_view noun) const {
  std::string result(noun);
  if (std::isfinite(low)) result += fmt::format(" {} {}", above_low ? ">" : ">=", low);
  if (std::isfinite(high) && high != kMaxInt) {
    result += fmt::format("{} <= {}", std::isfinite(low) ? " and" : "", high);
  }
  return result;
}

std::string alternative_text(std::string_view unset) {
  return unset.empty() ? std::string() : fmt::format(", or {}", unset);
}

std::optional<Mismatch> read_number(const Value& value, const Range& range, bool integer,
                                    std::string_view alternative, double& out) {
  std::string expected = range.text(integer ? "an integer" : "a number");
  const bool is_beyond = value.is_number() && value.as_double() > range.high;
  if (is_beyond && range.high == kMaxInt) expected += fmt::format(" and <= {}", range.high);
  expected += alternative_text(alternative);
  if (integer ? !value.is_int() : !value.is_number()) {
    return Mismatch{ErrorKind::kFormat, expected, &value};
  }
  if (!std::isfinite(value.as_double())) {
    return Mismatch{range.kind, expected + " (finite)", &value};
  }
  if (!range.contains(value.as_double())) return Mismatch{range.kind, expected, &value};
  out = value.as_double();
  return std::nullopt;
}

}  // namespace attnbench::fields
