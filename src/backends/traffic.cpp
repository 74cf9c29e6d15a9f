// The counts walk over the requests of a batch, never over pairs of rows and keys, so a batch of
// millions of keys costs next to nothing to count.
#include "backends/traffic.h"

#include <algorithm>

#include "backends/mla/capability.h"
#include "backends/mla/plan.h"
#include "backends/op/facts.h"
#include "metadata/mask/visible_pairs.h"
#include "metadata/parts/cascade.h"
#include "metadata/parts/local_chunks.h"

namespace attnbench {
namespace {

/// Keys of a request that at least one of its rows sees: one run, as windows move with the rows.
/// A bidirectional range may reach further to both sides.
KeyRange live_keys(const AttentionMath& math, const Request& request, std::int64_t index) {
  if (request.query_len == 0 || request.seq_len == 0) return {};
  const std::int64_t first = request.seq_len - request.query_len;
  KeyRange live{visible_range(math, std::max<std::int64_t>(0, first), request.seq_len).begin,
                visible_range(math, request.seq_len - 1, request.seq_len).end};
  for (const auto& range : math.ranges_of(index)) {
    if (range[1] < first) continue;  // no row of this step lies in it
    live.begin = std::min(live.begin, range[0]);
    live.end = std::max(live.end, std::min(request.seq_len, range[1] + 1));
  }
  live.begin = std::min(live.begin, live.end);
  return live;
}

/// The multimodal encoder with e4m3 queries, keys and values.
bool is_fp8_mm(const Problem& problem) {
  return problem.attention.type == AttentionType::kMmEncoder &&
         problem.mm_encoder.attn_dtype == MmAttnDtype::kFp8;
}

/// Bytes of K and V of one position, all heads.
double bytes_per_key(const Problem& problem, const KernelRules& rules) {
  const AttentionSpec& a = problem.attention;
  const bool cached = !has_direct_kv(a.type);
  const Dtype direct = is_fp8_mm(problem) ? Dtype::kE4M3 : a.dtype;
  const Dtype element = cached ? resolve_store_rule(problem, rules).element : direct;
  const auto size = static_cast<double>(dtype_size(element));
  if (cached && problem.kv_cache.int8_level > 0) {
    const double value_size =
        problem.kv_cache.int8_level == 1 ? size : static_cast<double>(dtype_size(a.dtype));
    return a.num_kv_heads * (a.head_size * size + a.v_head_size * value_size + sizeof(float));
  }
  const auto width = [&](int head_size) {
    return cached ? stored_width(problem.kv_cache.dtype, head_size) : head_size;
  };
  return size * (width(a.head_size) + width(a.v_head_size)) * a.num_kv_heads;
}

}  // namespace

double attention_flops(const Problem& problem, const KernelRules& rules) {
  if (problem.attention.type == AttentionType::kMla)
    return mla_flops(problem, plain_mla_capability());
  if (problem.attention.type == AttentionType::kOp) return 0;
  const AttentionMath math = resolve_attention_math(problem, rules);
  double pairs = 0;
  // Chunks see nothing of each other, so they are counted like requests.
  const std::vector<Request> batch = problem_of_chunks(problem).batch;
  for (std::size_t b = 0; b < batch.size(); ++b) {
    const Request& request = batch[b];
    const VisibleArgs args{request.query_len, request.seq_len, math.causal, math.window_left,
                           math.window_right};
    pairs += static_cast<double>(visible_pairs(args, math.ranges_of(static_cast<std::int64_t>(b))));
  }
  const AttentionSpec& a = problem.attention;
  return 2.0 * a.num_heads * (a.head_size + a.v_head_size) * pairs;
}

double attention_flops(const Problem& problem, const Backend& backend) {
  const MlaCapability* mla = backend.mla_capability(problem);
  return mla != nullptr ? mla_flops(problem, *mla)
                        : attention_flops(problem, backend.kernel_rules());
}

Traffic attention_traffic(const Problem& problem, const Backend& backend) {
  const MlaCapability* mla = backend.mla_capability(problem);
  return mla != nullptr ? mla_traffic(problem, *mla)
                        : attention_traffic(problem, backend.kernel_rules());
}

Traffic attention_traffic(const Problem& problem, const KernelRules& rules) {
  if (problem.attention.type == AttentionType::kMla)
    return mla_traffic(problem, plain_mla_capability());
  if (problem.attention.type == AttentionType::kOp) return {op_traffic(problem), 0};
  const AttentionMath math = resolve_attention_math(problem, rules);
  const AttentionSpec& a = problem.attention;
  const bool has_pages = !has_direct_kv(a.type);
  const std::vector<SharedPrefix> prefixes = shared_prefixes(problem);
  std::int64_t all = 0;
  std::int64_t own = 0;
  // The first key of each group's prefix that some request reads.
  std::vector<std::int64_t> shared_begin;
  for (const PrefixGroup& group : prefix_groups(problem)) shared_begin.push_back(group.num_keys);
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const KeyRange live = live_keys(math, problem.batch[b], static_cast<std::int64_t>(b));
    if (live.end <= live.begin) continue;
    all += live.end - live.begin;
    const SharedPrefix prefix = has_pages ? prefixes[b] : SharedPrefix{};
    own += std::max<std::int64_t>(0, live.end - std::max(live.begin, prefix.num_keys));
    if (prefix.group < 0) continue;
    std::int64_t& begin = shared_begin[static_cast<std::size_t>(prefix.group)];
    begin = std::min(begin, live.begin);
  }
  std::int64_t shared = 0;
  const std::vector<PrefixGroup> groups = prefix_groups(problem);
  for (std::size_t g = 0; g < groups.size(); ++g) shared += groups[g].num_keys - shared_begin[g];
  const double per_key = bytes_per_key(problem, rules);
  const bool byte_query = is_fp8_mm(problem) || query_is_quantised(problem, rules);
  const double query_size = byte_query ? 1.0 : static_cast<double>(dtype_size(a.dtype));
  const bool fp8_output = problem.output_quant.type == OutputQuantType::kFp8Static;
  const double output_size = fp8_output ? 1.0 : static_cast<double>(dtype_size(a.dtype));
  const double per_token = a.num_heads * (a.head_size * query_size + a.v_head_size * output_size);
  Traffic traffic;
  traffic.kv_bytes = per_key * static_cast<double>(all);
  traffic.unique_bytes = per_key * static_cast<double>(own + shared) +
                         per_token * static_cast<double>(problem.num_tokens());
  return traffic;
}

}  // namespace attnbench
