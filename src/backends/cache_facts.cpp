#include "backends/cache_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace attnbench {

void add_cache_facts(const Problem& problem, CacheLayoutKind kind, const KernelRules& rules,
                     Facts& facts) {
  const KvCacheSpec& cache = problem.kv_cache;
  const bool nhd = cache.layout == CacheLayout::kNhd;
  const KvLayout layout =
      make_kv_layout(kind, nhd ? HeadOrder::kNhd : HeadOrder::kHnd, cache.num_blocks,
                     cache.block_size, problem.attention.num_kv_heads, problem.attention.head_size,
                     is_per_token_head(cache.dtype), cache.int8_level == 2 ? 3 : 2);
  // Planes of IX are head-major whatever the setting (§2.2).
  const CacheLayout order = kind == CacheLayoutKind::kIx ? CacheLayout::kHnd : cache.layout;
  facts.emplace_back("cache layout", fmt::format("{} {}", to_string(kind), to_string(order)));
  facts.emplace_back("cache shape",
                     fmt::format("[{}] in memory", fmt::join(layout.physical_shape, ", ")));
  facts.emplace_back("cache element", dtype_name(resolve_store_rule(problem, rules).element));
}

}  // namespace attnbench
