// Values that are computed when first needed, kept, and found again by their key: references,
// stored caches. A case has a handful of keys, so they are compared one by one; all that a key type
// needs is
// ==. Not for several threads.
#pragma once

#include <deque>
#include <optional>
#include <utility>

namespace attnbench {

/// Few keys, of a type that only has to be comparable.
template <typename Key, typename Value>
class Memo {
 public:
  /// The value of `key`, which stays where it is until clear(). make() computes it the first time;
  /// where that gives nothing (a computation was interrupted) nothing is kept, and the result is
  /// null.
  template <typename Make>
  const Value* get(const Key& key, const Make& make) {
    for (const auto& [known, value] : entries_) {
      if (known == key) return &value;
    }
    std::optional<Value> made = make();
    if (!made) return nullptr;
    return &entries_.emplace_back(key, *std::move(made)).second;
  }
  void clear() { entries_.clear(); }

 private:
  std::deque<std::pair<Key, Value>> entries_;  // a deque does not move what it has when it grows
};

}  // namespace attnbench
