// Rows and columns of the table of results, made to fit a terminal.
//
// A row must tell which case it is of at any width. What varies over the listed cases are columns
// with short names, and what is the same in all of them stands once above. Where that is too wide,
// in this order: narrower gaps, titles on two lines, a backend or status that all rows share goes
// above, each case becomes a line of its own over the rows of its backends, and only then numbers
// are left out: what says least first, and with a word about it.
#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

class ResultGrid {
 public:
  /// `width`: columns of the terminal.
  ResultGrid(const std::vector<Result>& results, std::size_t width, bool color);

  /// What all rows share, and the titles. Nothing without rows.
  void write_head(std::ostream& out) const;
  /// The row of a result, with its case above where cases have lines of their own.
  void write_row(std::ostream& out, std::size_t row) const;
  /// Which columns had no room; nothing where all had.
  void write_left_out(std::ostream& out) const;

 private:
  struct Column {
    std::string title;
    bool is_text = false;       // aligned to the left
    bool is_case = false;       // tells cases apart
    bool may_go_above = false;  // where all rows share it and room is short
    int rank = 0;               // left out where room is short, the least first; 0 = never
    std::vector<std::string> cells = {};
    std::vector<const char*> colors = {};  // escape sequences, or ""
  };
  struct Layout {
    std::size_t gap = 2;
    bool two_lines = false;     // of titles
    bool shared_above = false;  // columns that may go above
    bool stacked = false;       // cases on lines of their own
    int least_rank = 0;         // columns of a lower rank are left out, but for 0
  };

  void add_case_columns(const std::vector<Result>& results);
  void add_result_columns(const std::vector<Result>& results, bool color);
  void add(Column column);
  void choose_layout();
  bool is_above(const Column& column) const;
  bool is_shown(const Column& column) const;
  std::size_t width_of(const Column& column) const;
  std::size_t total() const;
  bool fits() const { return total() <= width_; }
  std::string line_of(const std::vector<std::string>& cells, std::size_t row) const;
  std::string above() const;

  std::size_t width_;
  std::size_t num_rows_;
  std::vector<Column> columns_;
  std::vector<std::string> labels_;  // of the rows' cases, for lines of their own
  std::string shared_case_;          // what the cases share
  Layout layout_;
};

}  // namespace attnbench
