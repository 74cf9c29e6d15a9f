// Upstream's tables as data: one row a backend, and the lists of priorities
// (vllm/platforms/cuda.py, the classes of vllm/v1/attention/backends and vLLM's table of them), as
// released in vLLM 0.22.0.
#include "backends/upstream_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "backends/refusals.h"
#include "metadata/blocks.h"

namespace attnbench {

// Sources that are compiled together with this one have names like these for themselves.
namespace upstream {
namespace {

using enum KvCacheDtype;
using enum AttentionType;

constexpr int kAnySm = 1 << 30;

/// What a class of upstream answers to validate_configuration(); on a device where that depends on
/// it.
struct Limits {
  std::string name;
  std::string impl{};  // the class that runs it, as messages name it
  bool lse = false;    // it returns the LSE of decodes
  bool alibi_sqrt = false;
  std::vector<Dtype> dtypes{Dtype::kF16, Dtype::kBF16};
  std::vector<KvCacheDtype> kv_dtypes{kAuto, kFloat16, kBFloat16};
  std::vector<int> head_sizes{};  // empty = by multiple, least and most
  int head_size_multiple = 1;
  int least_head_size = 1;
  int most_head_size = 1 << 30;
  std::vector<BlockSizeRule> block_sizes{{16, true}};
  int least_sm = 0;
  int most_sm = kAnySm;
  std::vector<AttentionType> types{kDecoder};
  bool mla = false;
  bool sparse = false;
  bool sinks = false;
  bool mm_prefix = false;
  bool per_head_scales = false;
  bool non_causal = false;
  bool batch_invariance = false;
};

bool is_hopper(int sm) { return sm / 10 == 9; }
bool is_blackwell(int sm) { return sm / 10 == 10; }

/// FlashAttention 3 on SM 9.x, 4 on SM 10.x unless results must not depend on the batch, elsewhere
/// 2. Heads of more than 256 are for version 4, which runs on SM 9.x to 11.x if asked to.
Limits flash_attn(const Problem& problem, int sm) {
  Limits l{.name = "FLASH_ATTN", .impl = "FlashAttentionImpl", .lse = true};
  const bool fa3 = is_hopper(sm);
  const bool fa4 = is_blackwell(sm) && !problem.attention.batch_invariant;
  if (fa3) l.kv_dtypes.insert(l.kv_dtypes.end(), {kFp8, kFp8E4M3});
  l.head_size_multiple = 8;
  l.most_head_size = sm >= 90 && sm < 120 ? 512 : 256;
  l.least_sm = 80;
  l.types = {kDecoder, kEncoder, kEncoderOnly, kEncoderDecoder};
  l.sinks = l.per_head_scales = fa3 || fa4;
  l.non_causal = l.batch_invariance = true;
  return l;
}

/// Sinks by the kernels of TensorRT-LLM, which there are on SM 10.x; they depend on the batch.
Limits flashinfer(const Problem& problem, int sm) {
  Limits l{.name = "FLASHINFER", .impl = "FlashInferImpl", .lse = true};
  l.kv_dtypes.insert(l.kv_dtypes.end(), {kFp8, kFp8E4M3, kFp8E5M2, kNvfp4});
  l.head_sizes = {64, 128, 256, 512};
  l.block_sizes = {{16, false}, {32, false}, {64, false}};
  l.least_sm = 75;
  l.most_sm = 121;
  l.sinks = is_blackwell(sm) && !problem.attention.batch_invariant;
  return l;
}

Limits triton_attn() {
  Limits l{.name = "TRITON_ATTN", .impl = "TritonAttentionImpl", .alibi_sqrt = true};
  l.dtypes = {Dtype::kF16, Dtype::kBF16, Dtype::kF32};
  l.kv_dtypes.insert(l.kv_dtypes.end(),
                     {kFp8, kFp8E4M3, kFp8E5M2, kInt8PerTokenHead, kFp8PerTokenHead});
  l.least_head_size = 32;
  l.types = {kDecoder, kEncoder, kEncoderOnly, kEncoderDecoder};
  l.sinks = l.mm_prefix = l.batch_invariance = true;
  return l;
}

Limits flex_attention() {
  Limits l{.name = "FLEX_ATTENTION", .impl = "FlexAttentionImpl"};
  l.dtypes = {Dtype::kF16, Dtype::kBF16, Dtype::kF32};
  l.types = {kDecoder, kEncoderOnly};
  l.mm_prefix = l.non_causal = l.batch_invariance = true;
  return l;
}

Limits turboquant() {
  Limits l{.name = "TURBOQUANT", .impl = "TurboQuantAttentionImpl"};
  l.kv_dtypes = {kTurboK8V4, kTurbo4Bit, kTurboK3V4, kTurbo3Bit};
  l.block_sizes = {{16, false}, {32, false}, {64, false}, {128, false}};
  return l;
}

Limits mla_limits(const char* name, const char* impl, bool lse, bool fp8) {
  Limits l{.name = name, .impl = impl, .lse = lse};
  l.head_sizes = {320, 576};
  if (fp8) l.kv_dtypes.insert(l.kv_dtypes.end(), {kFp8, kFp8E4M3});
  l.mla = true;
  return l;
}

Limits flashinfer_mla() {
  Limits l = mla_limits("FLASHINFER_MLA", "FlashInferMLAImpl", false, true);
  l.block_sizes = {{32, false}, {64, false}};
  l.least_sm = 100;
  l.most_sm = 109;
  return l;
}

/// The dimensions of DeepSeek-R1 and an fp8 cache only.
Limits tokenspeed_mla() {
  Limits l = flashinfer_mla();
  l.name = "TOKENSPEED_MLA";
  l.impl = "TokenspeedMLAImpl";
  l.kv_dtypes = {kFp8, kFp8E4M3};
  return l;
}

Limits cutlass_mla() {
  Limits l = mla_limits("CUTLASS_MLA", "CutlassMLAImpl", true, true);
  l.block_sizes = {{128, false}};
  l.least_sm = 100;
  l.most_sm = 109;
  return l;
}

Limits flash_attn_mla() {
  Limits l = mla_limits("FLASH_ATTN_MLA", "FlashAttnMLAImpl", true, false);
  l.least_sm = 90;
  l.most_sm = 99;
  l.batch_invariance = true;
  return l;
}

Limits flashmla() {
  Limits l = mla_limits("FLASHMLA", "FlashMLAImpl", true, true);
  l.block_sizes = {{64, false}};
  l.least_sm = 90;
  l.most_sm = 109;
  return l;
}

Limits triton_mla() {
  Limits l = mla_limits("TRITON_MLA", "TritonMLAImpl", true, true);
  l.head_sizes = {};
  l.batch_invariance = true;
  return l;
}

Limits flashmla_sparse() {
  Limits l = flashmla();
  l.name = "FLASHMLA_SPARSE";
  l.impl = "FlashMLASparseImpl";
  l.lse = false;
  l.dtypes = {Dtype::kBF16};
  // fp8 is another name of fp8_ds_mla there.
  l.kv_dtypes = {kAuto, kBFloat16, kFp8DsMla, kFp8};
  l.head_sizes = {576};
  l.sparse = true;
  return l;
}

Limits flashinfer_mla_sparse() {
  Limits l = flashinfer_mla();
  l.name = "FLASHINFER_MLA_SPARSE";
  l.impl = "FlashInferMLASparseImpl";
  l.head_sizes = {576};
  l.sparse = true;
  return l;
}

/// §8.9: FlashMLA pads heads, so FlashInfer goes first where there are few, and with fp8.
std::vector<Limits> sparse_on_blackwell(const Problem& problem) {
  constexpr int kFewHeads = 16;
  const bool flashinfer_first =
      is_quantised(problem.kv_cache.dtype) || problem.attention.num_heads <= kFewHeads;
  if (flashinfer_first) return {flashinfer_mla_sparse(), flashmla_sparse()};
  return {flashmla_sparse(), flashinfer_mla_sparse()};
}

std::vector<Limits> priorities(const Problem& problem, int sm) {
  if (problem.attention.type != AttentionType::kMla) {
    std::vector<Limits> order{flash_attn(problem, sm), flashinfer(problem, sm), triton_attn(),
                              flex_attention(), turboquant()};
    if (is_blackwell(sm)) std::swap(order[0], order[1]);
    return order;
  }
  if (!is_blackwell(sm)) {
    return {flash_attn_mla(), flashmla(), flashinfer_mla(), triton_mla(), flashmla_sparse()};
  }
  std::vector<Limits> order{flashinfer_mla(), tokenspeed_mla(), cutlass_mla(),
                            flash_attn_mla(), flashmla(),       triton_mla()};
  for (Limits& sparse : sparse_on_blackwell(problem)) order.push_back(std::move(sparse));
  return order;
}

/// Upstream's head size: of MLA that of an entry.
int upstream_head_size(const Problem& problem) {
  const MlaSpec& mla = problem.mla;
  return problem.attention.type == AttentionType::kMla ? mla.kv_lora_rank + mla.qk_rope_head_dim
                                                       : problem.attention.head_size;
}

bool takes_head_size(const Limits& can, int head_size) {
  if (!can.head_sizes.empty()) return contains(can.head_sizes, head_size);
  return head_size % can.head_size_multiple == 0 && head_size >= can.least_head_size &&
         head_size <= can.most_head_size;
}

/// Of FlashInfer's and TokenSpeed's kernels for MLA, which are made for some dimensions only.
std::string dimensions_reason(const Limits& can, const Problem& problem) {
  const MlaSpec& mla = problem.mla;
  const int nope = mla.qk_nope_head_dim;
  if (can.name == "FLASHINFER_MLA" && nope != 64 && nope != 128 && nope != 192) {
    return fmt::format(
        "FlashInfer MLA kernel requires qk_nope_head_dim in [64, 128, 192], but got {}", nope);
  }
  if (can.name == "FLASHINFER_MLA_SPARSE") {
    if (nope != 128 && nope != 192) {
      return fmt::format(
          "FlashInfer MLA Sparse kernel requires qk_nope_head_dim in [128, 192], but got {}", nope);
    }
    if (!mla.sparse_topk) return "FlashInfer MLA Sparse requires model with index_topk config";
  }
  if (can.name == "TOKENSPEED_MLA" &&
      (nope != 128 || mla.qk_rope_head_dim != 64 || mla.v_head_dim != 128)) {
    return fmt::format(
        "tokenspeed_mla requires DeepSeek R1 MLA dimensions (qk_nope_head_dim=128, "
        "qk_rope_head_dim=64, v_head_dim=128), got ({}, {}, {})",
        nope, mla.qk_rope_head_dim, mla.v_head_dim);
  }
  return "";
}

/// supports_combination() of upstream, the last of its questions.
std::string combination_reason(const Limits& can, const Problem& problem, int sm) {
  const bool sinks = problem.attention.sinks != SinksKind::kNone;
  if (can.name == "FLASH_ATTN" && sinks && sm < 90) {
    return "sink not supported on compute capability < 9.0";
  }
  if (problem.attention.type != AttentionType::kMla) return "";
  if (can.name == "FLASH_ATTN_MLA" && !is_hopper(sm)) {
    return "FlashAttention MLA not supported on this device";
  }
  if (can.name == "FLASHMLA" && !is_hopper(sm)) {
    if (!problem.mla.sparse_topk) return "FlashMLA Dense is only supported on Hopper devices.";
    if (!is_blackwell(sm)) {
      return "FlashMLA Sparse is only supported on Hopper and Blackwell devices.";
    }
  }
  return dimensions_reason(can, problem);
}

/// validate_configuration(), whose questions are those of §13.1 rows 1 to 14.
std::vector<std::string> reasons_of(const Limits& can, const Problem& problem, int sm) {
  const AttentionSpec& a = problem.attention;
  const KvCacheSpec& cache = problem.kv_cache;
  const bool mla = a.type == AttentionType::kMla;
  const bool sparse = mla && problem.mla.sparse_topk.has_value();
  const AttentionType type = mla ? AttentionType::kDecoder : a.type;
  std::vector<std::string> reasons;
  const auto add_if = [&](bool refused, std::string_view reason) {
    if (refused) reasons.emplace_back(reason);
  };
  add_if(!takes_head_size(can, upstream_head_size(problem)), "head_size not supported");
  add_if(!contains(can.dtypes, a.dtype), "dtype not supported");
  add_if(!contains(can.kv_dtypes, cache.dtype), "kv_cache_dtype not supported");
  add_if(!supports_block_size(cache.block_size, can.block_sizes), "block_size not supported");
  add_if(has_mm_prefix(a) && !can.mm_prefix,
         "partial multimodal token full attention not supported");
  add_if(mla && !can.mla, "MLA not supported");
  add_if(!mla && can.mla, "non-MLA not supported");
  add_if(a.sinks != SinksKind::kNone && !can.sinks, "attention sinks not supported");
  add_if(sparse && !can.sparse, "sparse not supported");
  add_if(!sparse && can.sparse, "non-sparse not supported");
  add_if((cache.k_scale.size() > 1 || cache.v_scale.size() > 1) && !can.per_head_scales,
         "per-head quant scales not supported");
  add_if(sm < can.least_sm || sm > can.most_sm, "compute capability not supported");
  add_if(!contains(can.types, type),
         fmt::format("attention type {} not supported", to_string(type)));
  add_if(type == AttentionType::kDecoder && !a.causal && !can.non_causal,
         "non-causal attention not supported");
  add_if(a.batch_invariant && !can.batch_invariance, "batch invariance not supported");
  const std::string combination = combination_reason(can, problem, sm);
  add_if(!combination.empty(), combination);
  return reasons;
}

/// The backend of this program that upstream's name stands for.
std::string name_here(const std::string& upstream) {
  if (find_backend(upstream) != nullptr) return upstream;
  return upstream == "TRITON_MLA" ? "MLA" : "";
}

/// §10.1: the encoder's own choice asks for head size, dtype and capability only, and takes torch's
/// attention without a question.
std::vector<UpstreamCandidate> encoder_candidates(const Problem& problem, int sm) {
  std::vector<Limits> order{
      flash_attn(problem, sm), triton_attn(), {.name = "TORCH_SDPA"}, flashinfer(problem, sm)};
  if (sm < 80) std::swap(order[1], order[2]);
  std::vector<UpstreamCandidate> all;
  for (const Limits& can : order) {
    UpstreamCandidate candidate{can.name, "MM_" + can.name, {}};
    if (can.name != "TORCH_SDPA") {
      if (!takes_head_size(can, problem.attention.head_size)) {
        candidate.reasons.emplace_back("head_size not supported");
      }
      if (!contains(can.dtypes, problem.attention.dtype)) {
        candidate.reasons.emplace_back("dtype not supported");
      }
      if (sm < can.least_sm || sm > can.most_sm) {
        candidate.reasons.emplace_back("compute capability not supported");
      }
    }
    all.push_back(std::move(candidate));
  }
  return all;
}

/// Classes that no list of priorities names, for those who name them; ROCM_AITER_FA asks for a
/// device of AMD's.
std::optional<Limits> by_name_only(std::string_view name) {
  if (name == "ROCM_AITER_FA") {
    Limits l{.name = "ROCM_AITER_FA"};
    l.kv_dtypes.insert(l.kv_dtypes.end(), {kFp8, kFp8E4M3, kFp8E5M2});
    l.head_sizes = {64, 128, 256};
    l.block_sizes = {{16, false}, {32, false}};
    l.most_sm = -1;
    l.non_causal = true;
    return l;
  }
  if (name == "ROCM_ATTN" || name == "ROCM_AITER_UNIFIED_ATTN") {
    Limits l{.name = std::string(name)};
    l.dtypes = {Dtype::kF16, Dtype::kBF16, Dtype::kF32};
    l.kv_dtypes.insert(l.kv_dtypes.end(), {kFp8, kFp8E4M3, kFp8E5M2});
    l.types = {kDecoder, kEncoder, kEncoderOnly};
    l.mm_prefix = true;
    if (name == "ROCM_ATTN") {
      l.head_sizes = {32, 64, 80, 96, 128, 160, 192, 224, 256};
      l.non_causal = true;
    } else {
      l.least_head_size = 32;
      l.types.push_back(kEncoderDecoder);
      l.sinks = true;
    }
    return l;
  }
  if (name == "ROCM_AITER_MLA" || name == "ROCM_AITER_TRITON_MLA") {
    Limits l = triton_mla();
    l.name = name;
    l.kv_dtypes.push_back(kFp8E5M2);
    l.block_sizes = {{1, true}};
    l.batch_invariance = false;
    return l;
  }
  if (name == "ROCM_AITER_MLA_SPARSE" || name == "XPU_MLA_SPARSE") {
    Limits l = mla_limits("", "", false, name == "ROCM_AITER_MLA_SPARSE");
    l.name = name;
    l.head_sizes = {};
    if (name == "XPU_MLA_SPARSE") l.head_sizes = {576};
    l.block_sizes = {{1, true}};
    l.sparse = true;
    return l;
  }
  if (name == "CPU_ATTN") {
    Limits l{.name = "CPU_ATTN"};
    l.dtypes = {Dtype::kF16, Dtype::kBF16, Dtype::kF32};
    l.kv_dtypes = {kAuto, kFp8, kFp8E4M3, kFp8E5M2};
    l.head_sizes = {32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512};
    l.types = {kDecoder, kEncoder, kEncoderOnly, kEncoderDecoder};
    return l;
  }
  return std::nullopt;
}

std::optional<Limits> limits_of(std::string_view name, const Problem& problem, int sm) {
  if (std::optional<Limits> own = by_name_only(name)) return own;
  for (Limits& can : std::vector{flash_attn(problem, sm), flashinfer(problem, sm), flex_attention(),
                                 flashinfer_mla(), tokenspeed_mla()}) {
    if (can.name == name) return std::move(can);
  }
  return std::nullopt;
}

}  // namespace
}  // namespace upstream

std::vector<UpstreamCandidate> upstream_candidates(const Problem& problem,
                                                   const DeviceFacts& device) {
  if (problem.attention.type == AttentionType::kOp) return {};
  if (problem.attention.type == AttentionType::kMmEncoder) {
    return upstream::encoder_candidates(problem, device.sm);
  }
  std::vector<UpstreamCandidate> all;
  for (const upstream::Limits& can : upstream::priorities(problem, device.sm)) {
    all.push_back(
        {can.name, upstream::name_here(can.name), upstream::reasons_of(can, problem, device.sm)});
  }
  return all;
}

std::size_t upstream_choice(const std::vector<UpstreamCandidate>& candidates) {
  const auto chosen = std::ranges::find_if(
      candidates, [](const UpstreamCandidate& candidate) { return candidate.reasons.empty(); });
  return static_cast<std::size_t>(chosen - candidates.begin());
}

std::string upstream_refusal(std::string_view name, const Problem& problem,
                             const DeviceFacts& device) {
  const std::optional<upstream::Limits> can = upstream::limits_of(name, problem, device.sm);
  if (!can) return "";
  const std::vector<std::string> reasons = upstream::reasons_of(*can, problem, device.sm);
  if (reasons.empty()) return "";
  return fmt::format(
      "Selected backend AttentionBackendEnum.{} is not valid for this configuration. "
      "Reason: ['{}']",
      name, fmt::join(reasons, "', '"));
}

std::vector<std::string> upstream_afterthoughts(const Problem& problem, const DeviceFacts& device,
                                                const std::vector<UpstreamCandidate>& candidates) {
  const std::size_t chosen = upstream_choice(candidates);
  if (chosen == candidates.size()) return {};
  const std::string& name = candidates[chosen].name;
  std::vector<std::string> thoughts;
  if (problem.attention.type == AttentionType::kMmEncoder) {
    if (problem.mm_encoder.attn_dtype == MmAttnDtype::kFp8 && name != "FLASHINFER") {
      thoughts.push_back(
          fmt::format("mm_encoder_attn_dtype='fp8' requires the FLASHINFER backend, got {}", name));
    }
    return thoughts;
  }
  std::vector<std::string> ruled_out;
  for (std::size_t i = 0; i < chosen; ++i) {
    if (candidates[i].reasons == std::vector<std::string>{"block_size not supported"}) {
      ruled_out.push_back(candidates[i].name);
    }
  }
  if (!ruled_out.empty()) {
    thoughts.push_back(fmt::format("only block_size {} rules out {}, which vLLM tries earlier",
                                   problem.kv_cache.block_size, fmt::join(ruled_out, ", ")));
  }
  const upstream::Limits can = upstream::priorities(problem, device.sm)[chosen];
  if (problem.attention.alibi == AlibiKind::kSqrt && !can.alibi_sqrt) {
    thoughts.push_back(fmt::format("use_alibi_sqrt is not supported by backend {}.", name));
  }
  if (problem.dcp.world_size == 1) return thoughts;
  if (problem.attention.num_speculative_tokens > 0 && problem.dcp.interleave_size > 1) {
    thoughts.push_back(
        fmt::format("MTP with cp_kv_cache_interleave_size > 1 is not supported in {}.", can.impl));
  }
  if (!can.lse) {
    thoughts.push_back(fmt::format(
        "Decode Context Parallelism (DCP) requires attention implementations to return the "
        "softmax LSE during decode, but {} does not.",
        can.impl));
  }
  return thoughts;
}

}  // namespace attnbench
