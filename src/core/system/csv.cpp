#include "core/system/csv.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/error.h"

namespace attnbench {
namespace {

/// The next line's fields. Errors: E-FORMAT for a quote that is not closed.
std::vector<std::string> read_fields(const std::string& text, std::size_t& at,
                                     const std::string& path) {
  std::optional<std::vector<std::string>> fields = read_csv_fields(text, at);
  if (!fields) fail(ErrorKind::kFormat, "{}: a quoted field does not end", path);
  return std::move(*fields);
}

}  // namespace

std::optional<std::vector<std::string>> read_csv_fields(std::string_view text, std::size_t& at) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  while (at < text.size()) {
    const char letter = text[at++];
    if (quoted) {
      if (letter != '"') {
        fields.back() += letter;
      } else if (at < text.size() && text[at] == '"') {
        fields.back() += '"';
        ++at;
      } else {
        quoted = false;
      }
    } else if (letter == '"') {
      quoted = true;
    } else if (letter == ',') {
      fields.emplace_back();
    } else if (letter == '\n') {
      return fields;
    } else if (letter != '\r') {
      fields.back() += letter;
    }
  }
  if (quoted) return std::nullopt;
  return fields;
}

bool CsvTable::has(const std::string& column) const {
  return std::find(columns.begin(), columns.end(), column) != columns.end();
}

std::string CsvTable::text(std::size_t row, const std::string& column) const {
  const auto found = std::find(columns.begin(), columns.end(), column);
  if (found == columns.end()) return "";
  return rows[row][static_cast<std::size_t>(found - columns.begin())];
}

double CsvTable::number(std::size_t row, const std::string& column) const {
  const std::string found = text(row, column);
  if (found.empty()) return std::nan("");
  char* end = nullptr;
  const double value = std::strtod(found.c_str(), &end);
  const bool is_whole = end == found.c_str() + found.size();
  if (!is_whole || (std::isnan(value) && found != "nan" && found != "NaN")) {
    fail(ErrorKind::kFormat, "{}: row {}: {}: expected a number, found '{}'", path, row + 1, column,
         found);
  }
  return value;
}

CsvTable parse_csv(const std::string& text, const std::string& path) {
  CsvTable table;
  table.path = path;
  std::size_t at = 0;
  table.columns = read_fields(text, at, path);
  while (at < text.size()) {
    std::vector<std::string> fields = read_fields(text, at, path);
    if (fields.size() == 1 && fields.front().empty()) continue;
    if (fields.size() != table.columns.size()) {
      fail(ErrorKind::kFormat, "{}: row {}: expected {} fields, found {}", path,
           table.rows.size() + 1, table.columns.size(), fields.size());
    }
    table.rows.push_back(std::move(fields));
  }
  return table;
}

}  // namespace attnbench
