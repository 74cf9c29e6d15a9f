// The command line as data: one row an option. The parser, --help, the command that repeats a case
// and whatever is generated for shells and manuals follow from the rows; nothing here, nor in the
// commands that declare them, knows the library that parses.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace attnbench {

/// The variable that an option sets. Its type is what the command line must give: a bool makes a
/// flag, numbers are converted, an optional stays empty when the option is not given, and a vector
/// collects the values of an option that may be repeated, or all words of an argument.
using OptionTarget = std::variant<bool*, int*, std::int64_t*, double*, std::optional<int>*,
                                  std::optional<std::int64_t>*, std::optional<double>*,
                                  std::string*, std::vector<std::string>*>;

/// The numbers that an option takes, both ends included.
struct NumberRange {
  double least = 0;
  double most = 0;
  bool whole = false;         // without a fraction
  std::string expected = {};  // "a number > 0", for messages
};

/// Whole numbers: those of an int, and from 0 on without an end.
NumberRange whole_numbers(int least, int most);
NumberRange numbers_from_zero();
/// A number from `least` to `most`, which "nan" is not.
NumberRange number_between(double least, double most);
/// A finite number above 0 or, with `or_zero`, from 0 on.
NumberRange positive_number(bool or_zero = false);

/// Whether an option is a part of the command that repeats one case. Options that only say where
/// results go, or which cases run, are not: the repeated run is of one case that is known.
enum class Repeat {
  kNever,
  kFirst,    // libraries, before the options that may name what they bring
  kInOrder,  // in the order of the rows
  kLast,     // what belongs to the machine more than to the case
};

/// One option, or one argument without a name. Only names, help and target have to be there.
struct Option {
  std::string names;       // "--json" or "-q,--quiet"; of an argument "SCENARIO"
  std::string value = {};  // what --help calls the value: "FILE"; empty for flags, "TEXT" else
  std::string help = {};
  std::string group = {};  // heading in --help; empty = the first one
  OptionTarget target = {};

  bool required = false;
  bool shows_default = false;  // --help tells the default
  /// For vectors: "--tensors A B" instead of "--tensors A --tensors B". Why not always: an option
  /// of this kind takes the argument behind it for one more value.
  bool takes_several = false;
  char delimiter = '\0';  // for vectors: also splits a value, as "a,b"
  std::optional<NumberRange> numbers = {};
  std::vector<std::string> choices = {};  // the only values there are; shells complete them
  bool takes_others = false;              // choices are only the usual values
  std::string excludes = {};              // another row's name, which may not be given with this
  std::string needs = {};                 // another row's name, which must be given with this

  Repeat repeat = Repeat::kNever;
  /// Written by OptionTable::add(): what the target held, as words; a flag that is off, an empty
  /// text and an empty optional are no word.
  std::vector<std::string> defaults = {};
};

/// The name that messages and scripts use: "--quiet" of "-q,--quiet".
std::string long_name(const Option& option);
bool is_argument(const Option& option);
bool is_flag(const Option& option);

/// The row of --help, which the parser adds to every command by itself.
Option help_option();

/// The options of one command in the order of --help. Groups are in the order of their first row.
class OptionTable {
 public:
  /// The targets must outlive the table.
  void add(Option option);
  const std::vector<Option>& rows() const { return rows_; }

  /// Whether the command line had the option, also with its default value; `name` is the long one.
  /// Errors: E-INTERNAL for a name that is in no row.
  bool is_given(std::string_view name) const;
  /// For the parser.
  void set_given(std::size_t row) { given_[row] = true; }

  /// The options that a run needs to repeat one case as it was, each after a space and quoted for
  /// the shell: rows with a `repeat` whose target is not what it was by default.
  std::string repeat_text() const;

 private:
  std::vector<Option> rows_;
  std::vector<bool> given_;  // by row
};

}  // namespace attnbench
