// MLA prefill: which of upstream's backends fits a configuration (semantics §13.3), the workspace,
// the chunks in which the context is gathered into it, and the reordering of what the ranks of a
// DCP group gathered (§8.5, §8.6).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem/problem.h"
#include "metadata/parts/dcp.h"

namespace attnbench {

/// The default of mla.prefill_backend.
constexpr std::string_view kFlashAttnPrefill = "FLASH_ATTN_PREFILL";

/// Names of semantics §13.3.
bool is_mla_prefill_backend(std::string_view name);

/// Reasons against a backend on a device of compute capability `sm`, or on every device without it;
/// empty = it fits. FLASH_ATTN_PREFILL takes query and key heads of P + R <= 256, a multiple of 8,
/// and values no wider; the others take the heads of DeepSeek R1, on SM 10.x.
std::vector<std::string> mla_prefill_reasons(std::string_view name, const MlaSpec& mla, Dtype dtype,
                                             std::optional<int> sm = std::nullopt);

/// Whether prefills attend in e4m3 on the devices that their backend runs on (§8.6): it must be one
/// of SM 10.x, the cache fp8, and mla.use_prefill_query_quantization set. Else they have the
/// model's type.
bool has_fp8_mla_prefill(const Problem& problem);

/// "Selected MLA prefill backend X is not valid for this configuration. Reason: [...]".
std::string mla_prefill_message(std::string_view name, const std::vector<std::string>& reasons);

/// Workspace rows Wk of kv_lora_rank + rope elements each; E-CAPACITY beyond 64 bits.
int64_t mla_workspace_tokens(int64_t max_model_len, int64_t max_num_seqs, int64_t block_size);
/// Those that the problem gives, or by the formula above; where it names no limits of an engine,
/// the batch's own lengths stand for max_model_len and max_num_seqs.
int64_t mla_workspace_tokens(const Problem& problem);

/// Rows of the workspace buffer: Wk, or Wk + Wk / W under DCP, where Wk % W != 0 is E-CONFIG.
int64_t mla_workspace_rows(int64_t workspace_tokens, int dcp_world_size);

/// One chunk of context of every prefill; a request may have no rows in it.
struct MlaChunk {
  std::vector<int32_t> starts;        // [B] first context position
  std::vector<int32_t> lens;          // [B]
  std::vector<int32_t> cu_seq_lens;   // [B+1]
  int32_t num_tokens = 0;             // sum of lens, at most Wk
  int32_t max_seq_len = 0;            // longest of lens
  std::vector<int32_t> token_to_seq;  // [largest num_tokens of all chunks], zero padded

  // DCP only: what every rank copies from its own cache, padded to the same length on all ranks.
  std::vector<int32_t> local_starts;       // [B] first local context index
  std::vector<int32_t> padded_local_lens;  // [B]
  std::vector<int32_t> padded_local_cu;    // [B+1]
  int32_t num_local_tokens = 0;            // sum of padded_local_lens, at most Wk / W
};

struct MlaChunkPlan {
  int num_with_context = 0;  // n_ctx; these prefills come first
  int64_t max_context_chunk = 0;
  int32_t prefill_tokens_with_context = 0;
  DcpGroup group;
  std::vector<MlaChunk> chunks;
  std::vector<int32_t> local_context_lens;  // DCP only: [B, W] true lengths
};

/// Chunk plan of the prefills of a batch: query_start_loc [B+1] re-based to 0, seq_lens [B].
/// nullopt when no prefill has context. A prefill with context behind one without is E-VALUE, a
/// workspace too small for one block a request E-CONFIG. Under DCP the chunk is a multiple of
/// lcm(block_size, W * I), so that every rank's share of it has the same length.
std::optional<MlaChunkPlan> plan_mla_chunks(std::span<const int32_t> query_start_loc,
                                            std::span<const int32_t> seq_lens,
                                            int64_t workspace_tokens, int block_size,
                                            const DcpGroup& group = {});

/// [num_tokens] For every row of chunk `index`, request by request and rank-major inside a request,
/// the row of the all-gathered [W * num_local_tokens] buffer that holds it (reorg_kvcache). Needs a
/// plan made for DCP; E-VALUE when the lengths do not add up.
std::vector<int64_t> reorg_source_rows(const MlaChunkPlan& plan, size_t index);

}  // namespace attnbench
