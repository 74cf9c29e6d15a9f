// Text and JSON of scale files, read as Python reads them, since the files come from Python
// programs: NaN and Infinity are values, a name given twice is legal and the last one counts. Sizes
// and numbers of names are limited, because a file may come from anywhere.
#include "inputs/files/scale_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/system/printable.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;
constexpr std::size_t kMaxNames = 50'000;

std::string quote_python_literals(std::string_view text, std::string_view mark) {
  std::string result;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (in_string && c == '\\' && i + 1 < text.size()) {
      result += text.substr(i, 2);
      i += 2;
      continue;
    }
    if (c == '"') in_string = !in_string;
    std::string_view literal;
    for (const std::string_view candidate : {"NaN", "Infinity", "-Infinity"}) {
      if (!in_string && text.substr(i).starts_with(candidate)) literal = candidate;
    }
    if (literal.empty()) {
      result += c;
      ++i;
    } else {
      result += fmt::format("\"{}{}\"", mark, literal);
      i += literal.size();
    }
  }
  return result;
}

/// A number in a string, with blanks around it.
std::optional<double> parse_number(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\r\v\f";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return std::nullopt;
  text = text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) return HUGE_VAL;
  return error == std::errc{} ? std::optional(value) : std::nullopt;
}

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// The digits at `at`, without leading zeros; `at` moves behind them.
std::string_view take_number(std::string_view text, std::size_t& at) {
  while (at + 1 < text.size() && text[at] == '0' && is_digit(text[at + 1])) ++at;
  const std::size_t begin = at;
  while (at < text.size() && is_digit(text[at])) ++at;
  return text.substr(begin, at - begin);
}

/// The names of the objects that a parser is in.
class Names {
 public:
  Names(const std::string& where, std::vector<std::string>* duplicates)
      : where_(where), duplicates_(duplicates) {}

  /// Errors: E-FORMAT for a name that its object has already, unless those are collected.
  void follow(Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_.emplace_back();
    if (event == Json::parse_event_t::object_end) open_.pop_back();
    if (event == Json::parse_event_t::key) add(parsed.get_ref<const std::string&>());
  }

  /// ", in 'layers', 'a'", or nothing at the outermost.
  std::string place() const {
    std::string result;
    for (const Object& object : open_) {
      result += fmt::format("{} '{}'", result.empty() ? ", in" : ",", shown(object.last));
    }
    return result;
  }

 private:
  struct Object {
    std::set<std::string> names;
    std::string last;
  };

  void add(const std::string& name) {
    if (!open_.back().names.insert(name).second) add_duplicate(name);
    open_.back().last = name;
  }

  void add_duplicate(const std::string& name) {
    Object object = std::move(open_.back());
    open_.pop_back();
    const std::string text = fmt::format("{}: duplicate name '{}'{}", where_, shown(name), place());
    if (duplicates_ == nullptr) fail(ErrorKind::kFormat, "{}", text);
    duplicates_->push_back(text);
    open_.push_back(std::move(object));
  }

  const std::string& where_;
  std::vector<std::string>* duplicates_;
  std::vector<Object> open_;
};

}  // namespace

std::string read_scale_text(const fs::path& path, std::string_view what) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    fail(ErrorKind::kIo, "{} not found: {}", what, path.string());
  }
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::vector<char> block(1 << 16);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMaxFileBytes) {
      fail(ErrorKind::kFormat, "{} {}: expected at most {} MiB", what, path.string(),
           kMaxFileBytes >> 20);
    }
  }
  if (!file.is_open() || file.bad()) {
    fail(ErrorKind::kIo, "{} {}: cannot be read: {}", what, path.string(), std::strerror(errno));
  }
  return text;
}

