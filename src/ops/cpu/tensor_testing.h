// Random tensors and exact expectations for the tests of the CPU operations.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "kernels/params.h"
#include "ops/operation_table.h"

namespace attnbench::cpu {

/// About normal with deviation `magnitude`, the same on every machine.
inline Tensor random_tensor(Dtype dtype, std::vector<std::int64_t> shape, std::uint64_t seed,
                            float magnitude = 1.0f) {
  Tensor tensor(dtype, std::move(shape));
  std::mt19937_64 random(seed);
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    float sum = -6.0f;
    for (int k = 0; k < 12; ++k) sum += static_cast<float>(random() >> 40) * 0x1p-24f;
    tensor.set(i, magnitude * sum);
  }
  return tensor;
}

/// Bytes 0xFF: NaN in every float format.
inline Tensor poisoned_tensor(Dtype dtype, std::vector<std::int64_t> shape) {
  Tensor tensor(dtype, std::move(shape));
  if (tensor.size_bytes() > 0) std::memset(tensor.bytes(), 0xFF, tensor.size_bytes());
  return tensor;
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.size_bytes() == b.size_bytes() &&
         (a.empty() || std::memcmp(a.bytes(), b.bytes(), a.size_bytes()) == 0);
}

/// Half a step of `dtype` at `value`, and `slack` for what the f32 sum before it may be off.
inline double rounding_error(Dtype dtype, double value, double slack) {
  const int bits = dtype == Dtype::kF32 ? 24 : (dtype == Dtype::kF16 ? 11 : 8);
  return std::fabs(value) * std::ldexp(1.0, -bits) + slack;
}

}  // namespace attnbench::cpu
