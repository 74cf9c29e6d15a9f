// The cascade heuristic as upstream has it: it compares how many waves of CTAs the shared pass and
// a plain split decode would take. The constants are upstream's; other values would choose another
// pass than the program that is judged.
#include "metadata/parts/cascade.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "metadata/batch.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

constexpr int64_t kMinPrefix = 256;
constexpr size_t kMinRequests = 8;
constexpr int64_t kTile = 128;  // query and key tile of the cost model

bool can_flash_decode(const CascadeQuestion& q) {
  const bool all_single = std::ranges::all_of(q.query_lens, [](int32_t len) { return len == 1; });
  return q.num_heads / q.num_kv_heads > 1 && !q.use_sliding_window && !q.use_alibi && all_single;
}

}  // namespace

bool use_cascade_attention(const CascadeQuestion& q) {
  if (q.common_prefix_len < kMinPrefix) return false;
  if (q.use_alibi || q.use_sliding_window || q.use_local_attention) return false;
  if (q.query_lens.size() < kMinRequests) return false;
  if (q.dcp_world_size > 1) return false;
  if (!can_flash_decode(q)) return true;
  const auto num_requests = static_cast<int64_t>(q.query_lens.size());
  const int64_t prefix_tiles = ceil_div(q.common_prefix_len, kTile);
  const int64_t cascade_waves = ceil_div(q.num_heads * ceil_div(num_requests, kTile), q.num_sms);
  const int64_t group_tiles = ceil_div(q.num_heads / q.num_kv_heads, kTile);
  const int64_t decode_ctas = num_requests * q.num_kv_heads * group_tiles * prefix_tiles;
  return cascade_waves * prefix_tiles < ceil_div(decode_ctas, q.num_sms);
}

void check_cascade_prefix(int64_t common_prefix_len, int block_size,
                          std::span<const int32_t> context_lens,
                          std::span<const int32_t> block_table, int64_t columns) {
  if (common_prefix_len < 1 || common_prefix_len % block_size != 0) {
    fail(ErrorKind::kConfig, "common_prefix_len: expected a positive multiple of {}, got {}",
         block_size, common_prefix_len);
  }
  for (size_t b = 0; b < context_lens.size(); ++b) {
    if (common_prefix_len > context_lens[b]) {
      fail(ErrorKind::kConfig,
           "common_prefix_len: expected at most the context length {} of request {}, got {}",
           context_lens[b], b, common_prefix_len);
    }
  }
  const int64_t shared = common_prefix_len / block_size;
  if (shared > columns ||
      block_table.size() != context_lens.size() * static_cast<size_t>(columns)) {
    fail(ErrorKind::kShape, "block_table: expected {} rows of at least {} columns, got {} x {}",
         context_lens.size(), shared, block_table.size(), columns);
  }
  for (size_t b = 1; b < context_lens.size(); ++b) {
    for (int64_t c = 0; c < shared; ++c) {
      const auto i = static_cast<size_t>(c);
      const int32_t block = block_table[b * static_cast<size_t>(columns) + i];
      if (block != block_table[i]) {
        fail(ErrorKind::kValue, "block_table[{}][{}]: expected the shared prefix block {}, got {}",
             b, c, block_table[i], block);
      }
    }
  }
}

std::vector<PrefixGroup> prefix_groups(const Problem& problem) {
  std::vector<PrefixGroup> groups;
  if (problem.cascade.groups.empty()) {
    const int64_t keys = problem.cascade.common_prefix_len;
    if (keys > 0) groups.push_back({0, problem.num_requests(), keys});
    return groups;
  }
  int64_t first = 0;
  for (const auto& [requests, keys] : problem.cascade.groups) {
    const int64_t count = std::min<int64_t>(requests, problem.num_requests() - first);
    groups.push_back({first, count, keys});
    first += count;
  }
  return groups;
}

bool heuristic_cascades(const Problem& problem, int num_sms) {
  const std::vector<PrefixGroup> groups = prefix_groups(problem);
  const bool has_infinite_sink = std::ranges::any_of(
      problem.attention.sink_values, [](double sink) { return std::isinf(sink) && sink > 0; });
  if (groups.empty() || has_infinite_sink) return false;
  const auto is_one = [](double scale) { return scale == 1.0; };
  const KvCacheSpec& cache = problem.kv_cache;
  // §6.2: descales must be 1; the source asserts it, so the heuristic's caller must see to it.
  if (is_quantised(cache.dtype) &&
      !(std::ranges::all_of(cache.k_scale, is_one) && std::ranges::all_of(cache.v_scale, is_one) &&
        is_one(cache.q_scale))) {
    return false;
  }
  const std::vector<int32_t> query_lens = query_lens_of(problem);
  CascadeQuestion question;
  question.num_heads = problem.attention.num_heads;
  question.num_kv_heads = problem.attention.num_kv_heads;
  question.use_alibi = problem.attention.alibi != AlibiKind::kNone;
  question.use_sliding_window = problem.attention.sliding_window.has_value();
  question.use_local_attention = problem.attention.chunk_size.has_value();
  question.num_sms = num_sms;
  question.dcp_world_size = problem.dcp.world_size;
  return std::ranges::all_of(groups, [&](const PrefixGroup& group) {
    question.common_prefix_len = group.num_keys;
    question.query_lens = std::span(query_lens)
                              .subspan(static_cast<size_t>(group.first_request),
                                       static_cast<size_t>(group.num_requests));
    return use_cascade_attention(question);
  });
}

std::vector<SharedPrefix> shared_prefixes(const Problem& problem) {
  std::vector<SharedPrefix> shared(problem.batch.size());
  int64_t first_key = 0;
  int64_t index = 0;
  for (const PrefixGroup& group : prefix_groups(problem)) {
    std::fill_n(shared.begin() + group.first_request, group.num_requests,
                SharedPrefix{group.num_keys, index++, first_key});
    first_key += group.num_keys;
  }
  return shared;
}

std::vector<int32_t> cascade_suffix_lens(std::span<const int32_t> seq_lens,
                                         int64_t common_prefix_len) {
  std::vector<int32_t> lens;
  lens.reserve(seq_lens.size());
  for (const int32_t seq_len : seq_lens) {
    if (seq_len < common_prefix_len) {
      fail(ErrorKind::kConfig, "common_prefix_len: expected at most seq_len {}, got {}", seq_len,
           common_prefix_len);
    }
    lens.push_back(static_cast<int32_t>(seq_len - common_prefix_len));
  }
  return lens;
}

}  // namespace attnbench
