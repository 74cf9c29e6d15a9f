#include "report/formats/csv.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "report/case_columns.h"

namespace attnbench {
namespace {

/// Quoted when the field holds a separator, a quote or a line break (RFC 4180).
std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char character : text) {
    if (character == '"') result += '"';
    result += character;
  }
  return result + "\"";
}

/// The shortest text that reads back as the same number.
std::string field(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }
std::string field(std::int64_t value) { return fmt::format("{}", value); }
std::string field(std::uint64_t value) { return fmt::format("{}", value); }
std::string field(const std::string& text) { return text; }
template <typename T>
std::string field(const std::vector<T>& list) {
  return fmt::format("{}", list.size());
}
std::string field(const std::optional<DeviceClocks>& clocks) {
  return clocks ? fmt::format("{}", clocks->sm_mhz_median) : "";
}

struct CsvField {
  std::string name;
  std::function<std::string(const Result&)> field;
};

/// Empty without the part, and where the row does not apply to it.
template <typename Part>
std::string field_of(const MetricRow<Part>& row, const std::optional<Part>& part) {
  if (!part || (row.applies && !row.applies(*part))) return "";
  return std::visit(
      [&](const auto& place) -> std::string {
        using Place = std::remove_cvref_t<decltype(place)>;
        if constexpr (std::is_member_object_pointer_v<Place>) {
          return field(*part.*place);
        } else if constexpr (std::is_same_v<Place, std::vector<double> (*)(const Part&)>) {
          return field(place(*part));
        } else {
          return field(number_of(row, *part));
        }
      },
      row.place);
}

using Columns = std::vector<CsvField>;

/// A column for each of the rows that `takes` says yes to.
template <typename Part, typename Takes>
void add_columns(Columns& columns, const std::vector<MetricRow<Part>>& rows,
                 std::optional<Part> Result::*part, const std::string& prefix, Takes takes) {
  for (const MetricRow<Part>& row : rows) {
    if (!takes(row.csv)) continue;
    const char* name = row.csv.name == nullptr ? row.name : row.csv.name;
    columns.push_back(
        {prefix + name, [&row, part](const Result& r) { return field_of(row, r.*part); }});
  }
}

Columns identity_columns() {
  return {
      {"id", [](const Result& r) { return r.id; }},
      {"scenario", [](const Result& r) { return r.scenario; }},
      {"case", [](const Result& r) { return r.case_name; }},
      {"backend", [](const Result& r) { return r.backend; }},
      {"device", [](const Result& r) { return r.device; }},
      {"status", [](const Result& r) { return std::string(to_string(r.status)); }},
      {"reasons", [](const Result& r) { return fmt::format("{}", fmt::join(r.reasons, "; ")); }},
  };
}

/// They refer to the rows of `table`.
Columns columns_of(const MetricTable& table) {
  const auto is_own = [](const CsvColumns& csv) { return csv.own; };
  Columns columns = identity_columns();
  add_columns(columns, table.error, &Result::error, "", is_own);
  add_columns(columns, table.error, &Result::lse_error, "lse_",
              [](const CsvColumns& csv) { return csv.lse; });
  add_columns(columns, table.error, &Result::quantization_error, "quantization_",
              [](const CsvColumns& csv) { return csv.quantization; });
  add_columns(columns, table.timing, &Result::timing, "", is_own);
  add_columns(columns, table.throughput, &Result::throughput, "", is_own);
  columns.push_back({"repro", [](const Result& r) { return r.repro; }});
  return columns;
}

}  // namespace

void write_csv(std::ostream& out, const RunInfo&, const std::vector<Result>& results) {
  write_csv_columns(out, results, metric_table());
}

void write_csv_columns(std::ostream& out, const std::vector<Result>& results,
                       const MetricTable& table) {
  const Columns columns = columns_of(table);
  const std::vector<CaseColumn> of_cases = case_columns(results);
  const auto write_line = [&](const auto& text_of, const auto& case_text_of) {
    std::string_view separator;
    const auto write = [&](const std::string& text) {
      out << separator << quoted(text);
      separator = ",";
    };
    for (const CsvField& column : columns) write(text_of(column));
    for (const CaseColumn& column : of_cases) write(case_text_of(column));
    out << "\r\n";
  };
  write_line([](const CsvField& column) { return column.name; },
             [](const CaseColumn& column) { return column.key; });
  for (std::size_t i = 0; i < results.size(); ++i) {
    write_line([&](const CsvField& column) { return column.field(results[i]); },
               [&](const CaseColumn& column) { return column.values[i]; });
  }
}

}  // namespace attnbench
