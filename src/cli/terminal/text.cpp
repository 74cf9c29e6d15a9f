#include "cli/terminal/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

#include "report/format.h"

namespace attnbench {
namespace {

constexpr std::size_t kMinBeginning = 3;

/// Twice the number of edits, two letters in the wrong order being one; a change of letter case is
/// half an edit, so it is nearer than another letter.
std::size_t edit_cost(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1), last(b.size() + 1), before_last;
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = 2 * j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before_last = std::exchange(last, row);
    std::size_t diagonal = row[0];
    row[0] = 2 * i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
      const std::size_t change =
          a[i - 1] == b[j - 1] ? 0U : (lower(a[i - 1]) == lower(b[j - 1]) ? 1U : 2U);
      std::size_t best = std::min({row[j] + 2, row[j - 1] + 2, diagonal + change});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) best = std::min(best, before_last[j - 2] + 2);
      diagonal = row[j];
      row[j] = best;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string shell_quote(std::string_view text) {
  const auto is_safe = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-./:=,+@%").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_safe)) return std::string(text);
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string exact_regex(std::string_view text) {
  std::string escaped = "^";
  for (const char c : text) {
    if (std::string_view("^$\\.*+?()[]{}|").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  escaped += '$';
  return escaped;
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  std::string nearest;
  std::size_t least = name.size() + 1;  // in half edits: at most every second letter is wrong
  for (const std::string& candidate : candidates) {
    // Why: users leave out endings, e.g. "FLASH" for "FLASH_ATTN". A beginning is as near as one
    // wrong letter.
    const bool is_beginning = name.size() >= kMinBeginning && candidate.starts_with(name);
    const std::size_t cost = is_beginning ? 2 : edit_cost(name, candidate);
    if (cost < least) {
      least = cost;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

std::string cut_middle(std::string_view text, std::size_t width) {
  constexpr std::string_view kDots = "...";
  if (text.size() <= width) return std::string(text);
  if (width <= kDots.size()) return std::string(text.substr(0, width));
  const std::size_t kept = width - kDots.size();
  const std::size_t tail = kept / 2;
  return std::string(text.substr(0, kept - tail)) + std::string(kDots) +
         std::string(text.substr(text.size() - tail));
}

std::string hang(const std::string& text, std::size_t column, std::size_t width,
                 std::size_t indent) {
  constexpr std::size_t kLeastRoom = 20;
  if (column + kLeastRoom > width) return text;
  std::string lines = wrap_text(text, width - column, "");
  if (!lines.empty()) lines.pop_back();
  std::string result;
  for (const char character : lines) {
    result += character;
    if (character == '\n') result.append(indent, ' ');
  }
  return result;
}

std::string format_elapsed(double seconds) {
  const auto whole = static_cast<long>(seconds);
  if (whole < 60) return fmt::format("{}s", whole);
  return fmt::format("{}m{:02}s", whole / 60, whole % 60);
}

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string format_si(double value, std::string_view unit) {
  constexpr std::array<const char*, 6> kPrefixes = {"", "k", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  while (std::abs(value) >= 1000 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  return fmt::format("{:.3g} {}{}", value, kPrefixes[prefix], unit);
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

}  // namespace attnbench
