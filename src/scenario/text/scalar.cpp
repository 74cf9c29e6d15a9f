#include "scenario/text/scalar.h"

#include <charconv>
#include <limits>

namespace attnbench {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::size_t count_digits(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_digit(text[end])) ++end;
  return end - at;
}

enum class NumberForm { kNone, kInteger, kFloat };

/// Form of `text` without its sign: 12, 1.5, .5, 1., 1e3; integers without leading zeros.
NumberForm decimal_form(std::string_view text) {
  std::size_t at = count_digits(text, 0);
  const std::size_t whole = at;
  if (whole > 0 && at == text.size()) {
    return whole > 1 && text[0] == '0' ? NumberForm::kNone : NumberForm::kInteger;
  }
  std::size_t fraction = 0;
  if (at < text.size() && text[at] == '.') {
    fraction = count_digits(text, ++at);
    at += fraction;
  }
  if (whole + fraction == 0) return NumberForm::kNone;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    const std::size_t exponent = count_digits(text, at);
    if (exponent == 0) return NumberForm::kNone;
    at += exponent;
  }
  return at == text.size() ? NumberForm::kFloat : NumberForm::kNone;
}

/// All of `digits` in `base`; nothing when it is too large, `matches` false when it is no number.
std::optional<Value> parse_integer(std::string_view digits, int base, bool& matches) {
  std::int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value, base);
  matches = stop == end && error != std::errc::invalid_argument;
  if (!matches || error != std::errc{}) return std::nullopt;
  return Value::of(value);
}

std::optional<Value> parse_float(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (stop != end || error != std::errc{}) return std::nullopt;
  return Value::of(value);
}

}  // namespace

std::optional<Value> plain_scalar(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") {
    return Value::null();
  }
  if (text == "true" || text == "True" || text == "TRUE") return Value::of(true);
  if (text == "false" || text == "False" || text == "FALSE") return Value::of(false);
  if (text.starts_with("0x") || text.starts_with("0o")) {
    bool matches = false;
    const bool sign_follows = text.size() > 2 && text[2] == '-';
    const std::optional<Value> value =
        parse_integer(std::string_view(text).substr(2), text[1] == 'x' ? 16 : 8, matches);
    if (matches && !sign_follows) return value;
    return Value::of(text);
  }
  const bool negative = text[0] == '-';
  const std::string_view magnitude =
      std::string_view(text).substr(negative || text[0] == '+' ? 1 : 0);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (magnitude == ".inf" || magnitude == ".Inf" || magnitude == ".INF") {
    return Value::of(negative ? -kInfinity : kInfinity);
  }
  if (text == ".nan" || text == ".NaN" || text == ".NAN") {
    return Value::of(std::numeric_limits<double>::quiet_NaN());
  }
  // Why: from_chars takes a leading minus but no plus.
  const std::string_view signed_text = negative ? std::string_view(text) : magnitude;
  bool matches = false;
  switch (decimal_form(magnitude)) {
    case NumberForm::kInteger:
      return parse_integer(signed_text, 10, matches);
    case NumberForm::kFloat:
      return parse_float(signed_text);
    case NumberForm::kNone:
      break;
  }
  return Value::of(text);
}

}  // namespace attnbench
