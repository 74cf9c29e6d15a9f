// Cache bytes from the cells of what a correct write stores; rotations in float64 by the reference,
// with its float32 form as the emulation.
#include "bench/judge/op_expect_cache.h"

#include <algorithm>
#include <cstring>

#include "core/system/parallel.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/cache/mla_cache.h"
#include "inputs/cache/paged_cache.h"
#include "inputs/cache/poison.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "reference/mla/cache_entry.h"
#include "reference/ops/rope.h"

namespace attnbench {
namespace {

constexpr std::int64_t kRotatedPerTask = 64;

/// The cache after a correct write of every new position, from the cells of `stored`; `key_scales`
/// becomes that of the scales. Ranks of a group have their caches, and their slots, one after
/// another.
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

/// The cache of latents after a correct write of every new position.
Tensor written_entries(const OpInputs& inputs, const Tensor& entries) {
  const Problem& base = inputs.base;
  Tensor expected = inputs.mla_cache.data;
  const std::size_t bytes = static_cast<std::size_t>(entries.dim(1)) * dtype_size(entries.dtype());
  const auto footer = static_cast<std::size_t>(footer_bytes(base.kv_cache.dtype));
  const std::int64_t block_size = base.kv_cache.block_size;
  const std::int64_t* slot = inputs.mla_cache.slot_mapping.data<std::int64_t>();
  const std::vector<PositionRange> fresh = new_key_ranges(base);
  const std::vector<std::int64_t> starts = first_rows(base);
  for (std::size_t b = 0; b < fresh.size(); ++b) {
    for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p, ++slot) {
      const std::int64_t block = *slot / block_size;
      place_entry(entries.bytes() + static_cast<std::size_t>(starts[b] + p) * bytes, bytes, footer,
                  block_size, *slot % block_size,
                  expected.bytes() + static_cast<std::size_t>(block * block_size) * bytes);
    }
  }
  return expected;
}

/// Semantics §12.2.
Tolerance rope_tolerance(Dtype dtype) {
  Tolerance tolerance;
  tolerance.rule = "semantics 12 RoPE " + std::string(dtype_name(dtype));
  tolerance.atol = dtype == Dtype::kF32 ? 1e-5 : 1e-3;
  tolerance.rtol = dtype == Dtype::kF32 ? 1.3e-6 : (dtype == Dtype::kF16 ? 1e-3 : 1.6e-2);
  return tolerance;
}

/// All of x after the rotation of its columns [first, first + count) in the heads [0, heads).
OpExpectation expect_rotated(const Problem& problem, const OpInputs& inputs, std::string name,
                             const Tensor& x, std::int64_t heads, std::int64_t first,
                             std::int64_t count) {
  const Tensor& positions = inputs.at("positions");
  const std::span<const std::int64_t> at{positions.data<std::int64_t>(),
                                         static_cast<std::size_t>(positions.num_elements())};
  const RopeStyle style =
      problem.op.rope_style == RopePairs::kNeox ? RopeStyle::kNeox : RopeStyle::kGptJ;
  const Tensor& table = inputs.at("cos_sin_cache");
  Tensor part = slice(x, 0, heads, first, count);
  const std::vector<double> exact = rotated_rows(at, table, style, part);
  apply_rope(at, table, style, part);
  std::vector<double> values(static_cast<std::size_t>(x.num_elements()));
  std::vector<double> emulated(values.size());
  const std::int64_t row_size = x.dim(1) * x.dim(2);
  const auto expect_token = [&](std::int64_t t) {
    for (std::int64_t i = t * row_size; i < (t + 1) * row_size; ++i) {
      values[static_cast<std::size_t>(i)] = emulated[static_cast<std::size_t>(i)] = x.at(i);
    }
    for (std::int64_t i = 0; i < heads * count; ++i) {
      const auto to =
          static_cast<std::size_t>(t * row_size + i / count * x.dim(2) + first + i % count);
      const std::int64_t from = t * heads * count + i;
      values[to] = exact[static_cast<std::size_t>(from)];
      emulated[to] = part.at(from);
    }
  };
  for_each_chunk(x.dim(0), kRotatedPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) expect_token(t);
  });
  return close(std::move(name), rope_tolerance(x.dtype()), std::move(values), std::move(emulated),
               x.dtype(), all_rows(x.dim(0)));
}

