#include "reference/ops/mla_query.h"

#include <atomic>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "metadata/validation.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {
namespace {

constexpr std::int64_t kRowsPerTask = 256;

/// Row (token, head) of a part of the query.
void load_part(const Tensor& part, std::int64_t row, float* values) {
  const std::int64_t width = part.dim(2);
  const auto row_bytes = width * static_cast<std::int64_t>(dtype_size(part.dtype()));
  load_floats(part.dtype(), part.bytes() + row * row_bytes, width, values);
}

}  // namespace

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
  for_each_chunk(ql_nope.dim(0) * ql_nope.dim(1), kRowsPerTask, quantise_rows);
  result.saturated = saturated;
  return result;
}

}  // namespace attnbench
