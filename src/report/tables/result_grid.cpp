#include "report/tables/result_grid.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/system/printable.h"
#include "report/case_columns.h"
#include "report/format.h"
#include "report/marks.h"

namespace attnbench {
namespace {

constexpr std::size_t kRowIndent = 2;
constexpr std::size_t kNoRow = static_cast<std::size_t>(-1);
constexpr const char* kDoubtColor = "\x1b[33m";
constexpr int kMostRank = 4;  // of what says most

const char* color_of(Status status) {
  switch (status) {
    case Status::kPassed:
      return "\x1b[32m";
    case Status::kIncorrect:
    case Status::kImplausible:
    case Status::kError:
      return "\x1b[31m";
    case Status::kUnverified:
    case Status::kUnsupported:
    case Status::kSkipped:
      return kDoubtColor;
  }
  return "";
}

/// A title on two lines: broken behind one of its separators, so that the longer line is as short
/// as it can be.
std::pair<std::string, std::string> broken(const std::string& title) {
  std::pair<std::string, std::string> best{"", title};
  std::size_t least = title.size();
  for (std::size_t i = 0; i + 1 < title.size(); ++i) {
    if (title[i] != '_' && title[i] != '.') continue;
    const std::size_t longer = std::max(i + 1, title.size() - i - 1);
    if (longer >= least) continue;
    least = longer;
    best = {title.substr(0, i + 1), title.substr(i + 1)};
  }
  return best;
}

bool are_equal(const std::vector<std::string>& cells) {
  return std::all_of(cells.begin(), cells.end(),
                     [&](const std::string& cell) { return cell == cells.front(); });
}

}  // namespace

ResultGrid::ResultGrid(const std::vector<Result>& results, std::size_t width, bool color)
    : width_(width), num_rows_(results.size()) {
  if (results.empty()) return;
  add_case_columns(results);
  add_result_columns(results, color);
  choose_layout();
}

void ResultGrid::add(Column column) {
  const auto is_empty = [](const std::string& cell) { return cell.empty(); };
  if (std::all_of(column.cells.begin(), column.cells.end(), is_empty)) return;
  column.colors.resize(column.cells.size(), "");
  columns_.push_back(std::move(column));
}

void ResultGrid::add_case_columns(const std::vector<Result>& results) {
  std::set<std::string> scenarios;
  for (const Result& result : results) scenarios.insert(result.scenario);
  const bool is_one = scenarios.size() == 1;
  const std::vector<CaseColumn> swept = is_one ? case_columns(results) : std::vector<CaseColumn>();
  CaseLabels of_cases = case_labels(results);
  labels_ = std::move(of_cases.labels);
  shared_case_ = std::move(of_cases.shared);
  if (swept.empty()) {
    add({.title = "case", .is_text = true, .is_case = true, .cells = labels_});
    return;
  }
  for (const CaseColumn& of_key : swept) {
    if (!of_key.varies) continue;
    Column column{.title = of_key.title, .is_text = true, .is_case = true};
    for (const std::string& value : of_key.values) column.cells.push_back(printable(value));
    add(std::move(column));
  }
}

void ResultGrid::add_result_columns(const std::vector<Result>& results, bool color) {
  Column backend{.title = "backend", .is_text = true, .may_go_above = true};
  Column status{.title = "status", .is_text = true, .may_go_above = true};
  Column max_abs{.title = "max_abs"};
  Column err_ratio{.title = "err_ratio", .rank = 3};
  Column quant{.title = "quant"};
  Column time{.title = "time"};
  const std::string unit = flop_unit(results);
  Column gbps{.title = "GB/s", .rank = kMostRank};
  Column flops{.title = unit, .rank = kMostRank};
  Column roof{.title = "roof", .rank = 1};
  Column noise{.title = "noise", .rank = 2};
  const auto paint = [color](Column& column, const char* escape) {
    column.colors.push_back(color ? escape : "");
  };
  const bool any_quantised = std::any_of(results.begin(), results.end(), [](const Result& result) {
    return result.quantization_error.has_value();
  });
  for (const Result& result : results) {
    backend.cells.push_back(printable(result.backend));
    status.cells.emplace_back(to_string(result.status));
    paint(status, color_of(result.status));
    max_abs.cells.push_back(result.error ? format_error(result.error->max_abs) : "");
    err_ratio.cells.push_back(result.error ? format_ratio(result.error->err_ratio) : "");
    const bool exact = any_quantised && result.error && !result.quantization_error;
    quant.cells.push_back(exact ? "-" : marked_quant(result));
    paint(quant, quant_mark(result).empty() ? "" : kDoubtColor);
    time.cells.push_back(marked_time(result));
    paint(time, time_mark(result).empty() ? "" : kDoubtColor);
    gbps.cells.push_back(result.throughput ? format_gbps(*result.throughput) : "");
    flops.cells.push_back(result.throughput ? format_flops(*result.throughput, unit) : "");
    roof.cells.push_back(result.throughput ? format_roofline(*result.throughput) : "");
    noise.cells.push_back(marked_noise(result));
    paint(noise, noise_mark(result).empty() ? "" : kDoubtColor);
  }
  // Digits stay below digits where only some numbers have a sign.
  const auto align = [&](Column& column, std::string (*mark)(const Result&)) {
    std::size_t widest = 0;
    for (const Result& result : results) widest = std::max(widest, mark(result).size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!column.cells[i].empty()) column.cells[i].append(widest - mark(results[i]).size(), ' ');
    }
  };
  align(quant, quant_mark);
  align(time, time_mark);
  align(noise, noise_mark);
  for (Column* column :
       {&backend, &status, &max_abs, &err_ratio, &quant, &time, &gbps, &flops, &roof, &noise}) {
    add(std::move(*column));
  }
}

