// Keys that stand in a scenario and that none of its cases reads.
//
// Such a key is an error: whoever writes mla.kv_lora_rank takes the case for MLA, and a k_scale
// beside a 16-bit cache looks as if it had been applied. A table says of every field which cases
// read it; a refusal by a backend counts as reading, since the user learns of it. A sweep needs a
// key to be read by one of its cases only (scales beside kv_cache.dtype: [auto, fp8]). Null,
// "auto" and empty lists are no values, so they are never too much.
//
// Files that are taken by `extends` may describe more of a model than a case reads; which keys
// those are is a column of the table (contract section 1). A resolved problem, which says every
// key, is a scenario too.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem/problem.h"
#include "core/value.h"
#include "scenario/text/issues.h"

namespace attnbench {

/// Which cases read a field.
struct ReadRule {
  std::string_view key;              // of the field
  bool (*reads)(const Problem&);     // of a resolved case; null: every case does
  std::string_view with = {};        // what the case needs for it: "attention.type mla"
  std::string_view decided_by = {};  // the field beside attention.type that decides, if one does
  bool of_model = false;             // describes a model: an extended file may hold it unread
};

/// A row for every field, in the order of problem_fields().
const std::vector<ReadRule>& read_rules();

/// Follows the cases of one document.
class UnreadKeys {
 public:
  /// `file` is the name of the scenario itself in marks; what stands in others was extended.
  UnreadKeys(const Value& document, const std::string& file);

  /// A resolved case: what it reads is no longer looked for.
  void see(const Problem& problem);

  /// E-CONFIG for every key that no case read, with its place, what would read it and what the
  /// first case is.
  void add_issues(IssueList& issues) const;

  /// A key that no case read.
  struct Key {
    std::string_view name;
    std::string place;  // as messages begin
    std::string why;    // "read only with attention.type mla; found attention.type decoder"
    bool is_swept;
    bool is_option;  // of the command line, not of a file
  };
  std::vector<Key> keys() const;

 private:
  struct Written {
    const ReadRule* rule;
    Mark mark;
    bool is_swept;
    std::string found;  // the first case in words
  };
  std::string why(const Written& key) const;
  std::vector<Written> unread_;
  std::size_t num_cases_ = 0;
};

}  // namespace attnbench
