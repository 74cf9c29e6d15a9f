// Which KV heads the query heads of a rank read (semantics §7.1).
#pragma once

#include <vector>

#include "core/problem/problem.h"
#include "metadata/parts/dcp.h"

namespace attnbench {

/// Neighbouring query heads of a rank that one call serves: all of them where its KV heads have
/// equally many, else those of one KV head.
struct HeadRun {
  int first_head = 0;  // within the rank
  int num_heads = 0;
  int first_kv_head = 0;
  int num_kv_heads = 0;
};

/// The KV head of global head h is h / (H / Hk).
std::vector<HeadRun> dcp_head_runs(const AttentionSpec& attention, HeadSpan heads);

}  // namespace attnbench
