// Regular expressions and the reading of JSON. Why not std::regex and nlohmann::json::parse
// themselves: they are templates that every module which uses them compiles anew, for one or two
// seconds.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace attnbench {

/// An ECMAScript regular expression.
class Pattern {
 public:
  /// Throws std::regex_error, a std::runtime_error, for a text that is none; so do the searches
  /// where they take too long.
  explicit Pattern(const std::string& expression);

  bool is_in(const std::string& text) const;

  /// What matched and what each group did, "" for one that took no part; empty where nothing
  /// matches.
  using Groups = std::vector<std::string>;
  /// Of all of `text`.
  Groups match(const std::string& text) const;
  /// Of the first place in `text` that matches.
  Groups search(const std::string& text) const;
  /// Of every place, in order.
  std::vector<Groups> search_all(const std::string& text) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

/// A value that is_discarded() for a text that is no JSON. `Json` is nlohmann::json or
/// nlohmann::ordered_json.
template <typename Json>
Json parse_json(std::string_view text);

}  // namespace attnbench
