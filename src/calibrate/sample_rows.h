// Which sequences of a forward an attention error is taken over, and their rows in tensors of their
// own: float64 attention over a whole forward costs too much. Beside it what else is done with
// rows: their columns taken apart and joined. Bits are copied throughout.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"

namespace attnbench {

/// What a sample has: float64 attention over these many keys takes seconds at the most.
inline constexpr std::int64_t kSampleKeys = 2048;

/// Indices of the sequences of a sample, ascending: the first, the last, others by the seed until
/// their keys are kSampleKeys; those without queries never.
std::vector<std::size_t> sample_requests(const std::vector<Request>& batch, std::uint64_t seed);

/// Rows of the `chosen` requests, in their order, of `source` [sum of lengths, H, D], in a type
/// that models compute in; `length` is the member that says how many rows a request has.
Tensor rows_of_requests(Tensor source, const std::vector<Request>& batch,
                        const std::vector<std::size_t>& chosen, std::int64_t Request::*length);

/// Of a type that models compute in, which operations and references take: others become float32.
Tensor in_model_type(Tensor tensor);

/// Columns [begin, begin + shape.back()) of the rows of `source`; `shape` is that of the result.
Tensor columns_of(const Tensor& source, std::int64_t begin, const std::vector<std::int64_t>& shape);

/// Rows [a] of `first` and [b] of `second`, of one type, side by side: `shape` with a + b at its
/// end.
Tensor side_by_side(const Tensor& first, const Tensor& second, std::vector<std::int64_t> shape);

/// Rows `rows` of [T, ...], and back to their places in [num_rows, ...]: between rows that are not
/// read. The place of a row is its index in the source.
Tensor pick_rows(const Tensor& source, const std::vector<std::int32_t>& rows);
Tensor spread_rows(const Tensor& picked, const std::vector<std::int32_t>& rows,
                   std::int64_t num_rows);

}  // namespace attnbench