namespace {

/// Where `text` ends to be JSON, and by what. `byte`: the first that does not fit once literals are
/// quoted, counted from 1; behind the last where something is missing at the end.
std::string what_is_no_json(std::string_view text, std::string_view mark, std::size_t byte) {
  // Quoting only adds, so the byte is the last one up to which the quoted text is no longer.
  const std::size_t wanted = byte > 0 ? byte - 1 : 0;
  std::size_t at = 0;
  for (std::size_t past = text.size() + 1; past - at > 1;) {
    const std::size_t middle = at + (past - at) / 2;
    const bool fits = quote_python_literals(text.substr(0, middle), mark).size() <= wanted;
    (fits ? at : past) = middle;
  }
  const std::string_view before = text.substr(0, std::min(at, text.size()));
  const std::size_t line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t column = before.size() - (before.rfind('\n') + 1) + 1;
  std::string found = "the file ends too early";
  if (at < text.size()) {
    const auto unit = static_cast<unsigned char>(text[at]);
    const bool is_shown = unit > ' ' && unit < 0x7f;
    found = is_shown ? fmt::format("unexpected '{}'", text[at])
                     : fmt::format("unexpected byte 0x{:02x}", unit);
  }
  return fmt::format("line {}, column {}: {}", line, column, found);
}

/// The number of names in all objects of a text, up to where it is no JSON.
std::size_t count_names(const std::string& text) {
  std::size_t count = 0;
  const auto discard = [&](int, Json::parse_event_t event, Json&) {
    count += event == Json::parse_event_t::key;
    return false;
  };
  [[maybe_unused]] const Json discarded = Json::parse(text, discard, /*allow_exceptions=*/false);
  return count;
}

}  // namespace

Json parse_scale_json(std::string_view text, const std::string& where,
                      std::vector<std::string>* duplicates, std::string_view mark) {
  Names names(where, duplicates);
  const auto check = [&](int, Json::parse_event_t event, Json& parsed) {
    names.follow(event, parsed);
    return true;
  };
  const std::string quoted = quote_python_literals(text, mark);
  // Why a limit, and before the names are kept: an object that keeps its order looks for each new
  // name among all others.
  if (count_names(quoted) > kMaxNames) {
    fail(ErrorKind::kFormat, "{}: expected at most {} names", where, kMaxNames);
  }
  try {
    Json document = Json::parse(quoted, check);
    if (document.is_object()) return document;
    fail(ErrorKind::kFormat, "{}: expected a JSON object, got {}", where, document.type_name());
  } catch (const Json::out_of_range& error) {
    fail(ErrorKind::kValue, "{}{}: {}", where, names.place(), json_complaint(error.what()));
  } catch (const Json::parse_error& error) {
    fail(ErrorKind::kFormat, "{}: not JSON: {}", where, what_is_no_json(text, mark, error.byte));
  } catch (const Json::exception& error) {
    fail(ErrorKind::kFormat, "{}: not JSON: {}", where, json_complaint(error.what()));
  }
}

std::string json_complaint(std::string_view what) {
  const auto drop_to_end_of = [&](std::string_view mark) {
    if (const std::size_t at = what.find(mark); at != std::string_view::npos) {
      what.remove_prefix(at + mark.size());
    }
  };
  if (what.starts_with("[json.exception.")) drop_to_end_of("] ");
  constexpr std::string_view kPlace = "parse error at ";
  if (what.starts_with(kPlace)) what.remove_prefix(kPlace.size());
  const std::size_t colon = what.find(": syntax error ");
  if (colon == std::string_view::npos) return shown(what);
  const std::string place(what.substr(0, colon));
  drop_to_end_of(" - ");
  return shown(fmt::format("{}: {}", place, what));
}

double scale_number(const Json& value, const std::string& where) {
  if (value.is_number()) return value.get<double>();
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_string()) {
    if (const auto number = parse_number(value.get_ref<const std::string&>())) return *number;
  }
  fail(ErrorKind::kFormat, "{}: expected a number, got {}", where, shown_json(value));
}

bool is_scale(double value) {
  const auto narrow = static_cast<float>(value);
  return std::isfinite(value) && value > 0 && std::isfinite(narrow) && narrow > 0;
}

std::string python_repr(double value) {
  std::string text = fmt::format("{}", value);
  const bool whole = text.find_first_not_of("-0123456789") == std::string::npos;
  return whole ? text + ".0" : text;
}

std::string shown_json(const Json& value) {
  if (value.is_structured()) return std::string("an ") + value.type_name();
  return shown(std::string_view(value.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

void fail_without_scales(std::string_view layer, std::string_view file,
                         const std::vector<std::string>& available) {
  fail(ErrorKind::kValue,
       "FP8 attention enabled but scales not found for layer '{}' in {}. Available layers: [{}]",
       shown(layer), printable(file), quoted_names(available));
}

bool natural_less(std::string_view a, std::string_view b) {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
      continue;
    }
    const std::string_view x = take_number(a, i);
    const std::string_view y = take_number(b, j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;
}

}  // namespace attnbench
