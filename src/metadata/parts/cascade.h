// When a prefix that all requests share is worth a pass of its own, and what that pass requires
// (semantics §6.1, §6.2). The pass over the prefix reads its keys once for all requests; each
// request's other keys are a second pass, and the two are merged by their log-sum-exps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/assumed_device.h"
#include "core/problem/problem.h"

namespace attnbench {

/// What upstream's scheduler knows of a batch when it decides.
struct CascadeQuestion {
  int64_t common_prefix_len = 0;
  std::span<const int32_t> query_lens;  // [B]
  int num_heads = 1;
  int num_kv_heads = 1;
  bool use_alibi = false;
  bool use_sliding_window = false;
  bool use_local_attention = false;
  int num_sms = kAssumedNumSms;  // multiprocessors of the device
  int dcp_world_size = 1;
};

/// The heuristic of §6.1.
bool use_cascade_attention(const CascadeQuestion& question);

/// Requirements of the shared prefix: > 0, a multiple of block_size, not past any context_lens [B]
/// (E-CONFIG), and the same first block ids in every row of block_table [B, columns] (E-VALUE).
void check_cascade_prefix(int64_t common_prefix_len, int block_size,
                          std::span<const int32_t> context_lens,
                          std::span<const int32_t> block_table, int64_t columns);

/// Consecutive requests that share their first keys.
struct PrefixGroup {
  int64_t first_request = 0;
  int64_t num_requests = 0;
  int64_t num_keys = 0;
};
/// In request order: those of cascade.groups, or one of the whole batch with common_prefix_len
/// keys; none where nothing is shared.
std::vector<PrefixGroup> prefix_groups(const Problem& problem);

/// What cascade.mode auto does with a decoder's prefixes on a device of so many multiprocessors:
/// the heuristic, which weighs one pass over the prefix for all queries against one for each, where
/// cascade can serve the problem (§6.2). Of several groups it has to say yes for each, as for a
/// batch of its own. False where nothing is shared.
bool heuristic_cascades(const Problem& problem, int num_sms);

/// What one request shares with others.
struct SharedPrefix {
  int64_t num_keys = 0;
  int64_t group = -1;     // of prefix_groups(); -1 = it shares nothing
  int64_t first_key = 0;  // keys of the groups before its own: where its own are, of all of them
};
/// [B], in request order.
std::vector<SharedPrefix> shared_prefixes(const Problem& problem);

/// [B] seq_len - common_prefix_len.
std::vector<int32_t> cascade_suffix_lens(std::span<const int32_t> seq_lens,
                                         int64_t common_prefix_len);

}  // namespace attnbench
