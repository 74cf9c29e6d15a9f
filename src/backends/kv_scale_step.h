// The step that makes the scales of an fp8 cache before it is written (semantics §5.4).
#pragma once

#include <string>

#include "backends/device_buffers.h"
#include "core/problem/problem.h"
#include "inputs/cache/kv_scales.h"

namespace attnbench {

/// Rows of a tensor [num_tokens, H, D] without gaps, on the device.
struct ScaledRows {
  attn::Element element = attn::Element::kBF16;
  const void* data = nullptr;
  std::int64_t num_tokens = 0;
  int num_heads = 1;
  int head_size = 0;
};

class KvScaleStep {
 public:
  /// `memory`, which has what the step leaves too, must outlive it. MLA passes kv_c for key and
  /// value. `constants` are those of the problem.
  KvScaleStep(DeviceBuffers& memory, const KvScaleConstants& constants, const ScaledRows& query,
              const ScaledRows& key, const ScaledRows& value, int num_kv_heads);

  /// What the step leaves: [1], and one for each KV head, all the same.
  const float* q_scale() const { return scales_; }
  const float* k_scale() const { return per_head_; }
  const float* v_scale() const { return per_head_ + num_kv_heads_; }

  double bytes() const;
  void run();
  /// Empty, or how the scales differ from the problem's, which the pipeline and its judge go by.
  std::string defect(const Problem& problem);

 private:
  void amax(const ScaledRows& rows, int index);
  void expand(int index, float* per_head);

  DeviceBuffers& memory_;
  KvScaleConstants constants_;
  ScaledRows rows_[3];
  int num_kv_heads_;
  float* amax_;      // [3]
  float* scales_;    // [3]
  float* per_head_;  // [2, Hk]
};

}  // namespace attnbench
