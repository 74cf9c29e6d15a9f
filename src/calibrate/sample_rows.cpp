// The sample is drawn by numbers that the standard fixes, so that it is the same on every machine.
#include "calibrate/sample_rows.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

namespace attnbench {
namespace {

/// Rows [begin, begin + count) of `source` behind the rows that `target` has up to `at`.
void copy_rows(const Tensor& source, std::int64_t begin, std::int64_t count, std::int64_t at,
               Tensor& target) {
  if (count == 0) return;
  const std::size_t row = target.size_bytes() / static_cast<std::size_t>(target.dim(0));
  std::memcpy(target.bytes() + static_cast<std::size_t>(at) * row,
              source.bytes() + static_cast<std::size_t>(begin) * row,
              static_cast<std::size_t>(count) * row);
}

}  // namespace

Tensor in_model_type(Tensor tensor) {
  const Dtype dtype = tensor.dtype();
  const bool is_model_type = dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16;
  return is_model_type ? std::move(tensor) : convert(tensor, Dtype::kF32);
}

std::vector<std::size_t> sample_requests(const std::vector<Request>& batch, std::uint64_t seed) {
  std::vector<std::size_t> order;
  for (std::size_t b = 0; b < batch.size(); ++b) {
    if (batch[b].query_len > 0) order.push_back(b);
  }
  std::mt19937_64 generator(seed);
  if (order.size() > 2) {
    std::swap(order[1], order.back());
    // Fisher-Yates: the numbers of the generator are fixed by the standard, std::shuffle is not.
    for (std::size_t i = order.size() - 1; i > 2; --i) {
      std::swap(order[i], order[2 + generator() % (i - 1)]);
    }
  }
  std::int64_t keys = 0;
  std::size_t count = 0;
  while (count < order.size() &&
         (count == 0 || keys + batch[order[count]].seq_len <= kSampleKeys)) {
    keys += batch[order[count++]].seq_len;
  }
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

Tensor rows_of_requests(Tensor source, const std::vector<Request>& batch,
                        const std::vector<std::size_t>& chosen, std::int64_t Request::*length) {
  if (chosen.size() == batch.size()) return in_model_type(std::move(source));
  std::int64_t total = 0;
  for (const std::size_t b : chosen) total += batch[b].*length;
  Tensor result(source.dtype(), {total, source.dim(1), source.dim(2)});
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::size_t next = 0;
  for (std::size_t b = 0; b < batch.size(); ++b) {
    if (next < chosen.size() && chosen[next] == b) {
      copy_rows(source, from, batch[b].*length, to, result);
      to += batch[b].*length;
      ++next;
    }
    from += batch[b].*length;
  }
  return in_model_type(std::move(result));
}

Tensor pick_rows(const Tensor& source, const std::vector<std::int32_t>& rows) {
  std::vector<std::int64_t> shape = source.shape();
  shape[0] = static_cast<std::int64_t>(rows.size());
  Tensor result(source.dtype(), shape);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    copy_rows(source, rows[i], 1, static_cast<std::int64_t>(i), result);
  }
  return result;
}

Tensor spread_rows(const Tensor& picked, const std::vector<std::int32_t>& rows,
                   std::int64_t num_rows) {
  std::vector<std::int64_t> shape = picked.shape();
  shape[0] = num_rows;
  Tensor result(picked.dtype(), shape);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    copy_rows(picked, static_cast<std::int64_t>(i), 1, rows[i], result);
  }
  return result;
}

Tensor columns_of(const Tensor& source, std::int64_t begin,
                  const std::vector<std::int64_t>& shape) {
  const std::int64_t row = source.shape().back();
  const std::int64_t width = shape.back();
  Tensor result(source.dtype(), shape);
  const std::size_t size = dtype_size(source.dtype());
  const std::int64_t rows = row == 0 ? 0 : source.num_elements() / row;
  for (std::int64_t i = 0; i < rows; ++i) {
    std::memcpy(result.bytes() + static_cast<std::size_t>(i * width) * size,
                source.bytes() + static_cast<std::size_t>(i * row + begin) * size,
                static_cast<std::size_t>(width) * size);
  }
  return result;
}

Tensor side_by_side(const Tensor& first, const Tensor& second, std::vector<std::int64_t> shape) {
  const std::int64_t a = first.shape().back();
  const std::int64_t b = second.shape().back();
  shape.back() = a + b;
  Tensor result(first.dtype(), shape);
  const std::size_t size = dtype_size(first.dtype());
  for (std::int64_t i = 0; i < result.num_elements() / (a + b); ++i) {
    std::byte* const row = result.bytes() + static_cast<std::size_t>(i * (a + b)) * size;
    std::memcpy(row, first.bytes() + static_cast<std::size_t>(i * a) * size,
                static_cast<std::size_t>(a) * size);
    std::memcpy(row + static_cast<std::size_t>(a) * size,
                second.bytes() + static_cast<std::size_t>(i * b) * size,
                static_cast<std::size_t>(b) * size);
  }
  return result;
}

}  // namespace attnbench
