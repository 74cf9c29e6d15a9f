// Triton unified attention: the choice between the 2D and the 3D path, and the segments of the
// latter (semantics §4.2, §4.3).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace attnbench {

inline constexpr int kMinLaunchGridSize2d = 128;
inline constexpr int kNumSoftmaxSegments = 16;

/// Largest batch that takes the 3D path: floor(128 / Hk), or the capture size nearest to it (the
/// first one on a tie) when decode graphs are captured. E-SHAPE for Hk < 1.
int seq_threshold_3d(int num_kv_heads, std::span<const int> capture_sizes = {});

/// forced: nullopt = choose, true = 3D, false = 2D. 3D forced with max_query_len > 1 is E-CONFIG.
bool use_3d_path(std::optional<bool> forced, int max_query_len, int64_t num_requests, int threshold,
                 bool batch_invariant);

/// Segments of a launch: kNumSoftmaxSegments, doubled up to kMostSoftmaxSegments as long as the
/// CTAs of all requests and KV heads still find places at a time, two on a multiprocessor. Not by
/// the lengths, which change under a captured graph.
inline constexpr int kMostSoftmaxSegments = 64;
int num_softmax_segments(int64_t num_requests, int num_kv_heads, int num_sms);

/// Keys [begin, end); empty where begin >= end.
struct KeySegment {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const KeySegment&) const = default;
};

/// How one request's keys are divided. Segments at or past num_active do nothing and are left out
/// of the reduction.
struct SegmentPlan {
  int64_t seq_len = 0;
  int tile_size = 16;
  int64_t tiles_per_segment = 0;  // tps; 0 for an empty sequence
  int num_active = 0;             // A
};

/// E-CONFIG for a tile or segment count below 1, E-VALUE for seq_len < 0.
SegmentPlan plan_segments(int64_t seq_len, int tile_size, int num_segments = kNumSoftmaxSegments);

/// Keys of one segment before the window cuts them.
KeySegment segment_keys(const SegmentPlan& plan, int segment);

}  // namespace attnbench
