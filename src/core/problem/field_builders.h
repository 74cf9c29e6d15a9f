// Makers of Field for the plain types: an accessor that returns a reference into a Problem gives
// both directions, reading and writing. fields.cpp builds the table from them, field_lists.cpp
// takes what it needs for the values that are lists.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "core/problem/fields.h"

namespace attnbench::fields {

template <typename T>
struct Unwrap {
  using Type = T;
  static constexpr bool kOptional = false;
};
template <typename T>
struct Unwrap<std::optional<T>> {
  using Type = T;
  static constexpr bool kOptional = true;
};
template <typename Access>
using Member = std::remove_cvref_t<std::invoke_result_t<Access, Problem&>>;

/// Bounds of a number and the class of error outside of them.
struct Range {
  double low = 0;
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false;  // low itself is excluded
  ErrorKind kind = ErrorKind::kConfig;

  bool contains(double x) const { return (above_low ? x > low : x >= low) && x <= high; }
  std::string text(std::string_view noun) const;
};

inline constexpr double kMaxInt = 2147483647;
inline constexpr Range kPositive{.low = 0, .above_low = true};
inline constexpr Range kNotNegative{.low = 0};
inline constexpr Range kPositiveScale{.low = 0, .above_low = true, .kind = ErrorKind::kValue};
inline constexpr Range kShare{.low = 0, .high = 1};

/// Reads a number into `out`; finite and inside the range, an integer where `integer` says so.
std::optional<Mismatch> read_number(const Value& value, const Range& range, bool integer,
                                    std::string_view alternative, double& out);

/// Null, or the word, that stands for "not set".
inline bool is_unset(const Value& value, std::string_view word) {
  return word == "null" ? value.is_null() : (!word.empty() && value.is_string(word));
}
inline Value unset_value(std::string_view word) {
  return word == "null" ? Value::null() : Value::of(std::string(word));
}
/// " or auto", or nothing.
std::string alternative_text(std::string_view unset);

/// int, std::int64_t, std::uint64_t or an optional of them. `unset` is the word for the empty
/// optional, or for 0 = "not given" (resolved before anyone reads it).
template <typename Access>
Field integer(std::string key, Access access, Range range, std::string unset = "") {
  using Plain = typename Unwrap<Member<Access>>::Type;
  Field field{.key = std::move(key)};
  field.set = [=](const Value& value, Problem& problem) -> std::optional<Mismatch> {
    if (is_unset(value, unset)) {
      access(problem) = Member<Access>{};
      return std::nullopt;
    }
    double checked = 0;
    auto mismatch = read_number(value, range, true, unset, checked);
    if (!mismatch) access(problem) = static_cast<Plain>(value.integer);
    return mismatch;
  };
  field.get = [=](const Problem& problem) {
    const auto& member = access(problem);
    if constexpr (Unwrap<Member<Access>>::kOptional) {
      return member ? Value::of(static_cast<std::int64_t>(*member)) : unset_value(unset);
    } else {
      return Value::of(static_cast<std::int64_t>(member));
    }
  };
  return field;
}

/// double, or an optional of it; `unset` as for integer().
template <typename Access>
Field real(std::string key, Access access, Range range, std::string unset = "") {
  Field field{.key = std::move(key)};
  field.set = [=](const Value& value, Problem& problem) -> std::optional<Mismatch> {
    if (is_unset(value, unset)) {
      access(problem) = Member<Access>{};
      return std::nullopt;
    }
    double checked = 0;
    auto mismatch = read_number(value, range, false, unset, checked);
    if (!mismatch) access(problem) = checked;
    return mismatch;
  };
  field.get = [=](const Problem& problem) {
    const auto& member = access(problem);
    if constexpr (Unwrap<Member<Access>>::kOptional) {
      return member ? Value::of(double{*member}) : unset_value(unset);
    } else {
      return Value::of(double{member});
    }
  };
  return field;
}

template <typename Access>
Field boolean(std::string key, Access access, std::string unset = "") {
  Field field{.key = std::move(key)};
  field.set = [=](const Value& value, Problem& problem) -> std::optional<Mismatch> {
    if (is_unset(value, unset)) return std::nullopt;
    if (!value.is_bool()) {
      return Mismatch{ErrorKind::kFormat, "true or false" + alternative_text(unset), &value};
    }
    access(problem) = value.boolean;
    return std::nullopt;
  };
  field.get = [=](const Problem& problem) { return Value::of(bool{access(problem)}); };
  return field;
}

/// One of `words`; `choices` are the values they stand for, in the same order.
template <typename Access, typename Choice>
Field choice(std::string key, Access access, std::vector<Choice> choices,
             std::vector<std::string> words) {
  Field field{.key = std::move(key), .words = words};
  field.set = [=](const Value& value, Problem& problem) -> std::optional<Mismatch> {
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (value.is_string(words[i])) {
        access(problem) = choices[i];
        return std::nullopt;
      }
    }
    return Mismatch{ErrorKind::kFormat, fmt::format("one of {}", fmt::join(words, ", ")), &value};
  };
  field.get = [=](const Problem& problem) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (choices[i] == access(problem)) return Value::of(words[i]);
    }
    return Value::null();
  };
  return field;
}

/// An enum with a table of names, or an optional of one.
template <typename Access>
Field enumeration(std::string key, Access access) {
  using Enum = typename Unwrap<Member<Access>>::Type;
  std::vector<Enum> choices;
  std::vector<std::string> words;
  for (const auto& row : enum_rows(Enum{})) {
    choices.push_back(row.value);
    words.emplace_back(row.name);
  }
  return choice(std::move(key), access, std::move(choices), std::move(words));
}

// Longer than any path that a file system takes.
inline constexpr std::size_t kLongestText = 4096;

/// std::string, or an optional of it for which null stands for the empty one. Never empty text.
template <typename Access>
Field text(std::string key, Access access, bool is_input_path = false) {
  constexpr bool kOptional = Unwrap<Member<Access>>::kOptional;
  Field field{.key = std::move(key), .is_input_path = is_input_path};
  field.set = [=](const Value& value, Problem& problem) -> std::optional<Mismatch> {
    if (kOptional && value.is_null()) {
      access(problem) = Member<Access>{};
      return std::nullopt;
    }
    if (!value.is_string() || value.text.empty() || value.text.size() > kLongestText) {
      return Mismatch{ErrorKind::kFormat, kOptional ? "text or null" : "text", &value};
    }
    access(problem) = value.text;
    return std::nullopt;
  };
  field.get = [=](const Problem& problem) {
    if constexpr (kOptional) {
      return access(problem) ? Value::of(*access(problem)) : Value::null();
    } else {
      return Value::of(access(problem));
    }
  };
  return field;
}

}  // namespace attnbench::fields
