// The table of scenario fields: which dotted key stands for which member of Problem, what values it
// takes, and how it is read and written. The loader, the shipped JSON Schema (tested against it),
// sweeps, --set and problem_to_json() all follow this one table, so a new field is one row.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/problem/problem.h"
#include "core/value.h"

namespace attnbench {

/// Why a value does not suit a field.
struct Mismatch {
  ErrorKind kind = ErrorKind::kFormat;  // kFormat: wrong type; else out of range
  std::string expected;                 // "an integer >= 1"
  const Value* found = nullptr;         // the value, or the part of it that is wrong
};

struct Field {
  std::string key;                      // "kv_cache.k_scale"
  std::vector<std::string> words = {};  // the words it takes; empty = not a choice of words
  bool is_input_path = false;  // names a file that is read; relative to the scenario's folder
  std::function<std::optional<Mismatch>(const Value&, Problem&)> set = {};
  /// What `set` would take to give this value again.
  std::function<Value(const Problem&)> get = {};
};

/// In the order of contract section 1.
const std::vector<Field>& problem_fields();

/// Fields that name a file of scales.
inline constexpr std::array<std::string_view, 3> kScaleFileKeys{
    "mm_encoder.fp8_scale_path", "kv_cache.scale_file", "kv_cache.value_scale_file"};

/// The field that names a file of tensors.
inline constexpr std::string_view kInputFileKey = "inputs.file";

/// The field under a dotted key, or null.
const Field* find_field(std::string_view key);

/// Problem as JSON: the "problem" of result files and saved tensors (contract.md section 4). Every
/// resolved field of contract section 1, same nesting and names; the batch as a list of
/// {count, query_len, seq_len}. `indent` as in nlohmann::json::dump; -1 is one line.
std::string problem_to_json(const Problem& problem, int indent = -1);

}  // namespace attnbench
