// Rows are those of semantics §13.1 in its order, with the encoder's own rows behind them; a reason
// that cannot apply to an encoder is not tested for.
#include "backends/encoder/capability.h"

#include <fmt/format.h>

#include <algorithm>

#include "backends/refusals.h"

namespace attnbench {
namespace {

/// First compute capability with e4m3 in its matrix units (§10.5).
constexpr int kMinSmFp8 = 89;

bool wants_fp8(const Problem& problem) {
  return problem.attention.type == AttentionType::kMmEncoder &&
         problem.mm_encoder.attn_dtype == MmAttnDtype::kFp8;
}

/// Rows 1, 2, 7, 10 and 11 of §13.1.
void add_layer_reasons(const MmCapability& can, const Problem& problem, Refusals& reasons) {
  const AttentionSpec& a = problem.attention;
  reasons.check_head_size(can.head_size_multiple, can.min_head_size, can.max_head_size);
  reasons.check_dtype(can.dtypes);
  reasons.mla();
  reasons.sinks();
  const bool fp8_here = can.fp8 && wants_fp8(problem);
  reasons.compute_capability(fp8_here ? std::max(can.min_sm, kMinSmFp8) : can.min_sm);
  reasons.attention_type(a.type != AttentionType::kMmEncoder && a.type != AttentionType::kMla);
}

/// Row 15: what the layer has no argument for (§10.1, §13.5).
void add_feature_reasons(const MmCapability& can, const Problem& problem, Refusals& reasons) {
  const AttentionSpec& a = problem.attention;
  const auto ignores = [&](bool ignored, const char* feature) {
    reasons.ignored_by_encoder(can.upstream_name, ignored, feature);
  };
  reasons.int8_of_type();
  reasons.cascade_by(can.upstream_name);
  reasons.dcp_without_lse();
  ignores(a.alibi != AlibiKind::kNone, "ALiBi");
  ignores(a.logits_soft_cap > 0, "softcap");
  ignores(a.sliding_window.has_value(), "window");
  ignores(problem.output_quant.type != OutputQuantType::kNone, "output_scale");
  reasons.quantised_kv_of_encoder();
  reasons.fp8_query();
}

/// §10.2 and the columns "lengths" and "fp8" of §13.3.
void add_form_reasons(const MmCapability& can, const Problem& problem, Refusals& reasons) {
  const bool without_cu = problem.mm_encoder.batch_size.has_value();
  reasons.add_if(
      without_cu && !can.batch_form,
      fmt::format("{} requires cu_seqlens, max_seqlen and sequence_lengths", can.upstream_name));
  const bool other_key_len =
      std::ranges::any_of(problem.batch, [](const Request& r) { return r.query_len != r.seq_len; });
  reasons.add_if(without_cu && can.batch_form && !can.other_key_len && other_key_len,
                 fmt::format("{} requires key length equal to query length", can.upstream_name));
  // §10.4: V lies inside rows of Q, K and V.
  const std::int64_t row =
      std::int64_t{3} * (problem.mm_encoder.hidden_size / std::max(1, problem.mm_encoder.tp_size));
  const std::int64_t width =
      std::int64_t{problem.attention.num_kv_heads} * problem.attention.v_head_size;
  const bool interleaved = can.lengths == MmLengthsBackend::kFlashInfer &&
                           problem.mm_encoder.hidden_size > 0 && !wants_fp8(problem);
  reasons.add_if(
      interleaved && width > row,
      fmt::format("rows of 3 * hidden_size / tp_size = {} elements, for {} of V", row, width));
  reasons.add_if(wants_fp8(problem) && !can.fp8,
                 fmt::format("mm_encoder_attn_dtype='fp8' requires the FLASHINFER backend, got {}",
                             can.upstream_name));
  reasons.e4m3_probability(!(can.fp8 && wants_fp8(problem)));
  reasons.fast_fp8_sums(!(can.fp8 && wants_fp8(problem)));
}

}  // namespace

MmCapability mm_torch_sdpa_capability() {
  using enum Dtype;
  MmCapability sdpa;
  sdpa.name = "MM_TORCH_SDPA";
  sdpa.upstream_name = "TORCH_SDPA";
  sdpa.description = "vLLM's ViT attention by torch SDPA: one chunk a sequence, any head size";
  sdpa.lengths = MmLengthsBackend::kTorchSdpa;
  sdpa.dtypes = {kF16, kBF16, kF32};
  sdpa.other_key_len = true;
  return sdpa;
}

MmCapability mm_flash_attn_capability() {
  using enum Dtype;
  MmCapability flash;
  flash.name = "MM_FLASH_ATTN";
  flash.upstream_name = "FLASH_ATTN";
  flash.description = "vLLM's ViT attention by FlashAttention: varlen over cu_seqlens";
  flash.lengths = MmLengthsBackend::kFlashAttn;
  flash.dtypes = {kF16, kBF16};
  flash.head_size_multiple = 8;
  flash.max_head_size = 256;
  flash.min_sm = 80;
  return flash;
}

MmCapability mm_triton_attn_capability() {
  using enum Dtype;
  MmCapability triton;
  triton.name = "MM_TRITON_ATTN";
  triton.upstream_name = "TRITON_ATTN";
  triton.description = "vLLM's ViT attention by the Triton prefill kernel, starts from cu_seqlens";
  triton.lengths = MmLengthsBackend::kTritonAttn;
  triton.dtypes = {kF16, kBF16, kF32};
  triton.min_head_size = 32;
  return triton;
}

MmCapability mm_flashinfer_capability() {
  using enum Dtype;
  MmCapability flashinfer;
  flashinfer.name = "MM_FLASHINFER";
  flashinfer.upstream_name = "FLASHINFER";
  flashinfer.description =
      "vLLM's ViT attention by cuDNN: element offsets, padded batch, V inside the QKV rows, fp8";
  flashinfer.lengths = MmLengthsBackend::kFlashInfer;
  flashinfer.dtypes = {kF16, kBF16};
  flashinfer.max_head_size = 256;
  flashinfer.min_sm = 80;
  flashinfer.batch_form = false;
  flashinfer.fp8 = true;
  return flashinfer;
}

std::vector<std::string> mm_refusals(const MmCapability& capability, const Problem& problem,
                                     const DeviceFacts& device) {
  Refusals reasons(problem, device);
  add_layer_reasons(capability, problem, reasons);
  add_feature_reasons(capability, problem, reasons);
  if (problem.attention.type == AttentionType::kMmEncoder) {
    add_form_reasons(capability, problem, reasons);
  }
  return reasons.take();
}

}  // namespace attnbench
