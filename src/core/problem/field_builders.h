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

// What the makers need of a member is told by two plain functions. Why not by the accessor itself:
// each row of the table has an accessor of its own type, and all that a maker holds would be
// compiled for every row.

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

/// A member of Problem as a V or as "not set": the empty optional, or a value of its type's default
/// where the member is none. Such a member is never read as "not set".
template <typename V>
struct Slot {
  void (*set)(Problem& problem, std::optional<V> value);
  std::optional<V> (*get)(const Problem& problem);
};

template <typename V, typename Access>
Slot<V> slot(Access) {
  using Plain = typename Unwrap<Member<Access>>::Type;
  Slot<V> made{};
  made.set = [](Problem& problem, std::optional<V> value) {
    Member<Access>& member = Access{}(problem);
    if (value) {
      member = static_cast<Plain>(*std::move(value));
    } else {
      member = Member<Access>{};
    }
  };
  made.get = [](const Problem& problem) -> std::optional<V> {
    const Member<Access>& member = Access{}(problem);
    if constexpr (Unwrap<Member<Access>>::kOptional) {
      if (!member) return std::nullopt;
      return static_cast<V>(*member);
    } else {
      return static_cast<V>(member);
    }
  };
  return made;
}

Field integer_field(std::string key, Slot<std::int64_t> slot, Range range, std::string unset);
Field real_field(std::string key, Slot<double> slot, Range range, std::string unset);
Field boolean_field(std::string key, Slot<bool> slot, std::string unset);
Field choice_field(std::string key, Slot<int> slot, std::vector<int> choices,
                   std::vector<std::string> words);
Field text_field(std::string key, Slot<std::string> slot, bool is_optional, bool is_input_path);

/// int, std::int64_t, std::uint64_t or an optional of them. `unset` is the word for the empty
/// optional, or for 0 = "not given" (resolved before anyone reads it).
template <typename Access>
Field integer(std::string key, Access access, Range range, std::string unset = "") {
  return integer_field(std::move(key), slot<std::int64_t>(access), range, std::move(unset));
}

/// double, or an optional of it; `unset` as for integer().
template <typename Access>
Field real(std::string key, Access access, Range range, std::string unset = "") {
  return real_field(std::move(key), slot<double>(access), range, std::move(unset));
}

/// bool. The word `unset` leaves it as it is.
template <typename Access>
Field boolean(std::string key, Access access, std::string unset = "") {
  return boolean_field(std::move(key), slot<bool>(access), std::move(unset));
}

/// One of `words`; `choices` are the values they stand for, in the same order.
template <typename Access, typename Choice>
Field choice(std::string key, Access access, const std::vector<Choice>& choices,
             std::vector<std::string> words) {
  std::vector<int> numbers;
  for (Choice choice : choices) numbers.push_back(static_cast<int>(choice));
  return choice_field(std::move(key), slot<int>(access), std::move(numbers), std::move(words));
}

/// An enum with a table of names, or an optional of one.
template <typename Access>
Field enumeration(std::string key, Access access) {
  using Enum = typename Unwrap<Member<Access>>::Type;
  std::vector<int> choices;
  std::vector<std::string> words;
  for (const auto& row : enum_rows(Enum{})) {
    choices.push_back(static_cast<int>(row.value));
    words.emplace_back(row.name);
  }
  return choice_field(std::move(key), slot<int>(access), std::move(choices), std::move(words));
}

/// std::string, or an optional of it for which null stands for the empty one. Never empty text.
template <typename Access>
Field text(std::string key, Access access, bool is_input_path = false) {
  return text_field(std::move(key), slot<std::string>(access), Unwrap<Member<Access>>::kOptional,
                    is_input_path);
}

}  // namespace attnbench::fields
