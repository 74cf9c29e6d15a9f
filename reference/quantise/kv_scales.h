// Scales of an fp8 cache from the largest values of one forward pass (semantics §5.4), what
// `kv_cache.calculate_kv_scales` of a scenario means. vLLM does this once, in the first pass of a
// model, and keeps the scales for good; a case here is such a first pass. Unlike those of scale
// files (docs/calibration.md) they come without a margin: the ranges below leave room instead.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace attnbench {

/// What the largest value is divided by; missing = 1. vLLM has them as environment variables
/// (Q_SCALE_CONSTANT, K_SCALE_CONSTANT, V_SCALE_CONSTANT) with these defaults.
struct KvScaleRanges {
  std::optional<int> query = 200;
  std::optional<int> key = 200;
  std::optional<int> value = 100;
};

/// Multipliers for dequantising, one for each whole tensor.
struct CalculatedKvScales {
  float query = 1.0f;
  float key = 1.0f;
  float value = 1.0f;
  std::vector<std::string> warnings;  // one for each scale that would have been 0 and is 1.0
};

/// amax|x| / range of each, in f32. E-VALUE when a tensor holds NaN or infinity, E-CONFIG for a
/// range below 1.
CalculatedKvScales calculate_kv_scales(const Tensor& query, const Tensor& key, const Tensor& value,
                                       const KvScaleRanges& ranges = {});

/// MLA: key and value scale both come from the normalised latent; k_pe is not looked at.
CalculatedKvScales calculate_mla_kv_scales(const Tensor& query, const Tensor& kv_c_normed,
                                           const KvScaleRanges& ranges = {});

}  // namespace attnbench
