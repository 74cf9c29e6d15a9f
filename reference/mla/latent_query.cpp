// The projection sums in f32 in ascending order of P with a product and a sum rounded each; the
// build forbids contraction to fused multiply-adds (-ffp-contract=off), which would change bits.
#include "reference/mla/latent_query.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/system/parallel.h"
#include "metadata/validation.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {
namespace {

void check_arguments(const Tensor& query, const Tensor& w_uk, std::int64_t num_tokens) {
  require_rank(query, 3, "query");
  require_rank(w_uk, 3, "w_uk");
  require_activation(query.dtype(), "query");
  require_activation(w_uk.dtype(), "w_uk");
  if (query.dim(0) < num_tokens || query.dim(1) != w_uk.dim(0) || query.dim(2) < w_uk.dim(1)) {
    fail(ErrorKind::kShape, "query: expected [>={}, {}, >={}], got [{}, {}, {}]", num_tokens,
         w_uk.dim(0), w_uk.dim(1), query.dim(0), query.dim(1), query.dim(2));
  }
}

/// The last R of every head, bits as they are.
Tensor rope_part(const Tensor& query, std::int64_t nope, std::int64_t num_tokens) {
  const std::int64_t width = query.dim(2);
  Tensor rope(query.dtype(), {num_tokens, query.dim(1), width - nope});
  const std::size_t size = dtype_size(query.dtype());
  for (std::int64_t row = 0; row < num_tokens * query.dim(1); ++row) {
    std::memcpy(rope.bytes() + static_cast<std::size_t>(row * rope.dim(2)) * size,
                query.bytes() + static_cast<std::size_t>(row * width + nope) * size,
                static_cast<std::size_t>(rope.dim(2)) * size);
  }
  return rope;
}

constexpr std::int64_t kQueriesPerTask = 256;

/// Row (token, head) of a part of the query.
void load_part(const Tensor& part, std::int64_t row, float* values) {
  const std::int64_t width = part.dim(2);
  const auto row_bytes = width * static_cast<std::int64_t>(dtype_size(part.dtype()));
  load_floats(part.dtype(), part.bytes() + row * row_bytes, width, values);
}

/// The code of a sum that is rounded to `dtype` first.
std::uint8_t code_of_sum(double sum, Dtype dtype, float factor) {
  return rn_e4m3(scaled_by(round_to(dtype, static_cast<float>(sum)), factor));
}

}  // namespace

Tensor project_mla_query(const Tensor& query, const Tensor& w_uk, std::int64_t num_tokens,
                         int num_threads) {
  check_arguments(query, w_uk, num_tokens);
  const std::int64_t num_heads = w_uk.dim(0);
  const std::int64_t nope = w_uk.dim(1);
  const std::int64_t latent = w_uk.dim(2);
  Tensor projected(query.dtype(), {num_tokens, num_heads, latent});
  ThreadPool pool(num_threads);
  pool.parallel_for(num_heads, [&](std::int64_t head, int) {
    const std::vector<float> weights = load_row(w_uk, head * nope * latent, nope * latent);
    std::vector<float> sums(static_cast<std::size_t>(latent));
    for (std::int64_t token = 0; token < num_tokens; ++token) {
      const std::int64_t row = token * num_heads + head;
      const std::vector<float> values = load_row(query, row * query.dim(2), nope);
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (std::size_t p = 0; p < values.size(); ++p) {
        const float* const weight = weights.data() + p * sums.size();
        for (std::size_t l = 0; l < sums.size(); ++l) sums[l] += values[p] * weight[l];
      }
      const auto row_bytes = latent * static_cast<std::int64_t>(dtype_size(projected.dtype()));
      store_floats(projected.dtype(), sums.data(), latent, projected.bytes() + row * row_bytes);
    }
  });
  return projected;
}

MlaLatentQuery quantise_latent_query(const Tensor& query, const Tensor& w_uk,
                                     std::int64_t num_tokens, float q_scale, int num_threads) {
  const Tensor projected = project_mla_query(query, w_uk, num_tokens, num_threads);
  MlaQuantisedQuery quantised =
      quantise_mla_query(projected, rope_part(query, w_uk.dim(1), num_tokens), q_scale);
  MlaLatentQuery result;
  result.saturated = quantised.saturated;
  result.codes = std::move(quantised.codes);
  result.dequantized = convert(result.codes, Dtype::kF32);
  float* const values = result.dequantized.data<float>();
  for_each_chunk(result.codes.num_elements(), 1 << 18, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) values[i] *= q_scale;
  });
  return result;
}

