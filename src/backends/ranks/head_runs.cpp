#include "backends/ranks/head_runs.h"

#include <algorithm>

namespace attnbench {

std::vector<HeadRun> dcp_head_runs(const AttentionSpec& attention, HeadSpan heads) {
  const int group = attention.num_heads / attention.num_kv_heads;
  const int count = heads.end - heads.begin;
  if (heads.begin % group == 0 && count % group == 0) {
    return {{0, count, heads.begin / group, count / group}};
  }
  std::vector<HeadRun> runs;
  for (int head = heads.begin; head < heads.end;) {
    const int kv_head = head / group;
    const int end = std::min(heads.end, (kv_head + 1) * group);
    runs.push_back({head - heads.begin, end - head, kv_head, 1});
    head = end;
  }
  return runs;
}

}  // namespace attnbench
