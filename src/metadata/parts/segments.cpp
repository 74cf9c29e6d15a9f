// The 3D path divides the keys of a request into segments of whole tiles, as many for every request
// of a launch; a short request leaves the last ones empty.
#include "metadata/parts/segments.h"

#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "metadata/int_math.h"

namespace attnbench {

int seq_threshold_3d(int num_kv_heads, std::span<const int> capture_sizes) {
  if (num_kv_heads < 1) {
    fail(ErrorKind::kShape, "num_kv_heads: expected at least 1, got {}", num_kv_heads);
  }
  const int threshold = kMinLaunchGridSize2d / num_kv_heads;
  if (capture_sizes.empty()) return threshold;
  return *std::ranges::min_element(capture_sizes, {},
                                   [&](int size) { return std::abs(size - threshold); });
}

bool use_3d_path(std::optional<bool> forced, int max_query_len, int64_t num_requests, int threshold,
                 bool batch_invariant) {
  if (forced.value_or(false) && max_query_len > 1) {
    fail(ErrorKind::kConfig, "path 3d: expected max_query_len <= 1, got {}", max_query_len);
  }
  if (forced) return *forced;
  return max_query_len <= 1 && num_requests <= threshold && !batch_invariant;
}

int num_softmax_segments(int64_t num_requests, int num_kv_heads, int num_sms) {
  const int64_t places = int64_t{2} * num_sms;
  int segments = kNumSoftmaxSegments;
  while (segments < kMostSoftmaxSegments && num_requests * num_kv_heads * segments * 2 <= places) {
    segments *= 2;
  }
  return segments;
}

SegmentPlan plan_segments(int64_t seq_len, int tile_size, int num_segments) {
  if (tile_size < 1 || num_segments < 1) {
    fail(ErrorKind::kConfig, "segments: expected tile size and count >= 1, got {} and {}",
         tile_size, num_segments);
  }
  if (seq_len < 0) fail(ErrorKind::kValue, "seq_len: expected >= 0, got {}", seq_len);
  SegmentPlan plan{.seq_len = seq_len, .tile_size = tile_size};
  if (seq_len == 0) return plan;
  plan.tiles_per_segment = ceil_div(seq_len, int64_t{num_segments} * tile_size);
  plan.num_active = static_cast<int>(ceil_div(seq_len, plan.tiles_per_segment * tile_size));
  return plan;
}

KeySegment segment_keys(const SegmentPlan& plan, int segment) {
  const int64_t width = plan.tiles_per_segment * plan.tile_size;
  return {std::min(segment * width, plan.seq_len), std::min((segment + 1) * width, plan.seq_len)};
}

}  // namespace attnbench
