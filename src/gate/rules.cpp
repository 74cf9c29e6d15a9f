#include "gate/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>

#include "core/error.h"

namespace attnbench {
namespace {

std::string place(const Mark& mark) {
  if (!mark.file) return "";
  return mark.line > 0 ? fmt::format("{}:{}: ", *mark.file, mark.line) : *mark.file + ": ";
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

/// A share from a fraction below 1, a number of percent, or a text ending in '%'.
std::optional<double> parse_share(std::string_view text) {
  const bool is_percent = text.ends_with('%');
  if (is_percent) text.remove_suffix(1);
  const std::optional<double> number = parse_number(text);
  if (!number) return std::nullopt;
  return is_percent || *number >= 1 ? *number / 100 : *number;
}

/// One entry of a list, read key by key.
class EntryReader {
 public:
  EntryReader(const Value& entry, std::initializer_list<const char*> keys) : entry_(entry) {
    if (!entry.is_map()) {
      fail(ErrorKind::kFormat, "{}expected an entry with the key 'id', found {}", place(entry.mark),
           describe(entry));
    }
    for (const Value::Entry& member : entry.entries) {
      if (std::find(keys.begin(), keys.end(), member.key) != keys.end()) continue;
      fail(ErrorKind::kFormat, "{}unknown key '{}' (keys: {})", place(member.key_mark), member.key,
           fmt::join(keys, ", "));
    }
  }

  std::string text(const char* key) const {
    const Value* value = entry_.find(key);
    if (value == nullptr) {
      fail(ErrorKind::kFormat, "{}{} is missing", place(entry_.mark), key);
    }
    if (!value->is_string() || value->text.empty()) {
      fail(ErrorKind::kFormat, "{}{}: expected a text, found {}", place(value->mark), key,
           describe(*value));
    }
    return value->text;
  }

  IdPattern pattern() const {
    std::string id = text("id");
    try {
      Pattern pattern(id);
      return {std::move(id), std::move(pattern)};
    } catch (const std::runtime_error& error) {  // std::regex_error
      fail(ErrorKind::kValue, "{}id: expected an ECMAScript regular expression, found '{}' ({})",
           place(entry_.find("id")->mark), id, error.what());
    }
  }

  /// Absent when there is no such key.
  std::optional<double> share(const char* key) const {
    return number(key, "a share of at least 0 such as 0.03 or 3%", parse_share);
  }
  std::optional<double> microseconds(const char* key) const {
    return number(key, "a number of at least 0", parse_number);
  }

  std::string date(const char* key) const {
    std::string day = text(key);
    if (!is_date(day)) {
      fail(ErrorKind::kValue, "{}{}: expected a date such as 2026-12-31, found '{}'",
           place(entry_.find(key)->mark), key, day);
    }
    return day;
  }

 private:
  static bool is_date(std::string_view text) {
    int year = 0;
    unsigned month = 0, day = 0;
    const auto field = [&](std::size_t begin, std::size_t size, auto& value) {
      const char* first = text.data() + begin;
      const auto [end, error] = std::from_chars(first, first + size, value);
      return error == std::errc() && end == first + size;
    };
    return text.size() == 10 && text[4] == '-' && text[7] == '-' && field(0, 4, year) &&
           field(5, 2, month) && field(8, 2, day) &&
           std::chrono::year_month_day(std::chrono::year(year), std::chrono::month(month),
                                       std::chrono::day(day))
               .ok();
  }

  template <typename Parse>
  std::optional<double> number(const char* key, const char* expected, Parse parse) const {
    const Value* value = entry_.find(key);
    if (value == nullptr) return std::nullopt;
    std::optional<double> result;
    if (value->is_number()) result = parse(fmt::format("{}", value->as_double()));
    if (value->is_string()) result = parse(value->text);
    if (!result) {
      fail(ErrorKind::kValue, "{}{}: expected {}, found {}", place(value->mark), key, expected,
           describe(*value));
    }
    return result;
  }

  const Value& entry_;
};

const std::vector<Value>& entries_of(const Value& list) {
  if (!list.is_list()) {
    fail(ErrorKind::kFormat, "{}expected a list, found {}", place(list.mark), describe(list));
  }
  return list.items;
}

}  // namespace

bool IdPattern::matches(const std::string& id) const { return pattern.is_in(id); }

double parse_threshold(const std::string& text, const std::string& what) {
  const std::optional<double> share = parse_share(text);
  if (!share) {
    fail(ErrorKind::kUsage, "{}: expected a share such as 0.03 or 3%, found '{}'", what, text);
  }
  return *share;
}

std::vector<ThresholdRule> threshold_rules(const Value& list) {
  std::vector<ThresholdRule> rules;
  for (const Value& item : entries_of(list)) {
    const EntryReader entry(item, {"id", "threshold", "floor_us", "accuracy_threshold"});
    rules.push_back({entry.pattern(), entry.share("threshold"), entry.microseconds("floor_us"),
                     entry.share("accuracy_threshold")});
  }
  return rules;
}

std::vector<KnownFailure> known_failures(const Value& list) {
  std::vector<KnownFailure> known;
  for (const Value& item : entries_of(list)) {
    const EntryReader entry(item, {"id", "reason", "expires"});
    known.push_back({entry.pattern(), entry.text("reason"), entry.date("expires")});
  }
  return known;
}

bool has_expired(const KnownFailure& known, const std::string& today) {
  return known.expires < today;  // the form of the dates makes this their order
}

const KnownFailure* find_known(const std::vector<KnownFailure>& known, const std::string& id,
                               const std::string& today) {
  const KnownFailure* expired = nullptr;
  for (const KnownFailure& entry : known) {
    if (!entry.id.matches(id)) continue;
    if (!has_expired(entry, today)) return &entry;
    if (expired == nullptr) expired = &entry;
  }
  return expired;
}

}  // namespace attnbench
