#include "scenario/text/yaml_reader.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/error.h"
#include "scenario/text/files.h"

namespace attnbench {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::size_t count_digits(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_digit(text[end])) ++end;
  return end - at;
}

enum class NumberForm { kNone, kInteger, kFloat };

/// Form of `text` without its sign: 12, 1.5, .5, 1., 1e3; integers without leading zeros.
NumberForm decimal_form(std::string_view text) {
  std::size_t at = count_digits(text, 0);
  const std::size_t whole = at;
  if (whole > 0 && at == text.size()) {
    return whole > 1 && text[0] == '0' ? NumberForm::kNone : NumberForm::kInteger;
  }
  std::size_t fraction = 0;
  if (at < text.size() && text[at] == '.') {
    fraction = count_digits(text, ++at);
    at += fraction;
  }
  if (whole + fraction == 0) return NumberForm::kNone;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    const std::size_t exponent = count_digits(text, at);
    if (exponent == 0) return NumberForm::kNone;
    at += exponent;
  }
  return at == text.size() ? NumberForm::kFloat : NumberForm::kNone;
}

/// All of `digits` in `base`; nothing when it is too large, `matches` false when it is no number.
std::optional<Value> parse_integer(std::string_view digits, int base, bool& matches) {
  std::int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value, base);
  matches = stop == end && error != std::errc::invalid_argument;
  if (!matches || error != std::errc{}) return std::nullopt;
  return Value::of(value);
}

std::optional<Value> parse_float(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (stop != end || error != std::errc{}) return std::nullopt;
  return Value::of(value);
}

/// The value of a plain scalar by the core schema of YAML 1.2: null and ~ and nothing; true, false;
/// integers (decimal without leading zeros, 0x, 0o); floats, .inf, .nan; anything else is text.
/// Nothing for a number out of range.
std::optional<Value> plain_scalar(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") {
    return Value::null();
  }
  if (text == "true" || text == "True" || text == "TRUE") return Value::of(true);
  if (text == "false" || text == "False" || text == "FALSE") return Value::of(false);
  if (text.starts_with("0x") || text.starts_with("0o")) {
    bool matches = false;
    const bool sign_follows = text.size() > 2 && text[2] == '-';
    const std::optional<Value> value =
        parse_integer(std::string_view(text).substr(2), text[1] == 'x' ? 16 : 8, matches);
    if (matches && !sign_follows) return value;
    return Value::of(text);
  }
  const bool negative = text[0] == '-';
  const std::string_view magnitude =
      std::string_view(text).substr(negative || text[0] == '+' ? 1 : 0);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (magnitude == ".inf" || magnitude == ".Inf" || magnitude == ".INF") {
    return Value::of(negative ? -kInfinity : kInfinity);
  }
  if (text == ".nan" || text == ".NaN" || text == ".NAN") {
    return Value::of(std::numeric_limits<double>::quiet_NaN());
  }
  // Why: from_chars takes a leading minus but no plus.
  const std::string_view signed_text = negative ? std::string_view(text) : magnitude;
  bool matches = false;
  switch (decimal_form(magnitude)) {
    case NumberForm::kInteger:
      return parse_integer(signed_text, 10, matches);
    case NumberForm::kFloat:
      return parse_float(signed_text);
    case NumberForm::kNone:
      break;
  }
  return Value::of(text);
}