/// K and V whose new keys are those that the operation rotated.
StoredKv stored_with(const Problem& problem, const OpInputs& inputs, const Tensor& rotated) {
  AttentionInputs after = inputs.attention;
  const AttentionSpec& a = problem.attention;
  const std::size_t bytes = static_cast<std::size_t>(a.num_kv_heads) *
                            static_cast<std::size_t>(a.head_size) * dtype_size(a.dtype);
  const Tensor keys = slice(rotated, a.num_heads, a.num_kv_heads, 0, a.head_size);
  const std::vector<PositionRange> fresh = new_key_ranges(inputs.base);
  const std::vector<std::int64_t> starts = first_rows(inputs.base);
  std::size_t row = 0;
  for (std::size_t b = 0; b < fresh.size(); ++b) {
    for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p, ++row) {
      std::memcpy(after.key.bytes() + static_cast<std::size_t>(starts[b] + p) * bytes,
                  keys.bytes() + row * bytes, bytes);
    }
  }
  return store_kv(after, inputs.store_rule);
}

/// The entries of a cache whose new k_pe are those that the operation rotated.
Tensor entries_with(const Problem& problem, const OpInputs& inputs, const Tensor& rotated) {
  Tensor k_pe = inputs.latents.k_pe;
  const std::size_t bytes =
      static_cast<std::size_t>(problem.mla.qk_rope_head_dim) * dtype_size(k_pe.dtype());
  const std::vector<PositionRange> fresh = new_key_ranges(inputs.base);
  const std::vector<std::int64_t> starts = first_rows(inputs.base);
  std::size_t row = 0;
  for (std::size_t b = 0; b < fresh.size(); ++b) {
    for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p, ++row) {
      std::memcpy(k_pe.bytes() + static_cast<std::size_t>(starts[b] + p) * bytes,
                  rotated.bytes() + row * bytes, bytes);
    }
  }
  const auto k_scale = static_cast<float>(problem.kv_cache.k_scale.at(0));
  return store_mla_cache(inputs.latents.kv_c, k_pe, problem.kv_cache.dtype, k_scale).codes;
}

}  // namespace

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

OpExpectations expect_mla_cache_write(const OpInputs& inputs) {
  OpExpectations expected;
  expected.outputs.push_back(equal("kv_cache", "semantics 8.4.1, 8.4.3, 8.4.6: cache bytes",
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
  expected.outputs.push_back(
      equal("output", "semantics 8.4.2 to 8.4.4, 8.4.6: gathered bytes", rows));
  return expected;
}

OpExpectations expect_rope(const Problem& problem, const OpInputs& inputs,
                           const PipelineOutput* output) {
  const AttentionSpec& a = problem.attention;
  const Tensor& rows = inputs.at("projection");
  OpExpectations expected;
  expected.outputs.push_back(expect_rotated(problem, inputs, "output", rows,
                                            a.num_heads + a.num_kv_heads, 0, a.head_size));
  if (problem.op.name == OpKind::kRope || output == nullptr) return expected;
  const StoredKv stored = stored_with(problem, inputs, output->output);
  expected.outputs.push_back(equal("kv_cache", "semantics 12.2: bytes of the rotated keys",
                                   written_cache(inputs, stored, nullptr)));
  return expected;
}

OpExpectations expect_mla_rope(const Problem& problem, const OpInputs& inputs,
                               const PipelineOutput* output) {
  const MlaSpec& mla = problem.mla;
  OpExpectations expected;
  expected.outputs.push_back(expect_rotated(problem, inputs, "output", inputs.at("query"),
                                            problem.attention.num_heads, mla.qk_nope_head_dim,
                                            mla.qk_rope_head_dim));
  expected.outputs.push_back(
      expect_rotated(problem, inputs, "key_output", inputs.at("k_pe"), 1, 0, mla.qk_rope_head_dim));
  if (problem.op.name == OpKind::kRope || output == nullptr) return expected;
  for (const auto& [name, tensor] : output->more) {
    if (name != "key_output") continue;
    expected.outputs.push_back(
        equal("kv_cache", "semantics 12.2: entries of the rotated k_pe",
              written_entries(inputs, entries_with(problem, inputs, tensor))));
  }
  return expected;
}

}  // namespace attnbench
