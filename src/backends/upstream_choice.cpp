// Upstream's tables as data: one row a backend, and the two lists of priorities
// (vllm/platforms/cuda.py, the classes of vllm/v1/attention/backends and vLLM's table of them).
#include "backends/upstream_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backends/encoder/capability.h"
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

bool is_blackwell(int sm) { return sm / 10 == 10; }

/// FlashAttention 3 on SM 9.x; elsewhere 2 or 4, which know neither sinks nor fp8.
Limits flash_attn(int sm) {
  Limits l{.name = "FLASH_ATTN"};
  const bool fa3 = sm / 10 == 9;
  if (fa3) l.kv_dtypes.insert(l.kv_dtypes.end(), {kFp8, kFp8E4M3});
  l.head_size_multiple = 8;
  l.most_head_size = 256;
  l.least_sm = 80;
  l.types = {kDecoder, kEncoder, kEncoderOnly, kEncoderDecoder};
  l.sinks = l.per_head_scales = fa3;
  l.non_causal = l.batch_invariance = true;
  return l;
}

/// Sinks by the kernels of TensorRT-LLM, which there are on SM 10.x.
Limits flashinfer(int sm) {
  Limits l{.name = "FLASHINFER"};
  l.kv_dtypes.insert(l.kv_dtypes.end(), {kFp8, kFp8E4M3, kFp8E5M2});
  l.head_sizes = {64, 128, 256};
  l.block_sizes = {{16, false}, {32, false}, {64, false}};
  l.least_sm = 75;
  l.most_sm = 121;
  l.sinks = is_blackwell(sm);
  return l;
}

Limits triton_attn() {
  Limits l{.name = "TRITON_ATTN"};
  l.dtypes = {Dtype::kF16, Dtype::kBF16, Dtype::kF32};
  l.kv_dtypes.insert(l.kv_dtypes.end(),
                     {kFp8, kFp8E4M3, kFp8E5M2, kInt8PerTokenHead, kFp8PerTokenHead});
  l.least_head_size = 32;
  l.types = {kDecoder, kEncoder, kEncoderOnly, kEncoderDecoder};
  l.sinks = l.mm_prefix = l.batch_invariance = true;
  return l;
}

Limits flex_attention() {
  Limits l{.name = "FLEX_ATTENTION"};
  l.dtypes = {Dtype::kF16, Dtype::kBF16, Dtype::kF32};
  l.block_sizes = {{1, true}};
  l.types = {kDecoder, kEncoderOnly};
  l.mm_prefix = true;
  return l;
}

Limits turboquant() {
  Limits l{.name = "TURBOQUANT"};
  l.kv_dtypes = {kTurboK8V4, kTurbo4Bit, kTurboK3V4, kTurbo3Bit};
  l.block_sizes = {{16, false}, {32, false}, {64, false}, {128, false}};
  return l;
}

Limits mla_limits(const char* name, bool fp8) {
  Limits l{.name = name};
  if (fp8) l.kv_dtypes.insert(l.kv_dtypes.end(), {kFp8, kFp8E4M3});
  l.mla = true;
  return l;
}

Limits flashinfer_mla() {
  Limits l = mla_limits("FLASHINFER_MLA", true);
  l.block_sizes = {{32, false}, {64, false}};
  l.least_sm = 100;
  l.most_sm = 109;
  return l;
}

Limits cutlass_mla() {
  Limits l = mla_limits("CUTLASS_MLA", true);
  l.block_sizes = {{128, false}};
  l.least_sm = 100;
  l.most_sm = 109;
  return l;
}

Limits flash_attn_mla() {
  Limits l = mla_limits("FLASH_ATTN_MLA", false);
  l.least_sm = 90;
  l.most_sm = 99;
  l.batch_invariance = true;
  return l;
}

Limits flashmla() {
  Limits l = mla_limits("FLASHMLA", true);
  l.block_sizes = {{64, false}};
  l.least_sm = 90;
  l.most_sm = 109;
  return l;
}

Limits triton_mla() {
  Limits l = mla_limits("TRITON_MLA", true);
  l.batch_invariance = true;
  return l;
}

Limits flashmla_sparse() {
  Limits l = flashmla();
  l.name = "FLASHMLA_SPARSE";
  l.dtypes = {Dtype::kBF16};
  // fp8 becomes fp8_ds_mla before the choice.
  l.kv_dtypes = {kAuto, kBFloat16, kFp8DsMla, kFp8};
  l.head_sizes = {576};
  l.sparse = true;
  return l;
}

Limits flashinfer_mla_sparse() {
  Limits l = flashinfer_mla();
  l.name = "FLASHINFER_MLA_SPARSE";
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
    if (is_blackwell(sm)) {
      return {flashinfer(sm), flash_attn(sm), triton_attn(), flex_attention(), turboquant()};
    }
    return {flash_attn(sm), flashinfer(sm), triton_attn(), flex_attention(), turboquant()};
  }
  if (!is_blackwell(sm)) {
    return {flash_attn_mla(), flashmla(), flashinfer_mla(), triton_mla(), flashmla_sparse()};
  }
  std::vector<Limits> order{flashinfer_mla(), cutlass_mla(), flash_attn_mla(), flashmla(),
                            triton_mla()};
  for (Limits& sparse : sparse_on_blackwell(problem)) order.push_back(std::move(sparse));
  return order;
}

template <typename T>
bool contains(const std::vector<T>& values, T value) {
  return std::ranges::find(values, value) != values.end();
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

/// supports_combination() of upstream, the last of its questions.
std::string combination_reason(const Limits& can, const Problem& problem, int sm) {
  const bool sinks = problem.attention.sinks != SinksKind::kNone;
  if (can.name == "FLASH_ATTN" && sinks && sm < 90) {
    return "sink not supported on compute capability < 9.0";
  }
  const int nope = problem.mla.qk_nope_head_dim;
  if (can.name.starts_with("FLASHINFER_MLA") && nope != 64 && nope != 128) {
    return fmt::format("FlashInfer MLA kernel requires qk_nope_head_dim in [64, 128], but got {}",
                       nope);
  }
  return "";
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

/// §10.1: the encoder's own choice asks for head size, dtype and capability only.
std::vector<UpstreamCandidate> encoder_candidates(const Problem& problem, int sm) {
  std::vector<UpstreamCandidate> all;
  for (const MmCapability& can : {mm_flash_attn_capability(), mm_triton_attn_capability(),
                                  mm_torch_sdpa_capability(), mm_flashinfer_capability()}) {
    const int d = problem.attention.head_size;
    UpstreamCandidate candidate{can.upstream_name, can.name, {}};
    if (d % can.head_size_multiple != 0 || d < can.min_head_size || d > can.max_head_size) {
      candidate.reasons.emplace_back("head_size not supported");
    }
    if (!contains(can.dtypes, problem.attention.dtype)) {
      candidate.reasons.emplace_back("dtype not supported");
    }
    if (sm < can.min_sm) candidate.reasons.emplace_back("compute capability not supported");
    all.push_back(std::move(candidate));
  }
  return all;
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

std::string upstream_afterthought(const Problem& problem, const UpstreamCandidate& chosen) {
  if (problem.attention.type != AttentionType::kMmEncoder ||
      problem.mm_encoder.attn_dtype != MmAttnDtype::kFp8 || chosen.name == "FLASHINFER") {
    return "";
  }
  return fmt::format("mm_encoder_attn_dtype='fp8' requires the FLASHINFER backend, got {}",
                     chosen.name);
}

}  // namespace attnbench
