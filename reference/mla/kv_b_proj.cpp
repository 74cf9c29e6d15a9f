// Plain loops over elements: this runs once for a case. W_UV is transposed on the way, since the
// matrix has a row for each value element and the product with latent outputs wants a column.
#include "reference/mla/kv_b_proj.h"

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

Tensor join_kv_b_proj(const Tensor& w_uk, const Tensor& w_uv) {
  if (w_uk.shape().size() != 3 || w_uv.shape().size() != 3) {
    fail(ErrorKind::kShape, "w_uk and w_uv: expected rank 3, got {} and {}", w_uk.shape().size(),
         w_uv.shape().size());
  }
  if (w_uk.dim(0) != w_uv.dim(0) || w_uk.dim(2) != w_uv.dim(1)) {
    fail(ErrorKind::kShape, "w_uv: expected [{}, {}, V] like w_uk, got [{}, {}, V]", w_uk.dim(0),
         w_uk.dim(2), w_uv.dim(0), w_uv.dim(1));
  }
  if (w_uk.dtype() != w_uv.dtype()) {
    fail(ErrorKind::kDtype, "w_uv: expected {} like w_uk, got {}", dtype_name(w_uk.dtype()),
         dtype_name(w_uv.dtype()));
  }
  const std::int64_t num_heads = w_uk.dim(0);
  const std::int64_t nope = w_uk.dim(1);
  const std::int64_t latent = w_uk.dim(2);
  const std::int64_t v_dim = w_uv.dim(2);
  Tensor joined(w_uk.dtype(), {num_heads * (nope + v_dim), latent});
  const std::size_t size = dtype_size(w_uk.dtype());
  const auto copy = [&](const Tensor& source, std::int64_t from, std::int64_t to,
                        std::int64_t count) {
    std::memcpy(joined.bytes() + static_cast<std::size_t>(to) * size,
                source.bytes() + static_cast<std::size_t>(from) * size,
                static_cast<std::size_t>(count) * size);
  };
  for (std::int64_t head = 0; head < num_heads; ++head) {
    const std::int64_t first_row = head * (nope + v_dim);
    copy(w_uk, head * nope * latent, first_row * latent, nope * latent);
    for (std::int64_t v = 0; v < v_dim; ++v) {
      for (std::int64_t l = 0; l < latent; ++l) {
        copy(w_uv, (head * latent + l) * v_dim + v, (first_row + nope + v) * latent + l, 1);
      }
    }
  }
  return joined;
}

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

Tensor dequantise_kv_b_proj(const Tensor& codes, const Tensor& scales, std::optional<int> block,
                            Dtype dtype) {
  require_rank(codes, 2, "kv_b_proj");
  if (codes.dtype() != Dtype::kE4M3 || scales.dtype() != Dtype::kF32) {
    fail(ErrorKind::kDtype, "kv_b_proj: expected float8_e4m3 with scales of float32, got {} and {}",
         dtype_name(codes.dtype()), dtype_name(scales.dtype()));
  }
  const std::int64_t rows = codes.dim(0);
  const std::int64_t columns = codes.dim(1);
  const auto blocks = [&block](std::int64_t extent) {
    return block ? (extent + *block - 1) / *block : 1;
  };
  if (scales.num_elements() != blocks(rows) * blocks(columns)) {
    fail(ErrorKind::kShape, "kv_b_proj_scale: expected {} scales, got {}",
         blocks(rows) * blocks(columns), scales.num_elements());
  }
  Tensor result(dtype, codes.shape());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t at = row * columns + column;
      const std::int64_t scale =
          block ? row / *block * blocks(columns) + column / *block : std::int64_t{0};
      result.set(at, codes.at(at) * scales.at(scale));
    }
  }
  return result;
}

}  // namespace attnbench
