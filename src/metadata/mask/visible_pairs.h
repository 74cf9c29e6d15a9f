// Exact number of (query row, key) pairs that the masks allow; FLOPs are counted from it (semantics
// §3.2, §3.3, §3.6). Must agree with is_allowed() of attention_math.h on every row and key: a test
// holds the two together, since a FLOP count that ignores a window would show a kernel that skips
// masked tiles as faster than the device.
#pragma once

#include <cstdint>
#include <span>

#include "metadata/mask/mm_prefix.h"

namespace attnbench {

/// Sq query rows aligned bottom-right with Sk keys: row i stands at position i + Sk - Sq.
struct VisibleArgs {
  int64_t query_len = 0;  // Sq, may exceed Sk
  int64_t seq_len = 0;    // Sk
  bool causal = true;
  int64_t window_left = -1;   // -1 = unlimited
  int64_t window_right = -1;  // -1 = unlimited; causal closes it
};

/// Pairs of one request and one head; constant time without ranges, O(Sq * ranges) with them.
/// Lengths beyond int32 are E-CAPACITY, negative ones E-VALUE.
int64_t visible_pairs(const VisibleArgs& args, std::span<const MmRange> mm_ranges = {});

}  // namespace attnbench