/// Builds the tree from the parser's events. Events instead of YAML::Node because nodes silently
/// keep duplicate keys, resolve aliases and hold no line of keys.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::shared_ptr<const std::string> file) : file_(std::move(file)) {}

  bool has_document() const { return has_document_; }
  /// Whether it was refused for a key that is a list or a mapping.
  bool has_other_key() const { return has_other_key_; }
  Value take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (has_document_) refuse(mark, "expected one document, found a second one");
    has_document_ = true;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    add(mark, Value::null(), "");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, "anchors and aliases are not allowed, found an alias");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    refuse_anchor(mark, anchor);
    const bool quoted = tag == "!";
    if (!quoted && tag != "?" && !tag.empty()) refuse_tag(mark, tag);
    if (quoted || awaits_key()) {
      if (!quoted && text == "<<") refuse(mark, "merge keys are not allowed, found '<<'");
      add(mark, Value::of(text), text);
      return;
    }
    std::optional<Value> value = plain_scalar(text);
    if (!value) {
      refuse(mark,
             fmt::format("{}: expected a number in range, found {}", path(), text.substr(0, 40)));
    }
    add(mark, std::move(*value), text);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Value::list());
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Value::map());
  }
  void OnMapEnd() override { close(); }

 private:
  /// A list or mapping under construction.
  struct Level {
    Value value;
    std::string key;  // of the entry whose value comes next
    Mark key_mark;
    bool has_key = false;
    std::unordered_set<std::string> keys = {};
  };

  Mark mark_of(const YAML::Mark& mark) const { return {file_, mark.line + 1}; }
  bool awaits_key() const {
    return !levels_.empty() && levels_.back().value.is_map() && !levels_.back().has_key;
  }

  [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& text) const {
    fail(ErrorKind::kFormat, "{}:{}: {}", *file_, mark.line + 1, text);
  }
  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != 0) refuse(mark, "anchors and aliases are not allowed, found an anchor");
  }
  [[noreturn]] void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    refuse(mark, fmt::format("tags are not allowed, found '{}'", tag.substr(0, 40)));
  }

  /// Dotted keys down to the value that comes next.
  std::string path() const {
    std::string result;
    for (const Level& level : levels_) {
      if (!level.has_key) continue;
      if (!result.empty()) result += '.';
      result += level.key;
    }
    return result;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Value value) {
    refuse_anchor(mark, anchor);
    if (tag != "?" && tag != "!" && !tag.empty()) refuse_tag(mark, tag);
    if (awaits_key()) {
      has_other_key_ = true;
      refuse(mark, "expected text as key, found a list or mapping");
    }
    if (static_cast<int>(levels_.size()) >= kMaxNesting) {
      refuse(mark, fmt::format("expected at most {} nested levels, found more", kMaxNesting));
    }
    value.mark = mark_of(mark);
    levels_.push_back({.value = std::move(value), .key = {}, .key_mark = {}});
  }

  void close() {
    Value finished = std::move(levels_.back().value);
    levels_.pop_back();
    attach(std::move(finished));
  }

  void add(const YAML::Mark& mark, Value value, const std::string& text) {
    if (awaits_key()) {
      add_key(mark, text);
    } else {
      value.mark = mark_of(mark);
      attach(std::move(value));
    }
  }

  void add_key(const YAML::Mark& mark, const std::string& key) {
    Level& level = levels_.back();
    if (!level.keys.insert(key).second) {
      refuse(mark, fmt::format("duplicate key '{}'", key.substr(0, 80)));
    }
    if (level.keys.size() > kMaxMapKeys) {
      refuse(mark, fmt::format("expected at most {} keys in a mapping, found more", kMaxMapKeys));
    }
    level.key = key;
    level.key_mark = mark_of(mark);
    level.has_key = true;
  }

  void attach(Value value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return;
    }
    Level& level = levels_.back();
    if (level.value.is_list()) {
      level.value.items.push_back(std::move(value));
      return;
    }
    // Why: a value that opens a block stands on the line after its key; users look for the key.
    if (value.is_null() || value.is_list() || value.is_map()) value.mark = level.key_mark;
    level.value.entries.push_back({level.key, level.key_mark, std::move(value)});
    level.has_key = false;
  }

  std::shared_ptr<const std::string> file_;
  std::vector<Level> levels_;
  Value root_;
  bool has_document_ = false;
  bool has_other_key_ = false;
};

