#include "scenario/text/issues.h"

#include <fmt/format.h>

#include <algorithm>

namespace attnbench {
namespace {

/// Edits (insert, delete, replace, swap neighbours) that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                             cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string location(const Mark& mark) {
  if (!mark.file) return "";
  return mark.line > 0 ? fmt::format("{}:{}: ", *mark.file, mark.line)
                       : fmt::format("{}: ", *mark.file);
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongestWord = 100;
  if (word.size() > kLongestWord) return "";
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance >= best_distance || distance >= std::min(word.size(), candidate.size())) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

void IssueList::add(ErrorKind kind, const Mark& mark, const std::string& text) {
  if (full()) return;
  // Every further line says its class; that of the first is printed with the error.
  const std::string code = lines_.empty() ? "" : fmt::format("{}: ", error_code(kind));
  if (lines_.empty()) kind_ = kind;
  lines_.push_back(code + location(mark) + text);
}

void IssueList::add_mismatch(ErrorKind kind, std::string_view key, std::string_view expected,
                             const Value& found) {
  add(kind, found.mark, fmt::format("{}: expected {}, found {}", key, expected, describe(found)));
}

void IssueList::add_hint(const std::string& text) { lines_.back() += text; }

void IssueList::throw_if_any() const {
  if (empty()) return;
  std::string text = fmt::format("{}", fmt::join(lines_, "\n"));
  if (full()) text += "\n(more left out)";
  throw Error(kind_, text);
}

}  // namespace attnbench
