#include "scenario/resolve/cache.h"

#include <algorithm>

#include "metadata/int_math.h"
#include "metadata/mla/prefill.h"
#include "metadata/parts/cascade.h"

namespace attnbench {
namespace {

bool has_cache(AttentionType type) {
  return !is_encoder_type(type) && type != AttentionType::kMmEncoder;
}

void check_block_size(const CaseValues& values, const Problem& problem) {
  const std::int64_t size = problem.kv_cache.block_size;
  if (size % 16 != 0) {
    const std::int64_t nearest = std::max<std::int64_t>(16, (size + 8) / 16 * 16);
    values.reject(ErrorKind::kConfig, "kv_cache.block_size",
                  "Block size must be a multiple of 16. Found {}; the nearest is {}", size,
                  nearest);
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

/// Constants of scales that nobody makes; their defaults stand in every result file.
void check_scale_constants(const CaseValues& values, const KvCacheSpec& cache) {
  const auto check = [&](std::string_view key, double constant, double usual) {
    if (constant == usual) return;
    values.reject(ErrorKind::kConfig, key,
                  "expected {} without kv_cache.calculate_kv_scales, found {}", usual, constant);
  };
  const KvCacheSpec usual;
  check("kv_cache.q_scale_constant", cache.q_scale_constant, usual.q_scale_constant);
  check("kv_cache.k_scale_constant", cache.k_scale_constant, usual.k_scale_constant);
  check("kv_cache.v_scale_constant", cache.v_scale_constant, usual.v_scale_constant);
}

/// §5.4: the scales are those of the data, or given.
void check_calculated_scales(const CaseValues& values, const Problem& problem) {
  constexpr std::string_view kKey = "kv_cache.calculate_kv_scales";
  const KvCacheSpec& cache = problem.kv_cache;
  if (!cache.calculate_kv_scales) return check_scale_constants(values, cache);
  if (problem.attention.kv_sharing) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected false with attention.kv_sharing (nothing is written), found true");
  }
  const auto is_one = [](double scale) { return scale == 1.0; };
  if (!std::ranges::all_of(cache.k_scale, is_one) || !std::ranges::all_of(cache.v_scale, is_one) ||
      !is_one(cache.q_scale)) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected k_scale, v_scale and q_scale of 1 with it (they are calculated), found "
                  "{}, {} and {}",
                  cache.k_scale.front(), cache.v_scale.front(), cache.q_scale);
  }
  if (problem.attention.type == AttentionType::kMla &&
      (problem.mla.emulate_fp8_prefill || has_fp8_mla_prefill(problem))) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected false with {} (the cache is gathered raw), found true",
                  problem.mla.emulate_fp8_prefill ? "mla.emulate_fp8_prefill"
                                                  : "mla.use_prefill_query_quantization");
  }
  if (reads_tensor_scales(cache.dtype) && !has_tensor_scales(cache.dtype)) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected false for kv_cache.dtype {} (its scales are given), found true",
                  to_string(cache.dtype));
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

/// Several prefixes in one batch: what the rules for one come to.
void check_prefix_groups(const CaseValues& values, const Problem& problem) {
  constexpr std::string_view kKey = "cascade.groups";
  const CascadeSpec& cascade = problem.cascade;
  if (cascade.common_prefix_len > 0) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected [] with a cascade.common_prefix_len, found both");
  }
  if (problem.attention.type != AttentionType::kDecoder || problem.dcp.world_size > 1) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected it with attention.type decoder and dcp.world_size 1 only, found {}, {}",
                  to_string(problem.attention.type), problem.dcp.world_size);
  }
  std::int64_t requests = 0;
  for (const auto& [count, keys] : cascade.groups) {
    if (keys % problem.kv_cache.block_size != 0) {
      values.reject(ErrorKind::kConfig, kKey,
                    "expected prefixes of a multiple of kv_cache.block_size = {}, found {}",
                    problem.kv_cache.block_size, keys);
    }
    for (std::int64_t i = 0; i < count; ++i, ++requests) {
      if (requests >= problem.num_requests()) {
        values.reject(ErrorKind::kConfig, kKey,
                      "expected no more requests than the {} of the batch, found more",
                      problem.num_requests());
      }
      const Request& request = problem.batch[static_cast<std::size_t>(requests)];
      const bool is_padding = request.seq_len == 0 && request.query_len == 0;
      if (is_padding || keys <= request.seq_len - request.query_len) continue;
      values.reject(ErrorKind::kConfig, kKey,
                    "expected a prefix of at most the context of each of its requests ({} tokens "
                    "in request {}), found {}",
                    request.seq_len - request.query_len, requests, keys);
    }
  }
}

