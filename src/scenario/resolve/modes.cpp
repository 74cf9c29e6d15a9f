// Contradictions inside the sections mla, mm_encoder, output_quant and op.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "metadata/batch.h"
#include "metadata/mla/prefill.h"
#include "scenario/resolve/resolve.h"

namespace attnbench {
namespace {

/// A prefill backend that a scenario names must fit (§13.3).
void check_prefill_backend(const CaseValues& values, const Problem& problem) {
  constexpr std::string_view kKey = "mla.prefill_backend";
  const std::string& name = problem.mla.prefill_backend;
  if (!values.gives(kKey)) return;
  if (!is_mla_prefill_backend(name)) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected FLASH_ATTN_PREFILL, TRTLLM_RAGGED or FLASHINFER, found '{}'", name);
  }
  const std::vector<std::string> reasons =
      mla_prefill_reasons(name, problem.mla, problem.attention.dtype);
  if (!reasons.empty()) {
    values.reject(ErrorKind::kConfig, kKey, "{}", mla_prefill_message(name, reasons));
  }
}

/// §8.6: e4m3 prefill reads an fp8 cache as it is stored.
void check_fp8_prefill(const CaseValues& values, const Problem& problem) {
  constexpr std::string_view kKey = "mla.emulate_fp8_prefill";
  if (!problem.mla.emulate_fp8_prefill) return;
  const auto is_one = [](double scale) { return scale == 1.0; };
  const std::vector<double>& k_scale = problem.kv_cache.k_scale;
  if (!std::all_of(k_scale.begin(), k_scale.end(), is_one)) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected kv_cache.k_scale 1 (the cache is gathered raw), found {}",
                  k_scale.front());
  }
  const KvCacheDtype dtype = problem.kv_cache.dtype;
  if (!is_e4m3_cache(dtype)) {
    values.reject(ErrorKind::kConfig, kKey, "expected kv_cache.dtype fp8 with it, found {}",
                  to_string(dtype));
  }
}

void check_mla(const CaseValues& values, const Problem& problem) {
  const MlaSpec& mla = problem.mla;
  if (mla.sparse_topk && *mla.sparse_topk % 128 != 0) {
    values.reject(ErrorKind::kConfig, "mla.sparse_topk", "expected a multiple of 128, found {}",
                  *mla.sparse_topk);
  }
  if (mla.workspace_tokens && *mla.workspace_tokens % problem.dcp.world_size != 0) {
    values.reject(ErrorKind::kConfig, "mla.workspace_tokens",
                  "expected a multiple of dcp.world_size = {}, found {}", problem.dcp.world_size,
                  *mla.workspace_tokens);
  }
  if (mla.q_pad_num_heads && *mla.q_pad_num_heads < problem.attention.num_heads) {
    values.reject(ErrorKind::kConfig, "mla.q_pad_num_heads",
                  "expected at least attention.num_heads = {}, found {}",
                  problem.attention.num_heads, *mla.q_pad_num_heads);
  }
  check_prefill_backend(values, problem);
  check_fp8_prefill(values, problem);
}

/// The chunk plan of one kind of MLA backend (§8.5). E-VALUE for prefills in the wrong order
/// (§1.4), E-CONFIG for a workspace that is too small.
void plan_dense_mla(const Problem& problem, MetadataBuilder builder) {
  const int first_prefill = split_batch(problem, builder, true).num_decodes;
  plan_mla_chunks(query_start_loc_of(problem, first_prefill), seq_lens_of(problem, first_prefill),
                  mla_workspace_tokens(problem), problem.kv_cache.block_size,
                  DcpGroup::of(problem));
}

/// A batch that no dense MLA backend could run. Sparse ones run every row as a decode.
void check_mla_batch(const CaseValues& values, const Problem& problem) {
  if (problem.mla.sparse_topk) return;
  std::optional<Error> first;
  for (const MetadataBuilder builder : {MetadataBuilder::kMlaSingleOnly, MetadataBuilder::kFlashMla,
                                        MetadataBuilder::kFlashAttnMla}) {
    try {
      return plan_dense_mla(problem, builder);
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  values.reject(first->kind(),
                first->kind() == ErrorKind::kConfig ? "mla.workspace_tokens" : "batch", "{}",
                first->what());
}

/// Semantics §10.6, §10.7.
void check_mm_encoder(const CaseValues& values, const Problem& problem) {
  const MmEncoderSpec& mm = problem.mm_encoder;
  if (problem.attention.v_head_size != problem.attention.head_size) {
    values.reject(ErrorKind::kShape, "attention.v_head_size",
                  "expected head_size = {} for {} {}, found {}", problem.attention.head_size,
                  problem.op.name ? "op" : "type",
                  problem.op.name ? to_string(*problem.op.name) : "mm_encoder",
                  problem.attention.v_head_size);
  }
  const bool is_op = problem.attention.type == AttentionType::kOp;
  const bool fp8 = is_op || mm.attn_dtype == MmAttnDtype::kFp8;
  for (const char* key : {"mm_encoder.fp8_scale_path", "mm_encoder.fp8_scale_save_path"}) {
    if (!fp8 && values.gives(key)) {
      values.reject(ErrorKind::kConfig, key, "expected mm_encoder.attn_dtype fp8 with it, found {}",
                    to_string(mm.attn_dtype));
    }
  }
  if (mm.fp8_scale_path && mm.fp8_scale_save_path) {
    values.reject(ErrorKind::kConfig, "mm_encoder.fp8_scale_save_path",
                  "expected no fp8_scale_path beside it (saving requires dynamic scaling), found "
                  "both");
  }
  if (fp8 && !mm.fp8_scale_path && problem.timing.mode == TimingMode::kGraph) {
    values.reject(ErrorKind::kConfig, "timing.mode",
                  "expected stream with dynamic fp8 scales (they cannot be captured), found graph");
  }
}

/// Semantics §9: groups must fill the row of H * Dv columns, under DCP that of a rank's own heads.
void check_output_quant(const CaseValues& values, const Problem& problem) {
  const std::int64_t columns = std::int64_t{problem.attention.num_heads / problem.dcp.world_size} *
                               problem.attention.v_head_size;
  const char* heads = problem.dcp.world_size > 1 ? "num_heads / dcp.world_size" : "num_heads";
  const auto check = [&](std::int64_t group) {
    if (columns % group == 0) return;
    values.reject(ErrorKind::kShape, "output_quant.type",
                  "expected {} * v_head_size to be a multiple of {} for {}, found {}", heads, group,
                  to_string(problem.output_quant.type), columns);
  };
  switch (problem.output_quant.type) {
    case OutputQuantType::kFp8Group128:
      return check(128);
    case OutputQuantType::kFp8Group64:
      return check(64);
    case OutputQuantType::kNvfp4:
      return check(16);
    case OutputQuantType::kNone:
    case OutputQuantType::kFp8Static:
      return;
  }
}

}  // namespace

void check_modes(const CaseValues& values, const Problem& problem) {
  if (problem.attention.type == AttentionType::kMla) {
    check_mla(values, problem);
    check_mla_batch(values, problem);
  }
  check_op(values, problem);
  const bool quantises_encoder =
      problem.attention.type == AttentionType::kOp && problem.op.name == OpKind::kMmQuant;
  if (problem.attention.type == AttentionType::kMmEncoder || quantises_encoder) {
    check_mm_encoder(values, problem);
  }
  check_output_quant(values, problem);
}

}  // namespace attnbench
