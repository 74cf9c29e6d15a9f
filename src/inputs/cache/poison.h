// Poison: bytes that show when something reads what it must not, or leaves out what it must write.
// Everything that a case hands out and that a correct step ignores is filled with it (unused slots
// of a cache, padding rows), so that reading past a limit ends in a NaN and not in a number that is
// nearly right, and is found however small its share of the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace attnbench {

/// Fills a tensor with bytes that turn a result into NaN when they are read as data: quiet NaN
/// codes of both signs in turn, for e5m2 a NaN and an infinity in turn. 8-bit integers have no NaN:
/// 127 and -128 in turn. Errors: E-INTERNAL for 32- and 64-bit integers, which hold indices.
void fill_poison(Tensor& tensor);
/// The same for `size_bytes` bytes that are read as `dtype`, for a buffer whose parts are of
/// different types.
void fill_poison(Dtype dtype, std::byte* bytes, std::size_t size_bytes);

/// An output before it is written: 0xFF, NaN in every float format, or the code -128, which no
/// quantiser gives, in int8. An element that should be written and is not is then found.
Tensor poisoned_tensor(Dtype dtype, std::vector<std::int64_t> shape);

}  // namespace attnbench
