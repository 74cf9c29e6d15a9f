// What tells the cases of a run apart, as columns: the batch and every key that a scenario sweeps.
//
// The name of a case says the same in one word
// ("8q1s1k,kv_cache.dtype=fp8,kv_cache.block_size=32"), which is an id and no text for a table:
// four of them look alike once they are shortened. In columns it and its neighbour are
//
//   batch   kv.dtype  block_size
//   8q1s1k  auto      32
//   8q1s1k  fp8       32
//
// and a column that does not vary can be said once. Values are those of the resolved problem, so
// that a case that does not sweep a key has its value, too.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

struct CaseColumn {
  std::string key;     // "batch", "kv_cache.dtype"
  std::string title;   // "batch", "kv.dtype": the last part of the key where that is enough
  bool varies = true;  // over the results
  std::vector<std::string> values;  // one a result
};

/// Swept keys in the order of the scenario, the batch before them; empty where no scenario of the
/// results sweeps anything but its batch.
std::vector<CaseColumn> case_columns(const std::vector<Result>& results);

/// A title for a key: its last part, behind a short form of its section where other keys of a
/// scenario end alike.
std::string short_key(std::string_view key);

/// "8q1s1k, kv.dtype=fp8" of one result: the batch and its swept keys, or those of them that vary.
std::string case_label(const std::vector<CaseColumn>& columns, std::size_t result,
                       bool only_varying);

/// A text for the case of each result, without its backend.
struct CaseLabels {
  std::vector<std::string> labels;  // printable; one a result
  std::string shared;               // "batch 8q1s1k, block_size 16": what no label says
};

/// What varies; the name of the case where nothing is swept, and with the scenario before all where
/// there are several.
CaseLabels case_labels(const std::vector<Result>& results);

}  // namespace attnbench
