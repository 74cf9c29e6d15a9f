// fp8 queries, keys and values of the multimodal encoder: scales from a file or from the history of
// largest values, padded codes, the scale file that a first wrap writes (semantics §10.5 to §10.7).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "backends/device_buffers.h"
#include "core/problem/problem.h"
#include "ops/ops.h"

namespace attnbench {

/// Queries, keys or values as they come from the projection, on the device.
struct MmSource {
  const void* data = nullptr;  // [num_tokens, num_heads, D] by the strides below
  std::int64_t num_tokens = 0;
  int num_heads = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};

/// What one forward quantised to, read back.
struct MmQuantisedForward {
  std::array<Tensor, 3> codes;  // e4m3 [tokens, heads, D rounded up to 16] of Q, K and V
  std::array<float, 3> scales{1, 1, 1};
  std::array<std::int64_t, 3> saturated{};  // of all forwards since poison()
};

class MmFp8 {
 public:
  /// Loads the scales of the first layer, or, where a scale file is to be saved, lets every layer
  /// observe the 15 forwards before the measured one. Errors: as read_mm_scales, and E-VALUE when a
  /// layer has no scales.
  MmFp8(const Problem& problem, Ops& ops, const std::array<MmSource, 3>& sources);

  /// Queues one forward: largest values and scales of the current tensors first (dynamic), then the
  /// codes. The host takes no part: scales stay on the device.
  void quantise();
  /// `params` with the codes and scales of the last forward in place of query, key and value;
  /// output of padded heads goes to `output`.
  attn::AttendParams attend_params(const attn::AttendParams& params, void* output) const;

  int padded_head_size() const { return padded_; }
  /// f32 [3] of Q, K and V on the device, those of the last forward.
  const float* scales() const { return scale_; }
  /// Bytes that quantise() reads and writes.
  double traffic_bytes() const;
  void poison();
  /// What the last forward left; the first call after the history wrapped writes the scale file.
  /// Errors: E-VALUE when a scale is not finite; E-IO when the scale file cannot be written.
  MmQuantisedForward read();

 private:
  void set_memory();
  void load_static_scales();
  void observe_earlier_forwards();
  void observe(std::size_t layer, int position, const std::array<MmSource, 3>& sources);
  void multiply_scales();
  void expand_v_scale();
  void reset_counters();
  std::vector<float> read_scales();
  void save_scales(const std::vector<float>& scales);

  const Problem& problem_;
  Ops& ops_;
  DeviceBuffers memory_;
  std::array<MmSource, 3> sources_;
  int padded_;
  bool dynamic_;
  bool save_pending_;
  int position_ = 0;  // of the measured forward in the ring
  std::array<bool, 3> skip_{};
  float query_scale_ = 1;  // loaded; dynamic ones are on the device only
  std::array<unsigned char*, 3> codes_{};
  std::int64_t num_layers_;          // whose scales are made
  float* amax_ = nullptr;            // [3]
  float* history_ = nullptr;         // [layers, 3, 16]
  float* scale_ = nullptr;           // [layers, 3]
  const attn::i64* zero_ = nullptr;  // [1]
  attn::i64* saturated_ = nullptr;   // [3]
  float* kv_scales_ = nullptr;       // [2, Hk]: k_scale (dynamic: times q_scale), v_scale
};

}  // namespace attnbench
