// What the rows of a table call results, or cases (results without a backend), where a table has
// one text a row for them: gate, diff, support.
//
// An id tells everything and can be pasted after --filter, so it stands where every row has room
// for it. Where one has not, no id is shortened, since what a sweep varies is lost then: rows show
// what varies, as the table of `run` does, and what all share is said once. A text that is still
// too wide gets lines of its own:
//
//   every row: batch 8q1s1k
//   kv.dtype=auto, FLASH_ATTN  ...
//   kv.dtype=fp8, FLASH_ATTN   ...
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

class RowNames {
 public:
  /// Of the results of all `files`; one that several have counts once.
  explicit RowNames(const std::vector<const std::vector<Result>*>& files);

  struct Chosen {
    std::vector<std::string> texts;  // one an id, never two alike; printable
    std::string shared;              // "batch 8q1s1k": what all have; empty where ids stand
    bool own_lines = false;          // one is wider than the room
  };
  /// An id that no file has stands for itself.
  Chosen choose(const std::vector<std::string>& ids, std::size_t room) const;

 private:
  std::map<std::string, std::string> names_;  // by id
  std::string shared_;
};

}  // namespace attnbench
