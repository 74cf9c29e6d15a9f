// The checks, in the order in which a reader would make them: ranks and types, extents that must
// agree, lengths of the batch, rows. Each message names the argument, what was expected and found.
#include "reference/mla/inputs.h"

#include <string>
#include <string_view>

#include "core/error.h"

namespace attnbench {
namespace {

void check_extent(std::string_view name, std::int64_t expected, std::int64_t actual) {
  if (expected != actual) {
    fail(ErrorKind::kShape, "{}: expected {}, got {}", name, expected, actual);
  }
}

void check_at_least(std::string_view name, std::int64_t least, std::int64_t actual) {
  if (actual < least) {
    fail(ErrorKind::kShape, "{}: expected at least {}, got {}", name, least, actual);
  }
}

void check_tensor(std::string_view name, const Tensor* tensor, std::size_t rank) {
  if (tensor == nullptr || tensor->shape().size() != rank) {
    fail(ErrorKind::kShape, "{}: expected a tensor of rank {}, got {}", name, rank,
         tensor == nullptr ? "none" : "rank " + std::to_string(tensor->shape().size()));
  }
  if (!is_floating(tensor->dtype())) {
    fail(ErrorKind::kDtype, "{}: expected a floating type, got {}", name,
         dtype_name(tensor->dtype()));
  }
}

MlaDims check_weights(const MlaReferenceInputs& inputs) {
  check_tensor("query", inputs.query, 3);
  check_tensor("w_uk", inputs.w_uk, 3);
  check_tensor("w_uv", inputs.w_uv, 3);
  MlaDims dims;
  dims.num_heads = inputs.w_uk->dim(0);
  dims.qk_nope_head_dim = inputs.w_uk->dim(1);
  dims.kv_lora_rank = inputs.w_uk->dim(2);
  dims.qk_rope_head_dim = inputs.query->dim(2) - dims.qk_nope_head_dim;
  dims.v_head_dim = inputs.w_uv->dim(2);
  check_extent("query heads", dims.num_heads, inputs.query->dim(1));
  check_at_least("query head size", dims.qk_nope_head_dim, inputs.query->dim(2));
  check_extent("w_uv heads", dims.num_heads, inputs.w_uv->dim(0));
  check_extent("w_uv kv_lora_rank", dims.kv_lora_rank, inputs.w_uv->dim(1));
  return dims;
}

void check_latents(std::string_view name, const Tensor* tensor, std::int64_t width,
                   const MlaReferenceInputs& inputs) {
  check_tensor(name, tensor, 2);
  check_extent(name, width, tensor->dim(1));
  for (std::size_t b = 0; b < inputs.seq_lens.size(); ++b) {
    check_at_least(name, inputs.key_start_loc[b] + inputs.seq_lens[b], tensor->dim(0));
  }
}

void check_sparse(const MlaReferenceInputs& inputs, std::int64_t num_tokens) {
  const Tensor* indices = inputs.topk_indices;
  if (indices == nullptr) return;
  if (indices->dtype() != Dtype::kI32) {
    fail(ErrorKind::kDtype, "topk_indices: expected int32, got {}", dtype_name(indices->dtype()));
  }
  check_extent("topk_indices rank", 2, static_cast<std::int64_t>(indices->shape().size()));
  check_at_least("topk_indices rows", num_tokens, indices->dim(0));
  if (!inputs.topk_lengths.empty()) {
    check_extent("topk_lengths", num_tokens, static_cast<std::int64_t>(inputs.topk_lengths.size()));
  }
}

void check_latent_query(const MlaReferenceInputs& inputs, const MlaDims& dims) {
  if (inputs.latent_query == nullptr) return;
  check_tensor("latent_query", inputs.latent_query, 3);
  const bool sparse = inputs.topk_indices != nullptr;
  check_at_least("latent_query rows",
                 sparse ? inputs.query_start_loc.back() : inputs.num_decode_tokens,
                 inputs.latent_query->dim(0));
  check_extent("latent_query heads", dims.num_heads, inputs.latent_query->dim(1));
  check_extent("latent_query head size", dims.entry_size(), inputs.latent_query->dim(2));
}

void check_rows(std::span<const std::int32_t> rows, std::int64_t num_tokens) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool ascending = i == 0 || rows[i - 1] < rows[i];
    if (!ascending || rows[i] < 0 || rows[i] >= num_tokens) {
      fail(ErrorKind::kValue, "rows: expected ascending indices below {}, got {} at {}", num_tokens,
           rows[i], i);
    }
  }
}

}  // namespace

MlaDims check_mla_inputs(const MlaReferenceInputs& inputs, std::span<const std::int32_t> rows) {
  const MlaDims dims = check_weights(inputs);
  const auto num_requests = static_cast<std::int64_t>(inputs.seq_lens.size());
  check_extent("query_start_loc", num_requests + 1,
               static_cast<std::int64_t>(inputs.query_start_loc.size()));
  check_at_least("key_start_loc", num_requests,
                 static_cast<std::int64_t>(inputs.key_start_loc.size()));
  const std::int64_t num_tokens = inputs.query_start_loc.back();
  check_at_least("query rows", num_tokens, inputs.query->dim(0));
  check_latents("kv_c", inputs.kv_c, dims.kv_lora_rank, inputs);
  check_latents("k_pe", inputs.k_pe, dims.qk_rope_head_dim, inputs);
  if (inputs.kv_c_unquantized != nullptr || inputs.k_pe_unquantized != nullptr) {
    check_latents("kv_c_unquantized", inputs.kv_c_unquantized, dims.kv_lora_rank, inputs);
    check_latents("k_pe_unquantized", inputs.k_pe_unquantized, dims.qk_rope_head_dim, inputs);
  }
  check_sparse(inputs, num_tokens);
  check_latent_query(inputs, dims);
  check_rows(rows, num_tokens);
  num_mla_decodes(inputs);
  return dims;
}

std::int64_t num_mla_decodes(const MlaReferenceInputs& inputs) {
  const auto num_requests = static_cast<std::int64_t>(inputs.seq_lens.size());
  if (inputs.topk_indices != nullptr) return num_requests;
  std::int64_t count = 0;
  while (count < num_requests &&
         inputs.query_start_loc[static_cast<std::size_t>(count) + 1] <= inputs.num_decode_tokens) {
    ++count;
  }
  if (inputs.query_start_loc[static_cast<std::size_t>(count)] != inputs.num_decode_tokens) {
    fail(ErrorKind::kValue, "num_decode_tokens: expected the end of a request, got {}",
         inputs.num_decode_tokens);
  }
  return count;
}

}  // namespace attnbench
