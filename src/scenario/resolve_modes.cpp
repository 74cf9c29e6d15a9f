// Contradictions inside the sections mla, mm_encoder, output_quant and op.
#include <algorithm>

#include "scenario/resolve.h"

namespace attnbench {
namespace {

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
  const auto is_one = [](double scale) { return scale == 1.0; };
  const std::vector<double>& k_scale = problem.kv_cache.k_scale;
  if (mla.emulate_fp8_prefill && !std::all_of(k_scale.begin(), k_scale.end(), is_one)) {
    values.reject(ErrorKind::kConfig, "mla.emulate_fp8_prefill",
                  "expected kv_cache.k_scale 1 (the cache is gathered raw), found {}",
                  k_scale.front());
  }
}

/// Semantics §10.6, §10.7.
void check_mm_encoder(const CaseValues& values, const Problem& problem) {
  const MmEncoderSpec& mm = problem.mm_encoder;
  if (problem.attention.v_head_size != problem.attention.head_size) {
    values.reject(ErrorKind::kShape, "attention.v_head_size",
                  "expected head_size = {} for type mm_encoder, found {}",
                  problem.attention.head_size, problem.attention.v_head_size);
  }
  const bool fp8 = mm.attn_dtype == MmAttnDtype::kFp8;
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

/// Semantics §9: groups must fill the row of H * Dv columns.
void check_output_quant(const CaseValues& values, const Problem& problem) {
  const std::int64_t columns =
      std::int64_t{problem.attention.num_heads} * problem.attention.v_head_size;
  const auto check = [&](std::int64_t group) {
    if (columns % group == 0) return;
    values.reject(ErrorKind::kShape, "output_quant.type",
                  "expected num_heads * v_head_size to be a multiple of {} for {}, found {}", group,
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
  if (problem.attention.type == AttentionType::kMla) check_mla(values, problem);
  if (problem.attention.type == AttentionType::kMmEncoder) check_mm_encoder(values, problem);
  if (problem.attention.type == AttentionType::kOp && !problem.op.name) {
    values.reject(ErrorKind::kFormat, "op.name", "expected an operation for type op, found none");
  }
  check_output_quant(values, problem);
}

}  // namespace attnbench
