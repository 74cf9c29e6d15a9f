#include "cli/options/option_table.h"

#include <fmt/format.h>

#include <limits>
#include <type_traits>
#include <utility>

#include "cli/terminal/text.h"
#include "core/error.h"

namespace attnbench {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();

using Words = std::vector<std::string>;

// A value as the words behind its option's name, one for each time that the option has to be given.
// A flag has a name and no value: one empty word.
Words words_of(bool flag) { return flag ? Words{""} : Words{}; }
Words words_of(const std::string& text) { return text.empty() ? Words{} : Words{text}; }
const Words& words_of(const Words& words) { return words; }
template <typename Number>
Words words_of(Number number) {
  return {fmt::format("{}", number)};
}
template <typename Number>
Words words_of(const std::optional<Number>& number) {
  return number ? words_of(*number) : Words{};
}

Words words_of(const OptionTarget& target) {
  return std::visit(
      [](const auto* value) -> Words { return value == nullptr ? Words{} : words_of(*value); },
      target);
}

}  // namespace

NumberRange whole_numbers(int least, int most) {
  return {static_cast<double>(least), static_cast<double>(most), /*whole=*/true,
          fmt::format("a whole number from {} to {}", least, most)};
}

NumberRange numbers_from_zero() { return {0, kMost, /*whole=*/true, "a whole number >= 0"}; }

NumberRange number_between(double least, double most) {
  return {least, most, /*whole=*/false, fmt::format("a number from {} to {}", least, most)};
}

NumberRange positive_number(bool or_zero) {
  const double least = or_zero ? 0 : std::numeric_limits<double>::denorm_min();
  return {least, kMost, /*whole=*/false, fmt::format("a finite number {} 0", or_zero ? ">=" : ">")};
}

std::string long_name(const Option& option) {
  return option.names.substr(option.names.rfind(',') + 1);  // npos + 1 = 0
}

bool is_argument(const Option& option) { return !option.names.starts_with('-'); }

bool is_flag(const Option& option) { return std::holds_alternative<bool*>(option.target); }

Option help_option() { return {.names = "-h,--help", .help = "Print this help message and exit"}; }

void OptionTable::add(Option option) {
  option.defaults = words_of(option.target);
  rows_.push_back(std::move(option));
  given_.push_back(false);
}

bool OptionTable::is_given(std::string_view name) const {
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (long_name(rows_[i]) == name) return given_[i];
  }
  fail(ErrorKind::kInternal, "no row for the option '{}'", name);
}

std::string OptionTable::repeat_text() const {
  // Why three walks and no sort: rows of one place keep the order of --help.
  std::string text;
  for (const Repeat place : {Repeat::kFirst, Repeat::kInOrder, Repeat::kLast}) {
    for (const Option& option : rows_) {
      if (option.repeat != place) continue;
      const Words words = words_of(option.target);
      if (words == option.defaults) continue;
      for (const std::string& word : words) {
        text += " " + long_name(option);
        if (!is_flag(option)) text += " " + shell_quote(word);
      }
    }
  }
  return text;
}

}  // namespace attnbench
