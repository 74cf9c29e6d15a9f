// Cost and plan are in one file because both walk over the same split of the batch: what is counted
// for a request follows from whether it is a decode.
#include "backends/mla/plan.h"

#include <algorithm>

#include "backends/attention/pipeline.h"
#include "inputs/mla_inputs.h"
#include "metadata/int_math.h"
#include "metadata/parts/decode_plan.h"

namespace attnbench {
namespace {

/// Chunks of the context of the prefills; nothing where no prefill has context. A rank gathers
/// whole blocks, so the plan depends on the block size and the group.
std::optional<MlaChunkPlan> plan_chunks(const Problem& problem, const MlaPlan& plan) {
  if (plan.batch.num_prefills == 0) return std::nullopt;
  const int first = plan.batch.num_decodes;
  return plan_mla_chunks(query_start_loc_of(problem, first), seq_lens_of(problem, first),
                         plan.workspace_tokens, problem.kv_cache.block_size, DcpGroup::of(problem));
}

/// The longest query of the first `count` requests; 1 of none.
std::int64_t longest_query_of(const Problem& problem, int count) {
  std::int64_t longest = 1;
  for (int b = 0; b < count; ++b) {
    longest = std::max(longest, problem.batch[static_cast<std::size_t>(b)].query_len);
  }
  return longest;
}

/// Requests of a sparse batch whose lists are dealt out by a plan. Of packed entries the decodes,
/// as upstream splits the batch: the others go over a copy. Of 16-bit entries all or none, since
/// all can be attended at once: where there are but short queries, 64 requests of 64 heads would
/// leave half of an H200 idle otherwise. They have to be equally long, because parts have CTAs for
/// as many tokens as the longest has. Lists that fill the device as they are stay whole
/// (plan_dense_decode()), and so they do in batch-invariant mode.
BatchSplit split_sparse_batch(const MlaCapability& capability, const Problem& problem) {
  if (is_packed(mla_cache_dtype(capability, problem))) {
    return split_batch(problem, MetadataBuilder::kFlashMlaSparseFp8);
  }
  constexpr std::int64_t kLongestPlanned = 8;
  const int all = static_cast<int>(problem.num_requests());
  const std::int64_t longest = longest_query_of(problem, all);
  const bool is_uniform = problem.num_tokens() == longest * all;
  if (problem.attention.batch_invariant || !is_uniform || longest > kLongestPlanned) return {};
  return {all, 0, static_cast<int>(problem.num_tokens()), 0};
}

/// Parts of the plan of a sparse decode; the heads are padded to tiles of 64.
int sparse_parts(const MlaCapability& capability, const Problem& problem, const MlaPlan& plan,
                 int num_sms) {
  if (problem.attention.batch_invariant || plan.sparse_batch.num_decodes == 0) return 1;
  const std::int64_t query_len = longest_query_of(problem, plan.sparse_batch.num_decodes);
  const int heads = mla_padded_heads(capability, problem);
  return sparse_decode_parts(num_sms, checked_int32(query_len, "query_len"),
                             static_cast<int>(ceil_div(heads, 64)) * 64);
}

/// Parts of a decode plan, or splits of every decode: 1 in batch-invariant mode, where the order of
/// every sum is fixed, whatever else is in the batch.
int decode_parts(const MlaCapability& capability, const Problem& problem, const MlaPlan& plan,
                 int num_sms) {
  if (problem.attention.batch_invariant || plan.batch.num_decodes == 0) return 1;
  if (capability.split == MlaDecodeSplit::kPlan) {
    const std::int64_t query_len = longest_query_of(problem, plan.batch.num_decodes);
    return dense_decode_parts(num_sms, checked_int32(query_len, "query_len"),
                              problem.attention.num_heads, 1);
  }
  std::int64_t max_seq_len = 0;
  for (int b = 0; b < plan.batch.num_decodes; ++b) {
    max_seq_len = std::max(max_seq_len, problem.batch[static_cast<std::size_t>(b)].seq_len);
  }
  // A rank holds at most this many of the longest request's keys.
  const std::int64_t longest = dcp_max_local_seq_len(max_seq_len, DcpGroup::of(problem));
  return num_splits_of(problem, plan.batch.num_decodes, 1, longest, num_sms);
}

/// auto: FlashAttention 3 takes V narrower than K on SM 9.0, the prefills of other libraries take
/// it on their devices (§8.6).
bool pads_v(const MlaSpec& mla, int sm) {
  if (mla.v_pad != Switch::kAuto) return mla.v_pad == Switch::kOn;
  return mla.prefill_backend == kFlashAttnPrefill && sm != kAssumedSm;
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
      pairs += num_counted_keys(problem, static_cast<std::size_t>(b), context + i + 1);
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

}  // namespace

BatchSplit split_mla_batch(const MlaCapability& capability, const Problem& problem) {
  if (!capability.sparse && !capability.latent_only)
    return split_batch(problem, capability.builder);
  return {static_cast<int>(problem.num_requests()), 0, static_cast<int>(problem.num_tokens()), 0};
}

bool allows_quantised_query(const MlaCapability& capability, const Problem& problem) {
  const bool has_lists = capability.sparse && capability.latent_only;
  return !has_lists && is_e4m3_cache(mla_cache_dtype(capability, problem));
}

bool has_fp8_decodes(const MlaCapability& capability, const Problem& problem) {
  return capability.fp8_query && allows_quantised_query(capability, problem) &&
         split_mla_batch(capability, problem).num_decodes > 0;
}

int mla_padded_heads(const MlaCapability& capability, const Problem& problem) {
  return std::max(problem.attention.num_heads,
                  problem.mla.q_pad_num_heads.value_or(capability.q_pad_num_heads));
}

MlaPlan plan_mla(const MlaCapability& capability, const Problem& problem, int num_sms, int sm) {
  MlaPlan plan;
  plan.batch = split_mla_batch(capability, problem);
  plan.quantised_query = capability.fp8_query && allows_quantised_query(capability, problem);
  plan.pad_v = pads_v(problem.mla, sm);
  plan.workspace_tokens = mla_workspace_tokens(problem);
  plan.fp8_prefill = (problem.mla.emulate_fp8_prefill || has_fp8_mla_prefill(problem)) &&
                     !capability.sparse && !capability.latent_only &&
                     is_e4m3_cache(problem.kv_cache.dtype);
  if (capability.latent_only) return plan;  // the rest is the kernel's own affair
  plan.chunks = plan_chunks(problem, plan);
  if (!capability.sparse) {
    plan.num_parts = decode_parts(capability, problem, plan, num_sms);
  } else {
    plan.sparse_batch = split_sparse_batch(capability, problem);
    plan.num_parts = sparse_parts(capability, problem, plan, num_sms);
  }
  return plan;
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

Traffic mla_traffic(const Problem& problem, const MlaCapability& capability) {
  const MlaPlan plan = plan_mla(capability, problem);
  const AttentionSpec& a = problem.attention;
  const MlaSpec& mla = problem.mla;
  const int decodes = plan.batch.num_decodes;
  const int total = static_cast<int>(problem.num_requests());
  const auto element = static_cast<double>(dtype_size(a.dtype));
  const auto per_entry = static_cast<double>(latent_entry_bytes(
      mla_cache_dtype(capability, problem), a.dtype, mla.kv_lora_rank, mla.qk_rope_head_dim));
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
    if (has_extra_keys(problem)) {
      unique += static_cast<double>(decodes) * problem.mla.sparse_extra_keys.value_or(0);
    }
    unique = std::min(unique, latents);
  }
  return {per_entry * unique + expanded + rows, per_entry * latents + expanded};
}

}  // namespace attnbench
