// Messages about a scenario: where, which key, what was expected and found; nearest valid keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/value.h"

namespace attnbench {

/// "<file>:<line>: ", "<file>: " for a mark without line, "" without file.
std::string location(const Mark& mark);

/// The candidate that a reader most probably meant by `word`: fewest edits (a swap of neighbours is
/// one), at most a third of its letters or two. Empty when none is near.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);

/// Collects what is wrong in a file, so that one run shows all of it.
class IssueList {
 public:
  static constexpr std::size_t kMaxShown = 20;

  void add(ErrorKind kind, const Mark& mark, const std::string& text);
  /// "<key>: expected <expected>, found <found>" at the place of `found`.
  void add_mismatch(ErrorKind kind, std::string_view key, std::string_view expected,
                    const Value& found);
  /// Continues the text of the last issue.
  void add_hint(const std::string& text);
  bool empty() const { return lines_.empty(); }
  bool full() const { return lines_.size() >= kMaxShown; }
  /// Throws the issues, one a line, as an error of the first one's kind; the other lines begin with
  /// their own class ("E-VALUE: "). Nothing when there are none.
  void throw_if_any() const;

 private:
  ErrorKind kind_ = ErrorKind::kFormat;
  std::vector<std::string> lines_;
};

}  // namespace attnbench
