// Enums that have names in files, options and messages: a table with one row a value, from which
// reading, printing, schema checks and lists of words follow. A table that misses a value of its
// enum does not compile.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

namespace attnbench {

/// The row of an enum of which nothing but the name matters. Tables that say more about a value
/// have rows of their own with these three members.
template <typename Enum>
struct EnumRow {
  Enum value;
  const char* name;  // as it is read and printed
  const char* doc;   // what it means, for whoever reads the table
};

/// Whether the enum of `kValue` declares an enumerator of this number. The language cannot tell, so
/// the name of this very function does: compilers print "[... = ns::Switch::kOn]" for an
/// enumerator and "[... = (ns::Switch)7]" for any other number.
template <auto kValue>
consteval bool is_enumerator() {
  std::string_view text = __PRETTY_FUNCTION__;
  text = text.substr(text.find("kValue = "));
  const char first = text[text.find_last_of("):") + 1];
  return first != '-' && (first < '0' || first > '9');
}

/// What is wrong with rows that have to be those of the enumerators 0, 1, 2, ... in that order, all
/// of them, each with a name of its own; empty where nothing is.
template <typename Row, std::size_t N>
constexpr std::string_view table_fault(const Row (&rows)[N]) {
  using Enum = decltype(Row::value);
  for (std::size_t i = 0; i < N; ++i) {
    if (static_cast<std::size_t>(rows[i].value) != i) return "not in the order of the enumerators";
    for (std::size_t other = 0; other < i; ++other) {
      if (std::string_view(rows[i].name) == rows[other].name) return "two rows have one name";
    }
  }
  return is_enumerator<static_cast<Enum>(N)>() ? "the last enumerators are missing" : "";
}

/// Not constexpr: called where a table is wrong, so that its name is in the compiler's message.
void the_table_of_an_enum_is_not_complete_and_in_order();

/// The rows as a table; does not compile where they have a fault.
template <typename Row, std::size_t N>
consteval std::array<Row, N> every_value(const Row (&rows)[N]) {
  if (!table_fault(rows).empty()) the_table_of_an_enum_is_not_complete_and_in_order();
  return std::to_array(rows);
}

/// The values of a table, for arrays with one element a value.
template <typename Row, std::size_t N>
constexpr auto values_of(const std::array<Row, N>& rows) {
  std::array<decltype(Row::value), N> values{};
  for (std::size_t i = 0; i < N; ++i) values[i] = rows[i].value;
  return values;
}

/// An enum with a table: `enum_rows(Enum)`, found beside the enum, returns all rows whatever its
/// argument.
template <typename Enum>
concept NamedEnum = std::is_enum_v<Enum> && requires(Enum value) {
  { enum_rows(value).size() } -> std::convertible_to<std::size_t>;
  { enum_rows(value)[0].value } -> std::convertible_to<Enum>;
};

/// The name of the value; empty for a number that is no value.
template <NamedEnum Enum>
const char* to_string(Enum value) {
  const auto rows = enum_rows(value);
  const auto index = static_cast<std::size_t>(value);
  return index < rows.size() ? rows[index].name : "";
}

/// The value of that name.
template <NamedEnum Enum>
std::optional<Enum> enum_from_name(std::string_view name) {
  for (const auto& row : enum_rows(Enum{})) {
    if (name == row.name) return row.value;
  }
  return std::nullopt;
}

}  // namespace attnbench
