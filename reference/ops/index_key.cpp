#include "reference/ops/index_key.h"

#include <algorithm>

#include "reference/quantise/number_formats.h"

namespace attnbench {

IndexKey quantise_index_key(std::span<const float, kIndexKeySize> key, bool ue8m0) {
  IndexKey result;
  const float scale = std::max(max_abs(key), 1e-4f) / kE4m3Max;
  result.scale = ue8m0 ? ue8m0_scale(scale) : scale;
  for (std::size_t i = 0; i < key.size(); ++i) result.codes[i] = rn_e4m3(key[i] / result.scale);
  return result;
}

}  // namespace attnbench
