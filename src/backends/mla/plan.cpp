// What an MLA backend does with a batch, and what that costs.
#include <algorithm>

#include "backends/attention/attention_pipeline.h"
#include "backends/mla/backend.h"
#include "inputs/mla_inputs.h"
#include "metadata/int_math.h"
#include "metadata/parts/decode_plan.h"

namespace attnbench {
namespace {

bool is_per_tensor_fp8(KvCacheDtype dtype) {
  return dtype == KvCacheDtype::kFp8 || dtype == KvCacheDtype::kFp8E4M3;
}

std::vector<std::int32_t> query_start_loc(const Problem& problem, int first) {
  std::vector<std::int32_t> starts{0};
  for (std::size_t b = static_cast<std::size_t>(first); b < problem.batch.size(); ++b) {
    starts.push_back(starts.back() + checked_int32(problem.batch[b].query_len, "query_len"));
  }
  return starts;
}

BatchSplit split_by(MetadataBuilder builder, const Problem& problem) {
  const DecodeThreshold rule =
      decode_threshold(builder, problem.attention.num_speculative_tokens, false,
                       problem.dcp.world_size, problem.dcp.interleave_size);
  SplitOptions options;
  options.threshold = rule.threshold;
  options.require_uniform = rule.require_uniform;
  options.treat_short_extends_as_decodes = problem.treat_short_extends_as_decodes;
  std::vector<std::uint8_t> prefilling;
  for (const Request& request : problem.batch) {
    prefilling.push_back(request.query_len == request.seq_len ? 1 : 0);
  }
  options.is_prefilling = prefilling;
  return split_decodes_and_prefills(query_start_loc(problem, 0),
                                    static_cast<int>(problem.num_tokens()),
                                    static_cast<int>(problem.max_query_len()), options);
}

DcpGroup group_of(const Problem& problem) {
  return {problem.dcp.world_size, problem.dcp.interleave_size};
}

/// Scenarios know no engine limits: the batch's own lengths stand for max_model_len and
/// max_num_seqs.
std::int64_t workspace_tokens(const Problem& problem) {
  if (problem.mla.workspace_tokens) return *problem.mla.workspace_tokens;
  return mla_workspace_tokens(problem.max_seq_len(),
                              std::max<std::int64_t>(1, problem.num_requests()),
                              problem.kv_cache.block_size);
}

std::optional<MlaChunkPlan> plan_chunks(const Problem& problem, const MlaPlan& plan) {
  if (plan.batch.num_prefills == 0) return std::nullopt;
  std::vector<std::int32_t> seq_lens;
  for (std::size_t b = static_cast<std::size_t>(plan.batch.num_decodes); b < problem.batch.size();
       ++b) {
    seq_lens.push_back(checked_int32(problem.batch[b].seq_len, "seq_len"));
  }
  return plan_mla_chunks(query_start_loc(problem, plan.batch.num_decodes), seq_lens,
                         plan.workspace_tokens, problem.kv_cache.block_size, group_of(problem));
}

/// Parts of the plan of a sparse fp8 decode; the heads are padded to tiles of 64.
int sparse_parts(const Problem& problem, const MlaPlan& plan, int num_sms) {
  std::int64_t max_query_len = 1;
  for (int b = 0; b < plan.sparse_batch.num_decodes; ++b) {
    max_query_len = std::max(max_query_len, problem.batch[static_cast<std::size_t>(b)].query_len);
  }
  if (problem.attention.batch_invariant) return 1;
  const int heads = std::max(problem.attention.num_heads, problem.mla.q_pad_num_heads.value_or(0));
  return sparse_decode_parts(num_sms, checked_int32(max_query_len, "query_len"),
                             static_cast<int>(ceil_div(heads, 64)) * 64);
}

int decode_parts(const MlaCapability& capability, const Problem& problem, const MlaPlan& plan,
                 int num_sms) {
  if (problem.attention.batch_invariant || plan.batch.num_decodes == 0) return 1;
  std::int64_t max_query_len = 1;
  std::int64_t max_seq_len = 0;
  for (int b = 0; b < plan.batch.num_decodes; ++b) {
    const Request& request = problem.batch[static_cast<std::size_t>(b)];
    max_query_len = std::max(max_query_len, request.query_len);
    max_seq_len = std::max(max_seq_len, request.seq_len);
  }
  if (capability.split == MlaDecodeSplit::kPlan) {
    return dense_decode_parts(num_sms, checked_int32(max_query_len, "query_len"),
                              problem.attention.num_heads, 1);
  }
  // A rank holds at most this many of the longest request's keys.
  const std::int64_t longest = dcp_max_local_seq_len(max_seq_len, group_of(problem));
  return choose_num_splits(plan.batch.num_decodes, 1, longest, num_sms);
}

/// Pairs of a row and a key that it sees, of the requests [first, last).
double visible_pairs_of(const MlaCapability& capability, const Problem& problem, int first,
                        int last) {
  double pairs = 0;
  for (int b = first; b < last; ++b) {
    const Request& request = problem.batch[static_cast<std::size_t>(b)];
    const std::int64_t context = request.seq_len - request.query_len;
    if (!capability.sparse) {
      pairs += static_cast<double>(request.query_len) *
               (static_cast<double>(context) + static_cast<double>(request.query_len + 1) / 2);
      continue;
    }
    for (std::int64_t i = 0; i < request.query_len; ++i) {
      pairs += static_cast<double>(num_listed_keys(problem.mla, context + i + 1));
    }
  }
  return pairs;
}

/// Keys of the requests [first, last); those of a shared prefix count once with `unique`.
double live_keys(const Problem& problem, int first, int last, bool unique) {
  const std::int64_t prefix = unique ? problem.cascade.common_prefix_len : 0;
  double keys = 0;
  bool any = false;
  for (int b = first; b < last; ++b) {
    const Request& request = problem.batch[static_cast<std::size_t>(b)];
    if (request.query_len == 0 || request.seq_len == 0) continue;
    keys += static_cast<double>(request.seq_len - std::min(prefix, request.seq_len));
    any = true;
  }
  return keys + (any ? static_cast<double>(prefix) : 0.0);
}

double entry_bytes(const Problem& problem, KvCacheDtype dtype) {
  if (dtype == KvCacheDtype::kFp8DsMla) return attn::kDsMlaEntryBytes;
  return static_cast<double>(problem.mla.kv_lora_rank + problem.mla.qk_rope_head_dim) *
         static_cast<double>(dtype_size(kv_element_dtype(dtype, problem.attention.dtype)));
}

/// Backends that are no MLA backend of this list compute what MLA does.
const MlaCapability& capability_of(std::string_view backend) {
  const MlaCapability* found = find_mla_capability(backend);
  return found != nullptr ? *found : *find_mla_capability("MLA");
}

}  // namespace

BatchSplit split_mla_batch(const MlaCapability& capability, const Problem& problem) {
  if (!capability.sparse && !capability.latent_only) return split_by(capability.builder, problem);
  return {static_cast<int>(problem.num_requests()), 0, static_cast<int>(problem.num_tokens()), 0};
}

bool allows_quantised_query(const MlaCapability& capability, const Problem& problem) {
  return !capability.sparse && is_per_tensor_fp8(mla_cache_dtype(capability, problem));
}

bool has_fp8_decodes(const MlaCapability& capability, const Problem& problem) {
  return capability.fp8_query && allows_quantised_query(capability, problem) &&
         split_mla_batch(capability, problem).num_decodes > 0;
}

MlaPlan plan_mla(const MlaCapability& capability, const Problem& problem, int num_sms) {
  MlaPlan plan;
  plan.batch = split_mla_batch(capability, problem);
  plan.quantised_query = capability.fp8_query && allows_quantised_query(capability, problem);
  // auto: FA3 on SM 9.0 takes V narrower than K (§8.6).
  plan.pad_v = problem.mla.v_pad == Switch::kOn;
  plan.workspace_tokens = workspace_tokens(problem);
  plan.fp8_prefill = problem.mla.emulate_fp8_prefill && !capability.sparse &&
                     !capability.latent_only && is_per_tensor_fp8(problem.kv_cache.dtype);
  if (capability.latent_only) return plan;  // the rest is the kernel's own affair
  plan.chunks = plan_chunks(problem, plan);
  if (!capability.sparse) {
    plan.num_parts = decode_parts(capability, problem, plan, num_sms);
  } else if (mla_cache_dtype(capability, problem) == KvCacheDtype::kFp8DsMla) {
    plan.sparse_batch = split_by(MetadataBuilder::kFlashMlaSparseFp8, problem);
    plan.num_parts = sparse_parts(problem, plan, num_sms);
  }
  return plan;
}

KvCacheDtype mla_cache_dtype(const MlaCapability& capability, const Problem& problem) {
  const KvCacheDtype dtype = problem.kv_cache.dtype;
  const auto stores = [&](KvCacheDtype of) {
    return std::ranges::count(capability.kv_dtypes, of) > 0;
  };
  const bool is_alias = stores(KvCacheDtype::kFp8DsMla) && !stores(KvCacheDtype::kFp8E4M3);
  return is_alias && dtype == KvCacheDtype::kFp8 ? KvCacheDtype::kFp8DsMla : dtype;
}

double mla_flops(const Problem& problem, std::string_view backend) {
  return mla_flops(problem, capability_of(backend));
}

double mla_flops(const Problem& problem, const MlaCapability& capability) {
  const BatchSplit batch = split_mla_batch(capability, problem);
  const AttentionSpec& a = problem.attention;
  const MlaSpec& mla = problem.mla;
  const double latent = 2.0 * mla.kv_lora_rank + mla.qk_rope_head_dim;
  const double expanded = a.head_size + a.v_head_size;
  const int total = static_cast<int>(problem.num_requests());
  return 2.0 * a.num_heads *
         (latent * visible_pairs_of(capability, problem, 0, batch.num_decodes) +
          expanded * visible_pairs_of(capability, problem, batch.num_decodes, total));
}

Traffic mla_traffic(const Problem& problem, std::string_view backend) {
  return mla_traffic(problem, capability_of(backend));
}

Traffic mla_traffic(const Problem& problem, const MlaCapability& capability) {
  const MlaPlan plan = plan_mla(capability, problem);
  const AttentionSpec& a = problem.attention;
  const MlaSpec& mla = problem.mla;
  const int decodes = plan.batch.num_decodes;
  const int total = static_cast<int>(problem.num_requests());
  const auto element = static_cast<double>(dtype_size(a.dtype));
  const double per_entry = entry_bytes(problem, mla_cache_dtype(capability, problem));
  const double per_key = element * a.num_heads * (a.head_size + a.v_head_size);
  const double query_element = plan.quantised_query ? 1.0 : element;
  const double decode_row =
      a.num_heads *
      (query_element * (mla.kv_lora_rank + mla.qk_rope_head_dim) + element * mla.kv_lora_rank);
  const double prefill_row = element * a.num_heads * (a.head_size + a.v_head_size);
  const double rows =
      decode_row * plan.batch.num_decode_tokens + prefill_row * plan.batch.num_prefill_tokens;
  const double expanded = per_key * live_keys(problem, decodes, total, false);
  double latents = live_keys(problem, 0, decodes, false);
  double unique = live_keys(problem, 0, decodes, true);
  if (capability.sparse) {
    latents = visible_pairs_of(capability, problem, 0, decodes);
    unique = std::min(unique, latents);
  }
  return {per_entry * unique + expanded + rows, per_entry * latents + expanded};
}

}  // namespace attnbench