/// Preconditions of §6.2 that hold for every backend. A prefix of length 0 is no cascade.
void check_cascade(const CaseValues& values, const Problem& problem) {
  if (!problem.cascade.groups.empty()) return check_prefix_groups(values, problem);
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

/// §1.7: a manager's block is whole kernel blocks.
void check_manager_blocks(const CaseValues& values, const Problem& problem) {
  constexpr std::string_view kKey = "kv_cache.manager_block_size";
  const KvCacheSpec& cache = problem.kv_cache;
  if (!cache.manager_block_size) return;
  const int size = *cache.manager_block_size;
  if (!has_cache(problem.attention.type)) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected null for type {}, which has no cache, found {}",
                  to_string(problem.attention.type), size);
  }
  if (size % cache.block_size != 0) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected a multiple of kv_cache.block_size = {}, found {}", cache.block_size,
                  size);
  }
  for (const PrefixGroup& group : prefix_groups(problem)) {
    if (group.num_keys % size == 0) continue;
    values.reject(ErrorKind::kConfig, kKey,
                  "expected a divisor of {} = {} (a prefix shares whole blocks of the manager), "
                  "found {}",
                  problem.cascade.groups.empty() ? "cascade.common_prefix_len" : "cascade.groups",
                  group.num_keys, size);
  }
  if (problem.dcp.world_size > 1) {
    values.reject(ErrorKind::kConfig, kKey, "expected null with dcp.world_size = {}, found {}",
                  problem.dcp.world_size, size);
  }
}

/// §2: one allocation of several layers, whose planes are whole in layout NHD only.
void check_layers(const CaseValues& values, const Problem& problem) {
  constexpr std::string_view kKey = "kv_cache.layers";
  const KvCacheSpec& cache = problem.kv_cache;
  if (!cache.layers) {
    if (cache.layer == 0) return;
    values.reject(ErrorKind::kConfig, "kv_cache.layer",
                  "expected 0 without kv_cache.layers, found {}", cache.layer);
  }
  const AttentionType type = problem.attention.type;
  if (type != AttentionType::kDecoder && type != AttentionType::kEncoderDecoder) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected it with type decoder or encoder_decoder only, found type {}",
                  to_string(type));
  }
  if (cache.layer >= *cache.layers) {
    values.reject(ErrorKind::kConfig, "kv_cache.layer",
                  "expected less than kv_cache.layers = {}, found {}", *cache.layers, cache.layer);
  }
  if (cache.layout != CacheLayout::kNhd) {
    values.reject(ErrorKind::kConfig, kKey, "expected kv_cache.layout NHD with it, found {}",
                  to_string(cache.layout));
  }
  if (problem.dcp.world_size > 1) {
    values.reject(ErrorKind::kConfig, kKey, "expected null with dcp.world_size = {}, found {}",
                  problem.dcp.world_size, *cache.layers);
  }
}

/// Kernel blocks that are handed out at once.
std::int64_t blocks_at_once(const Problem& problem) {
  const KvCacheSpec& cache = problem.kv_cache;
  return cache.manager_block_size.value_or(cache.block_size) / cache.block_size;
}

/// Pages that the batch's block tables hold; the pages of a shared prefix count once. Under DCP one
/// block id serves block_size tokens of every rank (§7.1).
std::int64_t needed_blocks(const Problem& problem) {
  const std::int64_t at_once = blocks_at_once(problem);
  const std::int64_t tokens_per_block =
      std::int64_t{problem.kv_cache.block_size} * problem.dcp.world_size * at_once;
  std::int64_t blocks = 0;
  for (const PrefixGroup& group : prefix_groups(problem))
    blocks += group.num_keys / tokens_per_block;
  const std::vector<SharedPrefix> prefixes = shared_prefixes(problem);
  for (std::size_t b = 0; b < prefixes.size(); ++b) {
    const std::int64_t own = ceil_div(problem.batch[b].seq_len, tokens_per_block) -
                             prefixes[b].num_keys / tokens_per_block;
    blocks += std::max<std::int64_t>(0, own);
  }
  return blocks * at_once;
}

void resolve_num_blocks(const CaseValues& values, Problem& problem) {
  std::int64_t& num_blocks = problem.kv_cache.num_blocks;
  const std::int64_t needed = has_cache(problem.attention.type) ? needed_blocks(problem) : 0;
  if (!values.gives("kv_cache.num_blocks")) {
    // Why spare blocks: they are filled with poison, so that a read of a foreign page shows.
    num_blocks = needed == 0 ? 0 : needed + std::max<std::int64_t>(2, needed / 16);
    num_blocks = round_up(num_blocks, blocks_at_once(problem));
  } else if (num_blocks % blocks_at_once(problem) != 0) {
    values.reject(ErrorKind::kConfig, "kv_cache.num_blocks",
                  "expected whole blocks of the manager, of {} kernel blocks each, found {}",
                  blocks_at_once(problem), num_blocks);
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
  check_manager_blocks(values, problem);
  check_layers(values, problem);
  resolve_num_blocks(values, problem);
}

}  // namespace attnbench
