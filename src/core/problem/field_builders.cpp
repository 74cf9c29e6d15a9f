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

namespace {

// Longer than any path that a file system takes.
constexpr std::size_t kLongestText = 4096;

/// Null, or the word, that stands for "not set".
bool is_unset(const Value& value, std::string_view word) {
  return word == "null" ? value.is_null() : (!word.empty() && value.is_string(word));
}

Value unset_value(std::string_view word) {
  return word == "null" ? Value::null() : Value::of(std::string(word));
}

}  // namespace

Field integer_field(std::string key, Slot<std::int64_t> slot, Range range, std::string unset) {
  Field field{.key = std::move(key)};
  field.set = [=](const Value& value, Problem& problem) -> std::optional<Mismatch> {
    if (is_unset(value, unset)) {
      slot.set(problem, std::nullopt);
      return std::nullopt;
    }
    double checked = 0;
    auto mismatch = read_number(value, range, true, unset, checked);
    if (!mismatch) slot.set(problem, value.integer);
    return mismatch;
  };
  field.get = [=](const Problem& problem) {
    const std::optional<std::int64_t> value = slot.get(problem);
    return value ? Value::of(*value) : unset_value(unset);
  };
  return field;
}

Field real_field(std::string key, Slot<double> slot, Range range, std::string unset) {
  Field field{.key = std::move(key)};
  field.set = [=](const Value& value, Problem& problem) -> std::optional<Mismatch> {
    if (is_unset(value, unset)) {
      slot.set(problem, std::nullopt);
      return std::nullopt;
    }
    double checked = 0;
    auto mismatch = read_number(value, range, false, unset, checked);
    if (!mismatch) slot.set(problem, checked);
    return mismatch;
  };
  field.get = [=](const Problem& problem) {
    const std::optional<double> value = slot.get(problem);
    return value ? Value::of(*value) : unset_value(unset);
  };
  return field;
}

Field boolean_field(std::string key, Slot<bool> slot, std::string unset) {
  Field field{.key = std::move(key)};
  field.set = [=](const Value& value, Problem& problem) -> std::optional<Mismatch> {
    if (is_unset(value, unset)) return std::nullopt;
    if (!value.is_bool()) {
      return Mismatch{ErrorKind::kFormat, "true or false" + alternative_text(unset), &value};
    }
    slot.set(problem, value.boolean);
    return std::nullopt;
  };
  field.get = [=](const Problem& problem) { return Value::of(slot.get(problem).value()); };
  return field;
}

Field choice_field(std::string key, Slot<int> slot, std::vector<int> choices,
                   std::vector<std::string> words) {
  Field field{.key = std::move(key), .words = words};
  field.set = [=](const Value& value, Problem& problem) -> std::optional<Mismatch> {
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (value.is_string(words[i])) {
        slot.set(problem, choices[i]);
        return std::nullopt;
      }
    }
    return Mismatch{ErrorKind::kFormat, fmt::format("one of {}", fmt::join(words, ", ")), &value};
  };
  field.get = [=](const Problem& problem) {
    const std::optional<int> value = slot.get(problem);
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (value == choices[i]) return Value::of(words[i]);
    }
    return Value::null();
  };
  return field;
}

Field text_field(std::string key, Slot<std::string> slot, bool is_optional, bool is_input_path) {
  Field field{.key = std::move(key), .is_input_path = is_input_path};
  field.set = [=](const Value& value, Problem& problem) -> std::optional<Mismatch> {
    if (is_optional && value.is_null()) {
      slot.set(problem, std::nullopt);
      return std::nullopt;
    }
    if (!value.is_string() || value.text.empty() || value.text.size() > kLongestText) {
      return Mismatch{ErrorKind::kFormat, is_optional ? "text or null" : "text", &value};
    }
    slot.set(problem, value.text);
    return std::nullopt;
  };
  field.get = [=](const Problem& problem) {
    const std::optional<std::string> value = slot.get(problem);
    return value ? Value::of(*value) : Value::null();
  };
  return field;
}

}  // namespace attnbench::fields
