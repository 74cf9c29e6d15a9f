// Caches that are written, and gathers out of them (semantics §5.1, §5.5, §8.4, §11.6).
#include <algorithm>
#include <cstring>

#include "bench/judge/op_expect_parts.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/cache/paged_cache.h"
#include "inputs/cache/poison.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "reference/mla/cache_entry.h"

namespace attnbench {

Tensor written_cache(const OpInputs& inputs, const StoredKv& stored, Tensor* key_scales) {
  const Problem& base = inputs.base;
  const PagedCache& cache = inputs.cache;
  Tensor expected = cache.data;
  const CellWriter cells(cache.layout, stored, base.kv_cache.block_size);
  const std::vector<PositionRange> fresh = new_key_ranges(base);
  const std::vector<std::int64_t> starts = first_rows(base);
  const auto ranks = static_cast<std::int64_t>(base.dcp.world_size);
  const std::int64_t per_rank = cache.slot_mapping.num_elements() / ranks;
  const auto rank_bytes = static_cast<std::int64_t>(cache.data.size_bytes()) / ranks;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t* slot = cache.slot_mapping.data<std::int64_t>() + rank * per_rank;
    std::byte* data = expected.bytes() + rank * rank_bytes;
    for (std::size_t b = 0; b < fresh.size(); ++b) {
      for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p, ++slot) {
        if (*slot < 0) continue;
        const std::int64_t block = *slot / base.kv_cache.block_size;
        const std::int64_t offset = *slot % base.kv_cache.block_size;
        cells.write_key(data + cells.key_plane(block), starts[b] + p, offset);
        cells.write_value(data + cells.value_plane(block), starts[b] + p, offset);
        if (key_scales == nullptr) continue;
        cells.write_key_scales(key_scales->data<float>() +
                                   block * base.kv_cache.block_size * base.attention.num_kv_heads,
                               starts[b] + p, offset);
      }
    }
  }
  return expected;
}

OpExpectations expect_cache_write(const OpInputs& inputs) {
  OpExpectations expected;
  if (inputs.base.kv_cache.int8_level == 0) {
    expected.outputs.push_back(equal("kv_cache", "semantics 5.1, 5.5: cache bytes",
                                     written_cache(inputs, inputs.stored, nullptr)));
    return expected;
  }
  Tensor scales = inputs.cache.key_scale_cache;
  Tensor cache = written_cache(inputs, inputs.stored, &scales);
  expected.outputs.push_back(equal("kv_cache", "semantics 11.6: cache bytes", std::move(cache)));
  expected.outputs.push_back(equal("key_scale_cache", "semantics 11.6: scales", std::move(scales)));
  return expected;
}

Tensor written_entries(const OpInputs& inputs, const Tensor& entries) {
  const Problem& base = inputs.base;
  Tensor expected = inputs.mla_cache.data;
  const std::size_t bytes = static_cast<std::size_t>(entries.dim(1)) * dtype_size(entries.dtype());
  const std::int64_t* slot = inputs.mla_cache.slot_mapping.data<std::int64_t>();
  const std::vector<PositionRange> fresh = new_key_ranges(base);
  const std::vector<std::int64_t> starts = first_rows(base);
  for (std::size_t b = 0; b < fresh.size(); ++b) {
    for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p, ++slot) {
      std::memcpy(expected.bytes() + static_cast<std::size_t>(*slot) * bytes,
                  entries.bytes() + static_cast<std::size_t>(starts[b] + p) * bytes, bytes);
    }
  }
  return expected;
}

OpExpectations expect_mla_cache_write(const OpInputs& inputs) {
  OpExpectations expected;
  expected.outputs.push_back(equal("kv_cache", "semantics 8.4.1, 8.4.3: cache bytes",
                                   written_entries(inputs, inputs.entries)));
  return expected;
}

OpExpectations expect_gather(const Problem& problem, const OpInputs& inputs) {
  const auto k_scale = static_cast<float>(problem.kv_cache.k_scale.at(0));
  const StoredMlaCache stored =
      store_mla_cache(inputs.latents.kv_c, inputs.latents.k_pe, problem.kv_cache.dtype, k_scale);
  const bool packed = is_packed(problem.kv_cache.dtype);
  const std::int64_t latent = problem.mla.kv_lora_rank;
  const std::int64_t width = latent + problem.mla.qk_rope_head_dim;
  const std::int64_t padding =
      packed || problem.op.raw ? 0
                               : inputs.at("token_to_seq").num_elements() - problem.num_tokens();
  const Dtype dtype = problem.op.raw ? stored.codes.dtype() : problem.attention.dtype;
  Tensor rows = poisoned_tensor(
      dtype, {problem.num_tokens() + padding, problem.op.raw ? stored.codes.dim(1) : width});
  const std::size_t raw_bytes =
      static_cast<std::size_t>(stored.codes.dim(1)) * dtype_size(stored.codes.dtype());
  std::int64_t t = 0;
  std::int64_t first = 0;
  for (const Request& request : problem.batch) {
    for (std::int64_t p = request.seq_len - request.query_len; p < request.seq_len; ++p, ++t) {
      const std::int64_t from = first + p;
      if (problem.op.raw) {
        std::memcpy(rows.bytes() + static_cast<std::size_t>(t) * raw_bytes,
                    stored.codes.bytes() + static_cast<std::size_t>(from) * raw_bytes, raw_bytes);
        continue;
      }
      for (std::int64_t d = 0; d < width; ++d) {
        rows.set(t * width + d,
                 d < latent ? stored.kv_c_dequantized.at(from * latent + d)
                            : stored.k_pe_dequantized.at(from * (width - latent) + d - latent));
      }
    }
    first += request.seq_len;
  }
  OpExpectations expected;
  expected.outputs.push_back(equal("output", "semantics 8.4.2 to 8.4.4: gathered bytes", rows));
  return expected;
}

}  // namespace attnbench
