#include "reference/ops/mla_weights.h"

#include <cstring>

#include "core/error.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {
namespace {

void copy_element(const Tensor& source, std::int64_t from, Tensor& destination, std::int64_t to) {
  const std::size_t size = dtype_size(source.dtype());
  std::memcpy(destination.bytes() + static_cast<std::size_t>(to) * size,
              source.bytes() + static_cast<std::size_t>(from) * size, size);
}

}  // namespace

MlaWeights split_kv_b_proj(const Tensor& kv_b_proj, std::int64_t num_heads,
                           std::int64_t kv_lora_rank, std::int64_t qk_nope_head_dim,
                           std::int64_t v_head_dim) {
  require_activation(kv_b_proj.dtype(), "kv_b_proj");
  require_rank(kv_b_proj, 2, "kv_b_proj");
  const std::int64_t head_rows = qk_nope_head_dim + v_head_dim;
  if (kv_b_proj.dim(0) != num_heads * head_rows || kv_b_proj.dim(1) != kv_lora_rank) {
    fail(ErrorKind::kShape, "kv_b_proj must be [{}, {}], got [{}, {}]", num_heads * head_rows,
         kv_lora_rank, kv_b_proj.dim(0), kv_b_proj.dim(1));
  }
  MlaWeights weights{Tensor(kv_b_proj.dtype(), {num_heads, qk_nope_head_dim, kv_lora_rank}),
                     Tensor(kv_b_proj.dtype(), {num_heads, kv_lora_rank, v_head_dim})};
  for (std::int64_t row = 0; row < kv_b_proj.dim(0); ++row) {
    const std::int64_t head = row / head_rows;
    const std::int64_t p = row % head_rows;       // a row of K while p < P
    const std::int64_t v = p - qk_nope_head_dim;  // then a row of V
    for (std::int64_t l = 0; l < kv_lora_rank; ++l) {
      const std::int64_t from = row * kv_lora_rank + l;
      if (v < 0) {
        copy_element(kv_b_proj, from, weights.w_uk_t,
                     (head * qk_nope_head_dim + p) * kv_lora_rank + l);
      } else {
        copy_element(kv_b_proj, from, weights.w_uv, (head * kv_lora_rank + l) * v_head_dim + v);
      }
    }
  }
  return weights;
}

}  // namespace attnbench
