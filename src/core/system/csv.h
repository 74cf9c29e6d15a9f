// CSV as Python's csv module and pandas write it (RFC 4180): fields in quotes may hold commas, line
// ends and doubled quotes. For results and traces of other programs.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attnbench {

/// Reads one line's fields from `at` on and moves `at` behind the line's end; an empty line is one
/// empty field. A carriage return outside quotes is left out. Nothing for a quoted field that does
/// not end; `at` is then behind the text.
std::optional<std::vector<std::string>> read_csv_fields(std::string_view text, std::size_t& at);

/// A file whose first line names the columns.
struct CsvTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // as long as `columns` each
  std::string path;                            // for messages

  bool has(const std::string& column) const;
  /// Empty where there is no such column.
  std::string text(std::size_t row, const std::string& column) const;
  /// NaN for an empty field, and where there is no such column. Errors: E-FORMAT naming the line
  /// and the column for what is no number.
  double number(std::size_t row, const std::string& column) const;
};

/// Empty lines are left out. Errors: E-FORMAT for a line with another number of fields than the
/// first, and for a quote that is not closed. `path` is for messages.
CsvTable parse_csv(const std::string& text, const std::string& path);

}  // namespace attnbench
