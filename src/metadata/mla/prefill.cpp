// Prefill of MLA: limits of its backends, size of the workspace, chunks of the context. Messages
// and limits are upstream's, word for word, since users search for them.
#include "metadata/mla/prefill.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "core/error.h"
#include "core/problem/problem.h"
#include "metadata/int_math.h"
#include "metadata/validation.h"

namespace attnbench {
namespace {

constexpr std::array<std::string_view, 3> kPrefillNames{kFlashAttnPrefill, "TRTLLM_RAGGED",
                                                        "FLASHINFER"};
constexpr int kBlackwellMajor = 10;
constexpr int kMaxHeadSize = 256;
constexpr int kHeadSizeMultiple = 8;

std::vector<std::string> flash_attn_reasons(const MlaSpec& mla, Dtype dtype) {
  const int qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim;
  std::vector<std::string> reasons;
  if (qk > kMaxHeadSize || qk % kHeadSizeMultiple != 0) {
    reasons.push_back(fmt::format("head_size {} not supported", qk));
  }
  if (mla.v_head_dim > qk) {
    reasons.push_back(fmt::format("v_head_dim {} larger than {}", mla.v_head_dim, qk));
  }
  if (dtype != Dtype::kF16 && dtype != Dtype::kBF16) reasons.emplace_back("dtype not supported");
  return reasons;
}

std::vector<std::string> blackwell_reasons(const MlaSpec& mla, Dtype dtype, std::optional<int> sm) {
  std::vector<std::string> reasons;
  if (sm && *sm / 10 != kBlackwellMajor) {
    reasons.push_back(fmt::format("compute capability {}.{} not supported", *sm / 10, *sm % 10));
  }
  if (dtype != Dtype::kF16 && dtype != Dtype::kBF16) reasons.emplace_back("dtype not supported");
  if (mla.qk_nope_head_dim != 128 || mla.qk_rope_head_dim != 64 || mla.v_head_dim != 128) {
    reasons.emplace_back("requires qk_nope_head_dim 128, qk_rope_head_dim 64, v_head_dim 128");
  }
  return reasons;
}

constexpr int64_t kTokensPerModelLen = 8;
constexpr int64_t kBlocksPerSeq = 4;
constexpr int64_t kWorkspaceLimit = 65536;

/// Number of prefills with context; they must come first.
int count_with_context(std::span<const int32_t> context) {
  const auto first_without = std::ranges::find(context, 0);
  const auto stray = std::find_if(first_without, context.end(), [](int32_t c) { return c > 0; });
  if (stray != context.end()) {
    fail(ErrorKind::kValue,
         "prefill order: expected prefills with context before those without, got context {} at "
         "prefill {}",
         *stray, stray - context.begin());
  }
  return static_cast<int>(first_without - context.begin());
}

int64_t chunk_size(int64_t workspace_tokens, int num_with_context, int block_size,
                   const DcpGroup& group) {
  int64_t unit = block_size;
  if (group.world_size > 1) {
    unit = std::lcm(unit, int64_t{group.world_size} * group.interleave_size);
  }
  const int64_t size = round_down(workspace_tokens / num_with_context, unit);
  if (size < 1) {
    fail(ErrorKind::kConfig,
         "mla workspace_tokens: expected at least {} for {} prefills with context, got {}",
         unit * num_with_context, num_with_context, workspace_tokens);
  }
  return size;
}

/// Rows of [0, length) that fall into chunk `index` of `size` rows.
int32_t rows_in_chunk(int64_t length, int64_t size, int64_t index) {
  return static_cast<int32_t>(std::clamp<int64_t>(length - index * size, 0, size));
}

MlaChunk make_chunk(std::span<const int32_t> context, int64_t size, int64_t index) {
  MlaChunk chunk;
  chunk.starts.assign(context.size(), checked_int32(index * size, "chunk start"));
  for (const int32_t length : context) chunk.lens.push_back(rows_in_chunk(length, size, index));
  chunk.cu_seq_lens = cumulative(chunk.lens);
  chunk.num_tokens = chunk.cu_seq_lens.back();
  chunk.max_seq_len = *std::ranges::max_element(chunk.lens);
  for (size_t b = 0; b < context.size(); ++b) {
    chunk.token_to_seq.insert(chunk.token_to_seq.end(), static_cast<size_t>(chunk.lens[b]),
                              static_cast<int32_t>(b));
  }
  return chunk;
}

void add_local_part(MlaChunk& chunk, std::span<const int32_t> context, int64_t size, int64_t index,
                    const DcpGroup& group) {
  const int64_t local_size = dcp_max_local_seq_len(size, group);
  chunk.local_starts.assign(context.size(), checked_int32(index * local_size, "chunk start"));
  for (const int32_t length : context) {
    const int64_t padded = dcp_max_local_seq_len(length, group);
    chunk.padded_local_lens.push_back(rows_in_chunk(padded, local_size, index));
  }
  chunk.padded_local_cu = cumulative(chunk.padded_local_lens);
  chunk.num_local_tokens = chunk.padded_local_cu.back();
}

}  // namespace

bool is_mla_prefill_backend(std::string_view name) {
  return std::find(kPrefillNames.begin(), kPrefillNames.end(), name) != kPrefillNames.end();
}

std::vector<std::string> mla_prefill_reasons(std::string_view name, const MlaSpec& mla, Dtype dtype,
                                             std::optional<int> sm) {
  return name == kFlashAttnPrefill ? flash_attn_reasons(mla, dtype)
                                   : blackwell_reasons(mla, dtype, sm);
}

bool has_fp8_mla_prefill(const Problem& problem) {
  return problem.mla.use_prefill_query_quantization &&
         problem.mla.prefill_backend != kFlashAttnPrefill && is_e4m3_cache(problem.kv_cache.dtype);
}

std::string mla_prefill_message(std::string_view name, const std::vector<std::string>& reasons) {
  return fmt::format(
      "Selected MLA prefill backend {} is not valid for this configuration. Reason: [{}]", name,
      fmt::join(reasons, ", "));
}

int64_t mla_workspace_tokens(int64_t max_model_len, int64_t max_num_seqs, int64_t block_size) {
  const int64_t by_length = checked_mul(kTokensPerModelLen, max_model_len, "MLA workspace");
  const int64_t one_block_each = checked_mul(max_num_seqs, block_size, "MLA workspace");
  const int64_t by_seqs = checked_mul(kBlocksPerSeq, one_block_each, "MLA workspace");
  return std::max(std::min(std::max(by_length, by_seqs), kWorkspaceLimit), one_block_each);
}

int64_t mla_workspace_tokens(const Problem& problem) {
  if (problem.mla.workspace_tokens) return *problem.mla.workspace_tokens;
  const EngineSpec& engine = problem.engine;
  return mla_workspace_tokens(
      engine.max_model_len.value_or(problem.max_seq_len()),
      engine.max_num_seqs.value_or(std::max<int64_t>(1, problem.num_requests())),
      problem.kv_cache.block_size);
}

int64_t mla_workspace_rows(int64_t workspace_tokens, int dcp_world_size) {
  if (dcp_world_size <= 1) return workspace_tokens;
  if (workspace_tokens % dcp_world_size != 0) {
    fail(ErrorKind::kConfig,
         "mla workspace_tokens: expected a multiple of dcp world_size {}, got {}", dcp_world_size,
         workspace_tokens);
  }
  return workspace_tokens + workspace_tokens / dcp_world_size;
}

std::optional<MlaChunkPlan> plan_mla_chunks(std::span<const int32_t> query_start_loc,
                                            std::span<const int32_t> seq_lens,
                                            int64_t workspace_tokens, int block_size,
                                            const DcpGroup& group) {
  check_dcp_group(group, block_size);
  mla_workspace_rows(workspace_tokens, group.world_size);
  const std::vector<int32_t> context = context_lens_of(query_start_loc, seq_lens);
  MlaChunkPlan plan;
  plan.num_with_context = count_with_context(context);
  if (plan.num_with_context == 0) return std::nullopt;
  plan.group = group;
  plan.max_context_chunk = chunk_size(workspace_tokens, plan.num_with_context, block_size, group);
  plan.prefill_tokens_with_context = query_start_loc[static_cast<size_t>(plan.num_with_context)];
  const int64_t size = plan.max_context_chunk;
  const int64_t num_chunks = ceil_div(*std::ranges::max_element(context), size);
  size_t most_tokens = 0;
  for (int64_t i = 0; i < num_chunks; ++i) {
    plan.chunks.push_back(make_chunk(context, size, i));
    most_tokens = std::max(most_tokens, plan.chunks.back().token_to_seq.size());
    if (group.world_size > 1) add_local_part(plan.chunks.back(), context, size, i, group);
  }
  for (MlaChunk& chunk : plan.chunks) chunk.token_to_seq.resize(most_tokens, 0);
  if (group.world_size > 1) plan.local_context_lens = dcp_local_seq_lens(context, group);
  return plan;
}

std::vector<int64_t> reorg_source_rows(const MlaChunkPlan& plan, size_t index) {
  const MlaChunk& chunk = plan.chunks.at(index);
  const auto world_size = static_cast<size_t>(plan.group.world_size);
  if (plan.local_context_lens.size() != chunk.lens.size() * world_size ||
      chunk.padded_local_lens.size() != chunk.lens.size()) {
    fail(ErrorKind::kValue, "reorg_kvcache: expected the local lengths of {} ranks, got {}",
         world_size, plan.local_context_lens.size());
  }
  std::vector<int64_t> rows;
  rows.reserve(static_cast<size_t>(chunk.num_tokens));
  for (size_t b = 0; b < chunk.lens.size(); ++b) {
    const size_t first_row = rows.size();
    for (size_t rank = 0; rank < world_size; ++rank) {
      const int32_t local_len = plan.local_context_lens[b * world_size + rank];
      const int32_t here =
          std::clamp(local_len - chunk.local_starts[b], 0, chunk.padded_local_lens[b]);
      const int64_t offset =
          static_cast<int64_t>(rank) * chunk.num_local_tokens + chunk.padded_local_cu[b];
      for (int32_t row = 0; row < here; ++row) rows.push_back(offset + row);
    }
    const auto expected = static_cast<size_t>(chunk.lens[b]);
    if (rows.size() - first_row != expected) {
      fail(ErrorKind::kValue, "reorg_kvcache: expected {} rows for request {}, got {}", expected, b,
           rows.size() - first_row);
    }
  }
  return rows;
}

}  // namespace attnbench
