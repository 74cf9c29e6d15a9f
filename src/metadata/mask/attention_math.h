// What a backend computes for one problem: masks, bias and scale resolved from the scenario by
// the rules of semantics §3 and the backend's own. Pipelines, the reference and the FLOP count
// share it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/problem/problem.h"
#include "metadata/mask/kernel_rules.h"
#include "metadata/mask/mm_prefix.h"

namespace attnbench {

/// Attention as §3.3 tells it apart.
enum class WindowSubject { kDecoder, kEncoderDecoder, kEncoderOnly, kEncoder };

/// Key j is allowed for position p iff p - left <= j <= p + right; -1 = unlimited.
struct WindowPair {
  int64_t left = -1;
  int64_t right = -1;
  bool operator==(const WindowPair&) const = default;
};

/// sliding_window counts the visible keys including the token itself; nullopt = no window, < 1 is
/// E-CONFIG. With symmetric_encoder an ENCODER window is symmetric whatever the rule.
WindowPair window_pair(std::optional<int64_t> sliding_window, WindowSubject subject,
                       EncoderWindowRule rule, bool symmetric_encoder = false);

/// The pair with the right side closed when causal.
WindowPair apply_causal(WindowPair window, bool causal);

/// The bias added to an allowed score (semantics §3.4); p is the query's absolute position, j the
/// key's, context_len = Sk - Sq.
enum class AlibiForm {
  kNone,
  kKeyIndex,         // slope * j
  kContextRelative,  // slope * (j - context_len)
  kDistance,         // -slope * |p - j|
  kSqrt              // -slope * sqrt(p - j) for j <= p, 0 for j > p
};

struct AttentionMath {
  double softmax_scale = 1;
  bool causal = true;
  std::int64_t window_left = -1;   // keys visible before p; -1 = unlimited
  std::int64_t window_right = -1;  // keys visible after p; 0 when causal, -1 = unlimited
  /// Positions of a chunk, whose rows see nothing before it (§3.11); 0 = no chunks.
  std::int64_t chunk_size = 0;
  double logits_soft_cap = 0;  // 0 = off
  AlibiForm alibi = AlibiForm::kNone;
  bool has_sinks = false;
  /// Per request, inclusive [start, end] absolute positions with start < end; empty = none.
  std::vector<std::vector<MmRange>> mm_prefix_ranges;

  bool operator==(const AttentionMath&) const = default;

  std::span<const MmRange> ranges_of(std::int64_t request) const {
    if (mm_prefix_ranges.empty()) return {};
    return mm_prefix_ranges[static_cast<std::size_t>(request)];
  }
};

/// Errors: E-CONFIG for a sliding window below 1.
AttentionMath resolve_attention_math(const Problem& problem, const KernelRules& rules);

/// Half-open range of keys [begin, end) that row p may see by causal rule and window, cut to
/// [0, seq_len). mm_prefix ranges come on top of it (is_allowed).
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
KeyRange visible_range(const AttentionMath& math, std::int64_t position, std::int64_t seq_len);

/// Whether the row at absolute position p sees key j < seq_len (semantics §3.2, §3.3, §3.6).
bool is_allowed(const AttentionMath& math, std::span<const MmRange> ranges, std::int64_t position,
                std::int64_t key, std::int64_t seq_len);

}  // namespace attnbench
