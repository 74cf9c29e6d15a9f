// What a scenario says about one case, for the rules that need to know whether and where a key was
// given.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/value.h"
#include "scenario/text/issues.h"

namespace attnbench {

class CaseValues {
 public:
  explicit CaseValues(const Value& document) : document_(document) {}

  void sweep(const std::string& key, const Value& value) { swept_.emplace_back(key, &value); }

  /// The value of a dotted key, swept or fixed; null when it is absent.
  const Value* find(std::string_view key) const {
    for (const auto& [swept_key, value] : swept_) {
      if (swept_key == key) return value;
    }
    return document_.find_path(key);
  }
  /// Present, not null and not "auto".
  bool gives(std::string_view key) const {
    const Value* value = find(key);
    return value != nullptr && !value->is_null() && !value->is_string("auto");
  }

  /// A key of the section is present, swept or fixed.
  bool gives_section(std::string_view section) const {
    const std::string prefix = std::string(section) + ".";
    for (const auto& [key, value] : swept_) {
      if (key.starts_with(prefix)) return true;
    }
    const Value* value = document_.find_path(section);
    return value != nullptr && !value->is_null();
  }

  /// Throws "<file>:<line>: <key>: <text>"; without a value of its own the key's place is the
  /// document's.
  template <typename... Args>
  [[noreturn]] void reject(ErrorKind kind, std::string_view key, fmt::format_string<Args...> text,
                           Args&&... args) const {
    const Value* value = find(key);
    const Mark& mark = value != nullptr ? value->mark : document_.mark;
    throw Error(kind, fmt::format("{}{}: {}", location(mark), key,
                                  fmt::format(text, std::forward<Args>(args)...)));
  }

 private:
  const Value& document_;
  std::vector<std::pair<std::string, const Value*>> swept_;
};

}  // namespace attnbench