/// The parser's words for what it does not read, and those of a user.
struct SyntaxError {
  std::string_view parser;  // the beginning of its sentence
  std::string_view user;
};
const SyntaxError kSyntaxErrors[] = {
    {YAML::ErrorMsg::END_OF_MAP_FLOW, "a '{' that is never closed"},
    {YAML::ErrorMsg::END_OF_SEQ_FLOW, "a '[' that is never closed"},
    {YAML::ErrorMsg::END_OF_MAP, "a line that is indented unlike those before it"},
    {YAML::ErrorMsg::END_OF_SEQ, "a line that is indented unlike those before it"},
    {YAML::ErrorMsg::MAP_VALUE,
     "a ':' where none can be; check the indentation, and put a text with ': ' in it in quotes"},
    {YAML::ErrorMsg::MAP_KEY, "a key where none can be; check the indentation"},
    {YAML::ErrorMsg::BLOCK_ENTRY, "a '-' where no list can begin; check the indentation"},
    {YAML::ErrorMsg::FLOW_END, "an unmatched ']' or '}'"},
    {YAML::ErrorMsg::EOF_IN_SCALAR, "a quote that is never closed"},
    {YAML::ErrorMsg::DOC_IN_SCALAR, "a quote that is never closed"},
    {YAML::ErrorMsg::INVALID_ESCAPE, "an unknown escape sequence; single quotes keep a '\\'"},
    {YAML::ErrorMsg::UNKNOWN_TOKEN, "a character that begins no value; put quotes around the text"},
    {YAML::ErrorMsg::UNKNOWN_ANCHOR, "an alias ('*') without its anchor"},
};

/// What is wrong with the line (from 0) at which the parser gave up.
std::string_view syntax_error(std::string_view message, const std::string& text, int line) {
  std::istringstream lines(text);
  std::string found;
  for (int i = 0; i <= line && std::getline(lines, found); ++i) {
  }
  const std::size_t indentation = std::min(found.find_first_not_of(" \t"), found.size());
  if (found.find('\t') < indentation) {
    return "a tab in the indentation; YAML takes only spaces there";
  }
  for (const SyntaxError& error : kSyntaxErrors) {
    if (message.starts_with(error.parser)) return error.user;
  }
  return "something else";
}

/// The innermost bracket of a JSON text that is never closed; 0 where there is none.
char unclosed_bracket(const std::string& text) {
  std::string open;
  bool in_quotes = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_quotes = !in_quotes;
    if (in_quotes && c == '\\') ++i;  // whatever is escaped
    if (in_quotes) continue;
    if (c == '{' || c == '[') open += c;
    if ((c == '}' || c == ']') && !open.empty()) open.pop_back();
  }
  return open.empty() ? '\0' : open.back();
}

/// Why: a mapping in braces that is cut off is the key of a mapping to the parser.
[[noreturn]] void refuse_cut_off(const std::string& text, const std::string& file, char bracket) {
  std::size_t end = text.size();
  while (end > 0 && text[end - 1] == '\n') --end;
  const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '\n');
  fail(ErrorKind::kFormat, "{}:{}: expected YAML or JSON, found: a '{}' that is never closed", file,
       line + 1, bracket);
}

}  // namespace

Value read_yaml(const std::string& text, std::shared_ptr<const std::string> file) {
  check_text(text, *file);
  TreeBuilder builder(file);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    fail(ErrorKind::kFormat, "{}:{}: expected YAML or JSON, found: {}", *file, error.mark.line + 1,
         syntax_error(error.msg, text, error.mark.line));
  } catch (const Error&) {
    const char bracket = builder.has_other_key() ? unclosed_bracket(text) : '\0';
    if (bracket != '\0') refuse_cut_off(text, *file, bracket);
    throw;
  }
  Value root = builder.take();
  if (!builder.has_document() || root.is_null()) {
    fail(ErrorKind::kFormat, "{}:1: expected a scenario, found an empty file", *file);
  }
  return root;
}

}  // namespace attnbench