std::vector<MlaOtherCode> other_mla_codes(const Tensor& query, const Tensor& w_uk,
                                          const MlaLatentQuery& given, float q_scale,
                                          std::span<const std::int32_t> rows,
                                          std::span<const int> heads, std::size_t most) {
  check_arguments(query, w_uk, rows.empty() ? 0 : *std::max_element(rows.begin(), rows.end()) + 1);
  check_scale(q_scale, "q_scale");
  constexpr double kLeastShare = 1e-6;
  const std::int64_t num_heads = w_uk.dim(0);
  const std::int64_t nope = w_uk.dim(1);
  const std::int64_t latent = w_uk.dim(2);
  const float factor = 1.0f / q_scale;
  std::vector<MlaOtherCode> all;
  for (const int head : heads) {
    const std::vector<float> weights = load_row(w_uk, head * nope * latent, nope * latent);
    for (const std::int32_t token : rows) {
      const std::int64_t row = token * num_heads + head;
      const std::vector<float> values = load_row(query, row * query.dim(2), nope);
      const std::uint8_t* const codes = given.codes.data<std::uint8_t>() + row * given.codes.dim(2);
      std::vector<MlaOtherCode> of_row;
      for (std::int64_t column = 0; column < latent; ++column) {
        double sum = 0;
        double magnitude = 0;
        for (std::size_t p = 0; p < values.size(); ++p) {
          const double product =
              static_cast<double>(values[p]) *
              weights[p * static_cast<std::size_t>(latent) + static_cast<std::size_t>(column)];
          sum += product;
          magnitude += std::abs(product);
        }
        const double bound = 2 * static_cast<double>(nope) * std::ldexp(magnitude, -24);
        for (const double side : {-bound, bound}) {
          const auto other_at = [&](double share) {
            const std::uint8_t code = code_of_sum(sum + share * side, query.dtype(), factor);
            return code == codes[column] ? std::nullopt : std::optional(code);
          };
          if (!other_at(1)) continue;
          double share = 1;
          while (share > kLeastShare && other_at(share / 2)) share /= 2;
          of_row.push_back({token, head, column, e4m3_value(*other_at(share)) * q_scale, share});
        }
      }
      std::stable_sort(of_row.begin(), of_row.end(), [](const auto& a, const auto& b) {
        return a.needed_error < b.needed_error;
      });
      of_row.resize(std::min(of_row.size(), most));
      all.insert(all.end(), of_row.begin(), of_row.end());
    }
  }
  return all;
}

MlaQuantisedQuery quantise_mla_query(const Tensor& ql_nope, const Tensor& q_pe, float q_scale) {
  require_activation(ql_nope.dtype(), "ql_nope");
  require_rank(ql_nope, 3, "ql_nope");
  require_rank(q_pe, 3, "q_pe");
  check_scale(q_scale, "q_scale");
  if (q_pe.dtype() != ql_nope.dtype()) {
    fail(ErrorKind::kDtype, "q_pe must be {} like ql_nope, got {}", dtype_name(ql_nope.dtype()),
         dtype_name(q_pe.dtype()));
  }
  if (q_pe.dim(0) != ql_nope.dim(0) || q_pe.dim(1) != ql_nope.dim(1)) {
    fail(ErrorKind::kShape, "q_pe must be [{}, {}, R] like ql_nope, got [{}, {}, {}]",
         ql_nope.dim(0), ql_nope.dim(1), q_pe.dim(0), q_pe.dim(1), q_pe.dim(2));
  }
  const float factor = 1.0f / q_scale;
  MlaQuantisedQuery result{
      Tensor(Dtype::kE4M3, {ql_nope.dim(0), ql_nope.dim(1), ql_nope.dim(2) + q_pe.dim(2)})};
  const std::int64_t width = result.codes.dim(2);
  std::atomic<std::int64_t> saturated{0};
  const auto quantise_rows = [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(width));
    std::int64_t saturated_here = 0;
    for (std::int64_t row = begin; row < end; ++row) {
      load_part(ql_nope, row, values.data());
      load_part(q_pe, row, values.data() + ql_nope.dim(2));
      for (float& value : values) value = scaled_by(value, factor);
      saturated_here += round_row_to_e4m3(values, result.codes.data<std::uint8_t>() + row * width);
    }
    saturated += saturated_here;
  };
  for_each_chunk(ql_nope.dim(0) * ql_nope.dim(1), kQueriesPerTask, quantise_rows);
  result.saturated = saturated;
  return result;
}

}  // namespace attnbench
