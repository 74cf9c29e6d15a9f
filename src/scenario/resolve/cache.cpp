#include "scenario/resolve/cache.h"

#include <algorithm>

#include "metadata/int_math.h"

namespace attnbench {
namespace {

bool has_cache(AttentionType type) {
  return !is_encoder_type(type) && type != AttentionType::kMmEncoder;
}

void check_block_size(const CaseValues& values, const Problem& problem) {
  if (problem.kv_cache.block_size % 16 != 0) {
    values.reject(ErrorKind::kConfig, "kv_cache.block_size",
                  "Block size must be a multiple of 16. Found {}", problem.kv_cache.block_size);
  }
}

/// A 16-bit or 32-bit cache is a bit copy of the keys (§5.1), a packed entry a fixed struct
/// (§8.4.3).
void check_cache_dtype(const CaseValues& values, const Problem& problem) {
  constexpr std::string_view kKey = "kv_cache.dtype";
  const KvCacheDtype cache = problem.kv_cache.dtype;
  const Dtype model = problem.attention.dtype;
  if (!is_quantised(cache) && kv_element_dtype(cache, model) != model) {
    values.reject(ErrorKind::kDtype, kKey, "expected auto or the dtype of the keys, {}, found {}",
                  dtype_name(model), to_string(cache));
  }
  const bool latent = problem.attention.type == AttentionType::kMla || problem.op.mla;
  const std::optional<PackedEntry>& packed = kv_format(cache).packed;
  if (!packed || !latent) return;
  if (problem.mla.kv_lora_rank != packed->kv_lora_rank ||
      problem.mla.qk_rope_head_dim != packed->qk_rope_head_dim) {
    values.reject(ErrorKind::kShape, kKey,
                  "expected kv_lora_rank {} and qk_rope_head_dim {} for {}, found {} and {}",
                  packed->kv_lora_rank, packed->qk_rope_head_dim, to_string(cache),
                  problem.mla.kv_lora_rank, problem.mla.qk_rope_head_dim);
  }
  if (model != packed->source) {
    values.reject(ErrorKind::kDtype, kKey, "expected attention.dtype {} for {}, found {}",
                  dtype_name(packed->source), to_string(cache), dtype_name(model));
  }
}

void check_scale_list(const CaseValues& values, std::string_view key, const Problem& problem) {
  const Value* value = values.find(key);
  const auto heads = static_cast<std::size_t>(problem.attention.num_kv_heads);
  if (value == nullptr || !value->is_list() || value->items.size() == heads) return;
  values.reject(ErrorKind::kShape, key,
                "expected one number or num_kv_heads = {} of them, found {}", heads,
                value->items.size());
}

/// Why an error: a scale file that is silently ignored would be taken for one that was used.
void check_scale_file(const CaseValues& values, const Problem& problem) {
  constexpr std::string_view kKey = "kv_cache.scale_file";
  const KvCacheSpec& cache = problem.kv_cache;
  if (!cache.scale_file) return;
  const bool has_scales =
      has_cache(problem.attention.type) && cache.int8_level == 0 && has_tensor_scales(cache.dtype);
  if (!has_scales) {
    values.reject(
        ErrorKind::kConfig, kKey, "expected a KV cache of dtype {} with it, found {} for type {}",
        kv_format_names([](const KvFormat& format) { return has_tensor_scales(format.value); }),
        to_string(cache.dtype), to_string(problem.attention.type));
  }
  if (cache.calculate_kv_scales) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected calculate_kv_scales false with it (the scales are the file's), found "
                  "true");
  }
}

/// §5.4: the scales are those of the data, or given.
void check_calculated_scales(const CaseValues& values, const Problem& problem) {
  constexpr std::string_view kKey = "kv_cache.calculate_kv_scales";
  const KvCacheSpec& cache = problem.kv_cache;
  if (!cache.calculate_kv_scales) return;
  const auto is_one = [](double scale) { return scale == 1.0; };
  if (!std::ranges::all_of(cache.k_scale, is_one) || !std::ranges::all_of(cache.v_scale, is_one) ||
      !is_one(cache.q_scale)) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected k_scale, v_scale and q_scale of 1 with it (they are calculated), found "
                  "{}, {} and {}",
                  cache.k_scale.front(), cache.v_scale.front(), cache.q_scale);
  }
  if (problem.mla.emulate_fp8_prefill && problem.attention.type == AttentionType::kMla) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected false with mla.emulate_fp8_prefill (the cache is gathered raw), found "
                  "true");
  }
  if (problem.attention.type == AttentionType::kOp) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected false for type op (its scales are given), found true");
  }
}

