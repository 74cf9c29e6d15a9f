#include "reference/ops/mla_query.h"

#include "core/error.h"
#include "metadata/validation.h"
#include "reference/ops/number_formats.h"

namespace attnbench {

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
  auto* codes = result.codes.data<std::uint8_t>();
  for (std::int64_t row = 0; row < ql_nope.dim(0) * ql_nope.dim(1); ++row) {
    for (const Tensor* part : {&ql_nope, &q_pe}) {
      for (float value : load_row(*part, row * part->dim(2), part->dim(2))) {
        const float y = scaled_by(value, factor);
        result.saturated += saturates_e4m3(y) ? 1 : 0;
        *codes++ = rn_e4m3(y);
      }
    }
  }
  return result;
}

}  // namespace attnbench
