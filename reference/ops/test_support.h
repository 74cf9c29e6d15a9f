// What the tests of this folder share: tensors from values, values by name, expected errors.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"

namespace attnbench::ops_test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline Tensor tensor_of(const std::vector<float>& values, std::vector<std::int64_t> shape,
                        Dtype dtype = Dtype::kF32) {
  return convert(Tensor::from_f32(values, std::move(shape)), dtype);
}

/// Repeatable values in [-1, 1) with no pattern that a group or tile size could hide.
inline std::vector<float> noise(std::size_t count, std::uint32_t seed = 1) {
  std::vector<float> values(count);
  std::uint32_t state = seed * 2654435761u + 12345u;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
  }
  return values;
}

/// Class of the error that `action` throws, or nothing.
template <typename Action>
std::optional<ErrorKind> error_of(Action action, std::string* message = nullptr) {
  try {
    action();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.kind();
  }
  return std::nullopt;
}

}  // namespace attnbench::ops_test