void check_dcp(const CaseValues& values, const Problem& problem) {
  const DcpSpec& dcp = problem.dcp;
  if (problem.attention.num_heads % dcp.world_size != 0) {
    values.reject(ErrorKind::kShape, "attention.num_heads",
                  "expected a multiple of dcp.world_size = {}, found {}", dcp.world_size,
                  problem.attention.num_heads);
  }
  if (problem.kv_cache.block_size % dcp.interleave_size != 0) {
    values.reject(ErrorKind::kConfig, "dcp.interleave_size",
                  "expected a divisor of kv_cache.block_size = {}, found {}",
                  problem.kv_cache.block_size, dcp.interleave_size);
  }
}

/// Preconditions of §6.2 that hold for every backend. A prefix of length 0 is no cascade.
void check_cascade(const CaseValues& values, const Problem& problem) {
  constexpr std::string_view kKey = "cascade.common_prefix_len";
  const std::int64_t prefix = problem.cascade.common_prefix_len;
  if (prefix == 0) {
    if (problem.cascade.mode != CascadeMode::kAlways) return;
    values.reject(ErrorKind::kConfig, "cascade.mode",
                  "expected a common_prefix_len > 0 for always, found 0");
  }
  if (prefix % problem.kv_cache.block_size != 0) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected a multiple of kv_cache.block_size = {}, found {}",
                  problem.kv_cache.block_size, prefix);
  }
  for (std::size_t i = 0; i < problem.batch.size(); ++i) {
    const Request& request = problem.batch[i];
    const std::int64_t context = request.seq_len - request.query_len;
    const bool is_padding = request.seq_len == 0 && request.query_len == 0;
    if (is_padding || prefix <= context) continue;
    values.reject(ErrorKind::kConfig, kKey,
                  "expected at most the context of every request ({} tokens in request {}), found "
                  "{}",
                  context, i, prefix);
  }
}

/// Pages that the batch's block tables hold; the pages of a shared prefix count once. Under DCP one
/// block id serves block_size tokens of every rank (§7.1).
std::int64_t needed_blocks(const Problem& problem) {
  const std::int64_t tokens_per_block =
      std::int64_t{problem.kv_cache.block_size} * problem.dcp.world_size;
  const std::int64_t shared = problem.cascade.common_prefix_len / tokens_per_block;
  std::int64_t blocks = shared;
  for (const Request& request : problem.batch) {
    blocks += std::max<std::int64_t>(0, ceil_div(request.seq_len, tokens_per_block) - shared);
  }
  return blocks;
}

void resolve_num_blocks(const CaseValues& values, Problem& problem) {
  std::int64_t& num_blocks = problem.kv_cache.num_blocks;
  const std::int64_t needed = has_cache(problem.attention.type) ? needed_blocks(problem) : 0;
  if (!values.gives("kv_cache.num_blocks")) {
    // Why spare blocks: they are filled with poison, so that a read of a foreign page shows.
    num_blocks = needed == 0 ? 0 : needed + std::max<std::int64_t>(2, needed / 16);
  } else if (num_blocks < needed) {
    values.reject(ErrorKind::kConfig, "kv_cache.num_blocks",
                  "expected at least the {} blocks that the batch needs, found {}", needed,
                  num_blocks);
  }
}

}  // namespace

void resolve_cache(const CaseValues& values, Problem& problem) {
  check_block_size(values, problem);
  if (has_cache(problem.attention.type)) check_cache_dtype(values, problem);
  check_scale_file(values, problem);
  check_scale_list(values, "kv_cache.k_scale", problem);
  check_scale_list(values, "kv_cache.v_scale", problem);
  check_calculated_scales(values, problem);
  check_dcp(values, problem);
  check_cascade(values, problem);
  resolve_num_blocks(values, problem);
}

}  // namespace attnbench
