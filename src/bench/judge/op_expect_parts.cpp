#include "bench/judge/op_expect_parts.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "reference/attention.h"

namespace attnbench {

OpExpectation equal(std::string name, std::string rule, Tensor bytes) {
  OpExpectation expected;
  expected.name = std::move(name);
  expected.rule = std::move(rule);
  expected.exact = std::move(bytes);
  return expected;
}

OpExpectation close(std::string name, const Tolerance& tolerance, std::vector<double> values,
                    std::vector<double> emulated, Dtype storage, std::vector<std::int32_t> rows) {
  OpExpectation expected;
  expected.name = std::move(name);
  expected.by_values = true;
  expected.tolerance = tolerance;
  expected.values = std::move(values);
  for_each_chunk(static_cast<std::int64_t>(emulated.size()), 1 << 16,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     double& value = emulated[static_cast<std::size_t>(i)];
                     value = round_to(storage, static_cast<float>(value));
                   }
                 });
  expected.emulated = std::move(emulated);
  expected.rows = std::move(rows);
  return expected;
}

OpExpectation close_lse(MergedState state, MergedState emulated, std::vector<std::int32_t> rows) {
  OpExpectation expected = close("lse", lse_tolerance(Dtype::kF32), std::move(state.lse),
                                 std::move(emulated.lse), Dtype::kF32, std::move(rows));
  expected.is_lse = true;
  return expected;
}

namespace {

// Doubles of expected and emulated values that are affordable: 1 GiB.
constexpr std::int64_t kMostElements = std::int64_t{1} << 26;
constexpr std::int64_t kTokensPerTask = 64;

}  // namespace

std::vector<std::int32_t> all_rows(std::int64_t count) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
  return rows;
}

std::vector<std::int32_t> checked_rows(const Problem& problem, std::int64_t row_elements) {
  const std::int64_t tokens = problem.num_tokens();
  const std::int64_t most =
      std::max<std::int64_t>(1, kMostElements / std::max<std::int64_t>(1, row_elements));
  Problem sampled = problem;
  if (!problem.validation.max_rows) sampled.validation.max_rows = most;
  if (*sampled.validation.max_rows >= tokens) return all_rows(tokens);
  return select_rows(sampled, problem.inputs.seed);
}

Tensor slice(const Tensor& x, std::int64_t first_head, std::int64_t heads, std::int64_t first,
             std::int64_t count) {
  Tensor part(x.dtype(), {x.dim(0), heads, count});
  const std::size_t size = dtype_size(x.dtype());
  const std::size_t bytes = static_cast<std::size_t>(count) * size;
  for_each_chunk(x.dim(0), kTokensPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::byte* next = part.bytes() + static_cast<std::size_t>(begin * heads) * bytes;
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t h = first_head; h < first_head + heads; ++h) {
        const std::int64_t from = (t * x.dim(1) + h) * x.dim(2) + first;
        std::memcpy(next, x.bytes() + static_cast<std::size_t>(from) * size, bytes);
        next += bytes;
      }
    }
  });
  return part;
}

}  // namespace attnbench
