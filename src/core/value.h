// A JSON-like value that remembers where it was written: what scenario files are read into and what
// the fields of a Problem are read from and written to. Independent of the parser and of JSON, so
// that a message about the hundredth line of a file can still name that line after sweeps and --set
// have changed what is around it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace attnbench {

/// Place in a source text. A null file means a value that no file holds; line 0 a file without
/// lines (a command line option).
struct Mark {
  std::shared_ptr<const std::string> file;
  int line = 0;  // from 1
};

struct Value {
  enum class Kind { kNull, kBool, kInt, kFloat, kString, kList, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;           // kFloat; may be infinite or NaN
  std::string text;            // kString
  std::vector<Value> items;    // kList
  std::vector<Entry> entries;  // kMap, in file order, keys unique
  Mark mark;

  static Value null();
  static Value of(bool value);
  static Value of(std::int64_t value);
  static Value of(double value);
  static Value of(std::string value);
  static Value of(const char* value);
  static Value list();
  static Value map();

  bool is_null() const { return kind == Kind::kNull; }
  bool is_bool() const { return kind == Kind::kBool; }
  bool is_int() const { return kind == Kind::kInt; }
  /// kInt or kFloat.
  bool is_number() const { return kind == Kind::kInt || kind == Kind::kFloat; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_string(std::string_view word) const { return is_string() && text == word; }
  bool is_list() const { return kind == Kind::kList; }
  bool is_map() const { return kind == Kind::kMap; }
  /// A number as double.
  double as_double() const { return kind == Kind::kInt ? static_cast<double>(integer) : number; }

  /// The entry of a map; null when there is none or this is no map.
  const Value* find(std::string_view key) const;
  Value* find(std::string_view key);
  /// The entry of a map, added as null when there is none. Keeps the order of first appearance.
  Value& at_or_add(std::string_view key);
  /// The entry under a dotted key ("kv_cache.k_scale"); null when there is none.
  const Value* find_path(std::string_view dotted_key) const;
  Value& at_or_add_path(std::string_view dotted_key);
  void erase(std::string_view key);

 private:
  static Value with_kind(Kind kind);
};

struct Value::Entry {
  std::string key;
  Mark key_mark;
  Value value;
};

/// Whether two values hold the same, wherever they were written; 1 and 1.0 differ.
bool same_content(const Value& a, const Value& b);

/// JSON text; `indent` as in nlohmann::json::dump, -1 is one line. Infinite and NaN numbers are the
/// strings "inf", "-inf", "nan", which JSON has no numbers for.
std::string to_json_text(const Value& value, int indent = -1);

/// For messages: "a list", "text 'abc'", "64", "null", ...; long texts are cut.
std::string describe(const Value& value);

}  // namespace attnbench
