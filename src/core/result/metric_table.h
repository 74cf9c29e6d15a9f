// The numbers of a result, one row each. The result file (written and read), the CSV, `attnbench
// list metrics`, the report page, the gate and the pooling of runs all follow these rows, so a new
// metric is the code that computes it and one row in metric_table.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

enum class Better { kNeither, kLess, kMore };

/// What becomes of a number when several measurements of a case are pooled.
enum class Pooling {
  kNewest,
  kSamples,  // computed anew from all samples
  kMean,     // weighted by the number of samples behind each
  kLargest,
  kPerTime,  // follows the pooled median: a rate halves where the time doubles
};

/// What the result file holds where there is no value. An empty text or list, a zero and a NaN are
/// none.
enum class Presence {
  kAlways,  // written whatever it is, and must be there when read; a NaN is null with a note
  kOrNull,  // null
  kIfSet,   // the key is left out
};

/// Columns of the CSV. A list is shown by its length.
struct CsvColumns {
  bool own = true;             // of the output
  bool lse = false;            // "lse_NAME" too
  bool quantization = false;   // "quantization_NAME" too
  const char* name = nullptr;  // of the column; null = that of the row
};

/// How much of a number the data of the report page keeps.
enum class OnPage { kNo, kSixDigits, kWhole };

/// A metric that the report page can plot.
struct Plot {
  const char* key;     // by which the scripts of the page know it
  const char* title;   // in the list of what can be shown
  const char* format;  // a key of FORMATS in page/model.js
  double factor = 1;   // from the unit of the row to the one that `format` takes
  int order = 1000;    // in the list, smallest first; equal ones in the order of the rows
};

/// A metric that the gate holds against a baseline: worse by more than the threshold fails, where
/// worse is the opposite of the row's `better`.
struct GateRule {
  const char* label;     // in the verdict
  double floor = 0;      // what is smaller counts as this
  double lse_floor = 0;  // the same of the LSE
  int order = 1000;      // the smallest is judged first; of several that got worse it is named
};

/// The row is no member of the part: its number is part.by_name[name] and left out where it is
/// missing or not finite.
struct ByName {};

/// Where a part of a result (ErrorStats, Timing, Throughput) holds the value of a row: a member, a
/// number by name, or a function of the other members, which is written and never read.
template <typename Part>
using MetricPlace =
    std::variant<ByName, double Part::*, std::int64_t Part::*, std::uint64_t Part::*,
                 std::string Part::*, std::vector<double> Part::*,
                 std::vector<std::int64_t> Part::*, std::vector<std::string> Part::*,
                 std::vector<StepTiming> Part::*, std::optional<DeviceClocks> Part::*,
                 double (*)(const Part&), std::vector<double> (*)(const Part&)>;

/// One key of a part of a result. Rows stand in the order of the result file; those with a text
/// are metrics, the others say what belongs to them.
template <typename Part>
struct MetricRow {
  const char* name;
  MetricPlace<Part> place = ByName{};
  const char* unit = "";  // "1" for ratios
  Better better = Better::kNeither;
  const char* text = nullptr;  // what `list metrics` says; null = not listed

  Presence presence = Presence::kAlways;
  /// Whether the result file has the key at all, by what precedes the row; null = always.
  bool (*applies)(const Part& part) = nullptr;
  /// The note beside a number that is null; null or "" = what it is instead of a number.
  const char* (*why_null)(const Part& part) = nullptr;
  /// What is wrong with the value that was read, null when nothing is.
  const char* (*mistake)(const Part& part) = nullptr;

  CsvColumns csv = {};
  OnPage on_page = OnPage::kSixDigits;
  std::optional<Plot> plot = std::nullopt;
  std::optional<GateRule> gate = std::nullopt;
  Pooling pooling = Pooling::kNewest;
};

struct MetricTable {
  std::vector<MetricRow<ErrorStats>> error;  // of output, LSE, quantisation and ranks
  std::vector<MetricRow<Timing>> timing;
  std::vector<MetricRow<Throughput>> throughput;
};
const MetricTable& metric_table();

struct ListedMetric {
  std::string name;
  std::string unit;
  std::string text;
};
/// What `attnbench list metrics` prints, sorted by name: rows with a text, and those of them that
/// the CSV has of the LSE and of quantisation too.
std::vector<ListedMetric> listed_metrics(const MetricTable& table);

/// A plot, and where its number is in a result of the page: part "timing", name "median_us".
struct PlottedMetric {
  std::string part;
  std::string name;
  Better better = Better::kNeither;
  Plot plot;
};
/// What the page can plot, in the order of its list.
std::vector<PlottedMetric> plotted_metrics(const MetricTable& table);

/// Rows that the gate judges, in its order. They point into `rows`.
template <typename Part>
std::vector<const MetricRow<Part>*> gated_rows(const std::vector<MetricRow<Part>>& rows) {
  std::vector<const MetricRow<Part>*> gated;
  for (const MetricRow<Part>& row : rows) {
    if (row.gate) gated.push_back(&row);
  }
  std::stable_sort(gated.begin(), gated.end(),
                   [](const auto* a, const auto* b) { return a->gate->order < b->gate->order; });
  return gated;
}

/// The number of a row, counts included; NaN where there is none.
template <typename Part>
double number_of(const MetricRow<Part>& row, const Part& part) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  return std::visit(
      [&](const auto& place) -> double {
        using Place = std::remove_cvref_t<decltype(place)>;
        if constexpr (std::is_same_v<Place, ByName>) {
          const auto found = part.by_name.find(row.name);
          return found == part.by_name.end() ? kNone : found->second;
        } else if constexpr (std::is_same_v<Place, double (*)(const Part&)>) {
          return place(part);
        } else if constexpr (std::is_member_object_pointer_v<Place>) {
          if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(part.*place)>>) {
            return static_cast<double>(part.*place);
          }
        }
        return kNone;
      },
      row.place);
}

/// Sets the number of a row that is a member of type double or held by name; others stay.
template <typename Part>
void set_number(const MetricRow<Part>& row, Part& part, double value) {
  if (const auto* member = std::get_if<double Part::*>(&row.place)) part.** member = value;
  if (std::holds_alternative<ByName>(row.place) && std::isfinite(value)) {
    part.by_name[row.name] = value;
  }
}

}  // namespace attnbench