void ResultGrid::choose_layout() {
  const bool has_labels = std::any_of(labels_.begin(), labels_.end(),
                                      [](const std::string& label) { return !label.empty(); });
  for (const bool stacked : {false, true}) {
    if (stacked && !has_labels) continue;
    layout_ = {.stacked = stacked};
    if (fits()) return;
    layout_.gap = 1;
    if (fits()) return;
    layout_.two_lines = true;
    if (fits()) return;
    layout_.shared_above = num_rows_ > 1;
    if (fits()) return;
  }
  while (layout_.least_rank <= kMostRank && !fits()) ++layout_.least_rank;
}

bool ResultGrid::is_above(const Column& column) const {
  return layout_.shared_above && column.may_go_above && are_equal(column.cells);
}

bool ResultGrid::is_shown(const Column& column) const {
  if (column.rank > 0 && column.rank < layout_.least_rank) return false;
  return !(layout_.stacked && column.is_case) && !is_above(column);
}

std::size_t ResultGrid::width_of(const Column& column) const {
  const auto [first, second] = broken(column.title);
  std::size_t width =
      layout_.two_lines ? std::max(first.size(), second.size()) : display_width(column.title);
  for (const std::string& cell : column.cells) width = std::max(width, display_width(cell));
  return width;
}

std::size_t ResultGrid::total() const {
  std::size_t sum = 0;
  for (const Column& column : columns_) {
    if (is_shown(column)) sum += width_of(column) + layout_.gap;
  }
  return sum - std::min(sum, layout_.gap) + (layout_.stacked ? kRowIndent : 0);
}

/// `cells` of the columns that are shown; `row`: whose colours they have, kNoRow = none.
std::string ResultGrid::line_of(const std::vector<std::string>& cells, std::size_t row) const {
  std::string line(layout_.stacked ? kRowIndent : 0, ' ');
  bool is_first = true;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const Column& column = columns_[c];
    if (!is_shown(column)) continue;
    if (!std::exchange(is_first, false)) line.append(layout_.gap, ' ');
    const std::string fill(width_of(column) - display_width(cells[c]), ' ');
    const char* const color = row == kNoRow ? "" : column.colors[row];
    const std::string shown = painted(cells[c], color, *color != 0);
    line += column.is_text ? shown + fill : fill + shown;
  }
  return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

/// "batch 8q1s1k, block_size 16, FLASH_ATTN, passed"
std::string ResultGrid::above() const {
  std::string text = shared_case_;
  for (const Column& column : columns_) {
    if (!is_above(column)) continue;
    text += (text.empty() ? "" : ", ") + column.cells.front();
  }
  return text;
}

void ResultGrid::write_head(std::ostream& out) const {
  if (num_rows_ == 0) return;
  const std::string shared = above();
  if (!shared.empty()) {
    const std::string text = (num_rows_ > 1 ? "every row: " : "") + shared;
    out << wrap_text(text, width_, "");
  }
  std::vector<std::string> first;
  std::vector<std::string> second;
  for (const Column& column : columns_) {
    const bool breaks = layout_.two_lines && display_width(column.title) > width_of(column);
    const auto halves = breaks ? broken(column.title) : std::pair(std::string(), column.title);
    first.push_back(halves.first);
    second.push_back(halves.second);
  }
  const auto is_empty = [](const std::string& title) { return title.empty(); };
  if (!std::all_of(first.begin(), first.end(), is_empty)) out << line_of(first, kNoRow);
  out << line_of(second, kNoRow);
}

void ResultGrid::write_row(std::ostream& out, std::size_t row) const {
  const bool is_new = row == 0 || labels_[row] != labels_[row - 1];
  if (layout_.stacked && is_new) out << wrap_text(labels_[row], width_, "");
  std::vector<std::string> cells;
  for (const Column& column : columns_) cells.push_back(column.cells[row]);
  out << line_of(cells, row);
}

void ResultGrid::write_left_out(std::ostream& out) const {
  std::vector<std::string> names;
  for (const Column& column : columns_) {
    if (column.rank > 0 && column.rank < layout_.least_rank) names.push_back(column.title);
  }
  if (names.empty()) return;
  const std::string text =
      fmt::format("no room for {} in {} columns: widen the terminal, or write --csv",
                  fmt::join(names, ", "), width_);
  out << wrap_text(text, width_, "");
}

}  // namespace attnbench
