// The view's arrays and strings are members, filled before get() is called and never changed
// afterwards: a plugin may keep the pointer from prepare() to destroy().
#include "backends/plugin/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "backends/mla/plan.h"
#include "backends/op/facts.h"
#include "backends/refusals.h"
#include "core/problem/fields.h"
#include "core/system/parallel.h"
#include "inputs/cache/stored_kv.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

std::uint32_t type_bit(AttentionType type) {
  switch (type) {
    case AttentionType::kDecoder:
      return ATTNBENCH_DECODER;
    case AttentionType::kEncoder:
      return ATTNBENCH_ENCODER;
    case AttentionType::kEncoderOnly:
      return ATTNBENCH_ENCODER_ONLY;
    case AttentionType::kEncoderDecoder:
      return ATTNBENCH_ENCODER_DECODER;
    case AttentionType::kMmEncoder:
      return ATTNBENCH_MM_ENCODER;
    case AttentionType::kMla:
      return ATTNBENCH_MLA;
    case AttentionType::kOp:
      return ATTNBENCH_OP;
  }
  return 0;
}

std::uint32_t bias_of(AlibiForm form) {
  switch (form) {
    case AlibiForm::kNone:
    case AlibiForm::kContextRelative:  // of TRITON_ATTN only
      return ATTNBENCH_BIAS_NONE;
    case AlibiForm::kKeyIndex:
      return ATTNBENCH_BIAS_KEY_INDEX;
    case AlibiForm::kDistance:
      return ATTNBENCH_BIAS_DISTANCE;
    case AlibiForm::kSqrt:
      return ATTNBENCH_BIAS_SQRT;
  }
  return ATTNBENCH_BIAS_NONE;
}

std::uint64_t features_of(const Problem& problem, const AttentionMath& math,
                          std::uint32_t kv_cache_dtype) {
  const AttentionSpec& a = problem.attention;
  const bool has_window = math.window_left >= 0 || (!math.causal && math.window_right >= 0);
  const bool has_alibi = math.alibi != AlibiForm::kNone;
  const bool is_sqrt = math.alibi == AlibiForm::kSqrt;
  const bool has_token_scales =
      !has_direct_kv(a.type) && has_token_head_codes(problem.kv_cache.dtype);
  const bool has_int8 = problem.kv_cache.int8_level > 0;
  const std::pair<bool, std::uint64_t> asked[] = {
      {math.causal, ATTNBENCH_CAUSAL},
      {!math.causal, ATTNBENCH_NON_CAUSAL},
      {a.num_kv_heads < a.num_heads, ATTNBENCH_GQA},
      {a.v_head_size != a.head_size, ATTNBENCH_V_HEAD_SIZE},
      {has_window, ATTNBENCH_SLIDING_WINDOW},
      {math.logits_soft_cap > 0, ATTNBENCH_SOFT_CAP},
      {has_alibi && !is_sqrt, ATTNBENCH_ALIBI},
      {is_sqrt, ATTNBENCH_ALIBI_SQRT},
      {math.has_sinks, ATTNBENCH_SINKS},
      {!math.mm_prefix_ranges.empty(), ATTNBENCH_MM_PREFIX},
      {kv_cache_dtype == ATTNBENCH_FP8_E4M3 && !has_token_scales, ATTNBENCH_FP8_KV},
      {kv_cache_dtype == ATTNBENCH_FP8_E5M2, ATTNBENCH_FP8_E5M2_KV},
      {has_token_scales, ATTNBENCH_TOKEN_HEAD_KV},
      {problem.output_quant.type != OutputQuantType::kNone, ATTNBENCH_FP8_OUTPUT},
      {query_is_quantised(problem, kPluginRules) && !has_int8, ATTNBENCH_FP8_QUERY},
      {has_int8, ATTNBENCH_INT8_CODES},
      {a.probability_dtype == ProbabilityDtype::kFp8E4M3, ATTNBENCH_FP8_PROBABILITY}};
  std::uint64_t features = 0;
  for (const auto& [is_asked, bit] : asked) features |= is_asked ? bit : 0;
  return features;
}

constexpr std::pair<std::uint64_t, const char*> kFeatureNames[] = {
    {ATTNBENCH_CAUSAL, "ATTNBENCH_CAUSAL"},
    {ATTNBENCH_NON_CAUSAL, "ATTNBENCH_NON_CAUSAL"},
    {ATTNBENCH_GQA, "ATTNBENCH_GQA"},
    {ATTNBENCH_V_HEAD_SIZE, "ATTNBENCH_V_HEAD_SIZE"},
    {ATTNBENCH_SLIDING_WINDOW, "ATTNBENCH_SLIDING_WINDOW"},
    {ATTNBENCH_SOFT_CAP, "ATTNBENCH_SOFT_CAP"},
    {ATTNBENCH_ALIBI, "ATTNBENCH_ALIBI"},
    {ATTNBENCH_ALIBI_SQRT, "ATTNBENCH_ALIBI_SQRT"},
    {ATTNBENCH_SINKS, "ATTNBENCH_SINKS"},
    {ATTNBENCH_MM_PREFIX, "ATTNBENCH_MM_PREFIX"},
    {ATTNBENCH_FP8_KV, "ATTNBENCH_FP8_KV"},
    {ATTNBENCH_FP8_E5M2_KV, "ATTNBENCH_FP8_E5M2_KV"},
    {ATTNBENCH_FP8_OUTPUT, "ATTNBENCH_FP8_OUTPUT"},
    {ATTNBENCH_FP8_QUERY, "ATTNBENCH_FP8_QUERY"},
    {ATTNBENCH_FP8_PROBABILITY, "ATTNBENCH_FP8_PROBABILITY"},
    {ATTNBENCH_MLA_TOPK, "ATTNBENCH_MLA_TOPK"},
    {ATTNBENCH_MLA_DS_KV, "ATTNBENCH_MLA_DS_KV"},
    {ATTNBENCH_TOKEN_HEAD_KV, "ATTNBENCH_TOKEN_HEAD_KV"},
    {ATTNBENCH_LATENTS, "ATTNBENCH_LATENTS"},
    {ATTNBENCH_INT8_CODES, "ATTNBENCH_INT8_CODES"},
    {ATTNBENCH_GROUP_SCALES, "ATTNBENCH_GROUP_SCALES"},
    {ATTNBENCH_NVFP4, "ATTNBENCH_NVFP4"},
    {ATTNBENCH_DCP, "ATTNBENCH_DCP"}};

constexpr std::pair<OpKind, std::uint32_t> kOperations[] = {
    {OpKind::kReshapeAndCache, ATTNBENCH_OP_RESHAPE_AND_CACHE},
    {OpKind::kMerge, ATTNBENCH_OP_MERGE},
    {OpKind::kGather, ATTNBENCH_OP_GATHER},
    {OpKind::kRope, ATTNBENCH_OP_ROPE},
    {OpKind::kRopeAndCache, ATTNBENCH_OP_ROPE_AND_CACHE},
    {OpKind::kQuantize, ATTNBENCH_OP_QUANTIZE},
    {OpKind::kDcpCorrect, ATTNBENCH_OP_DCP_CORRECT},
    {OpKind::kOutputQuant, ATTNBENCH_OP_OUTPUT_QUANT},
    {OpKind::kMmQuant, ATTNBENCH_OP_MM_QUANT},
    {OpKind::kMetadata, ATTNBENCH_OP_METADATA},
    {OpKind::kIndexKeyCache, ATTNBENCH_OP_INDEX_KEY_CACHE},
    {OpKind::kIndexLogits, ATTNBENCH_OP_INDEX_LOGITS},
    {OpKind::kIndexTopk, ATTNBENCH_OP_INDEX_TOPK}};

std::uint32_t bit_of(OpKind op) {
  for (const auto& [known, bit] : kOperations) {
    if (known == op) return bit;
  }
  return 0;
}

/// Type of the cache that the operation writes; that of attention where it writes none.
Dtype cache_element(const Problem& problem) {
  const bool writes_pages =
      problem.op.name == OpKind::kReshapeAndCache || problem.op.name == OpKind::kRopeAndCache;
  if (problem.op.mla) return kv_element_dtype(problem.kv_cache.dtype, problem.attention.dtype);
  if (!writes_pages) return problem.attention.dtype;
  return resolve_store_rule(problem, op_kernel_rules(problem)).element;
}

/// What the plugin must have declared, beside the operation itself.
std::uint64_t operation_features(const Problem& problem, std::uint32_t kv_cache_dtype) {
  const AttentionSpec& a = problem.attention;
  std::uint64_t features = 0;
  if (a.v_head_size != a.head_size) features |= ATTNBENCH_V_HEAD_SIZE;
  const bool has_token_scales = is_per_token_head(problem.kv_cache.dtype);
  if (kv_cache_dtype == ATTNBENCH_FP8_E4M3 && !has_token_scales) features |= ATTNBENCH_FP8_KV;
  if (kv_cache_dtype == ATTNBENCH_FP8_E5M2) features |= ATTNBENCH_FP8_E5M2_KV;
  const bool has_cache = problem.op.name == OpKind::kReshapeAndCache ||
                         problem.op.name == OpKind::kRopeAndCache ||
                         problem.op.name == OpKind::kGather;
  const std::pair<bool, std::uint64_t> asked[] = {
      {problem.op.mla, ATTNBENCH_LATENTS},
      {has_cache && is_per_token_head(problem.kv_cache.dtype), ATTNBENCH_TOKEN_HEAD_KV},
      {has_cache && is_packed(problem.kv_cache.dtype), ATTNBENCH_MLA_DS_KV},
      {problem.kv_cache.int8_level > 0, ATTNBENCH_INT8_CODES},
      {problem.dcp.world_size > 1 && has_cache, ATTNBENCH_DCP}};
  for (const auto& [is_asked, bit] : asked) features |= is_asked ? bit : 0;
  switch (problem.output_quant.type) {
    case OutputQuantType::kNone:
      break;
    case OutputQuantType::kFp8Static:
      features |= ATTNBENCH_FP8_OUTPUT;
      break;
    case OutputQuantType::kFp8Group128:
    case OutputQuantType::kFp8Group64:
      features |= ATTNBENCH_GROUP_SCALES;
      break;
    case OutputQuantType::kNvfp4:
      features |= ATTNBENCH_NVFP4;
      break;
  }
  return features;
}

/// "fp8_static" as attnbench_backend.h has it.
std::uint32_t plugin_quant(OutputQuantType type) {
  switch (type) {
    case OutputQuantType::kNone:
      return ATTNBENCH_QUANT_NONE;
    case OutputQuantType::kFp8Static:
      return ATTNBENCH_QUANT_FP8_STATIC;
    case OutputQuantType::kFp8Group128:
      return ATTNBENCH_QUANT_FP8_GROUP_128;
    case OutputQuantType::kFp8Group64:
      return ATTNBENCH_QUANT_FP8_GROUP_64;
    case OutputQuantType::kNvfp4:
      return ATTNBENCH_QUANT_NVFP4;
  }
  return ATTNBENCH_QUANT_NONE;
}

}  // namespace

bool has_token_head_codes(KvCacheDtype dtype) {
  const std::optional<Dtype> codes = kv_format(dtype).codes;
  return is_per_token_head(dtype) && (codes == Dtype::kI8 || codes == Dtype::kE4M3);
}

std::uint32_t plugin_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return ATTNBENCH_FLOAT32;
    case Dtype::kF16:
      return ATTNBENCH_FLOAT16;
    case Dtype::kBF16:
      return ATTNBENCH_BFLOAT16;
    case Dtype::kE4M3:
      return ATTNBENCH_FP8_E4M3;
    case Dtype::kE5M2:
      return ATTNBENCH_FP8_E5M2;
    case Dtype::kU8:
      return ATTNBENCH_UINT8;
    case Dtype::kI8:
      return ATTNBENCH_INT8;
    case Dtype::kF64:
    case Dtype::kI32:
    case Dtype::kI64:
      return 0;
  }
  return 0;
}

void PluginProblem::set_common(const Problem& problem, const PluginDevice& device) {
  scenario_ = problem.scenario;
  case_name_ = problem.case_name;
  json_ = problem_to_json(problem);
  const AttentionSpec& a = problem.attention;
  view_.struct_size = sizeof view_;
  view_.type = type_bit(a.type);
  view_.dtype = plugin_dtype(a.dtype);
  view_.device = device.is_cuda ? ATTNBENCH_CUDA : ATTNBENCH_CPU;
  view_.device_id = device.index;
  view_.sm = device.facts.sm;
  view_.num_sms = device.facts.num_sms;
  view_.num_threads = device.num_threads > 0 ? device.num_threads : available_cores();
  view_.num_heads = a.num_heads;
  view_.num_kv_heads = a.num_kv_heads;
  view_.head_size = a.head_size;
  view_.v_head_size = a.v_head_size;
  view_.batch_invariant = a.batch_invariant ? 1 : 0;
  view_.output_scale = problem.output_quant.scale;
  view_.dcp_world_size = problem.dcp.world_size;
  view_.int8_level = problem.kv_cache.int8_level;
  set_batch(problem);
  view_.scenario = scenario_.c_str();
  view_.case_name = case_name_.c_str();
  view_.json = json_.c_str();
}

PluginProblem::PluginProblem(const Problem& problem, const PluginDevice& device) {
  set_common(problem, device);
  if (problem.attention.type == AttentionType::kOp) {
    set_operation(problem);
    return;
  }
  const AttentionMath math = resolve_attention_math(problem, kPluginRules);
  set_math(math);
  const bool has_cache = !has_direct_kv(problem.attention.type);
  set_cache(problem, has_cache ? resolve_store_rule(problem, kPluginRules).element
                               : problem.attention.dtype);
  view_.features = features_of(problem, math, view_.kv_cache_dtype);
}

PluginProblem::PluginProblem(const Problem& problem, const MlaCapability& capability,
                             const PluginDevice& device) {
  set_common(problem, device);
  set_math(resolve_attention_math(problem, kPluginRules));
  set_latents(problem, capability);
}

PluginProblem::PluginProblem(const Problem& problem, int first_request,
                             const std::vector<std::int32_t>& key_lens, bool causal,
                             const PluginDevice& device) {
  Problem call = problem;
  call.cascade.common_prefix_len = 0;
  call.batch.clear();
  for (std::size_t i = 0; i < key_lens.size(); ++i) {
    const Request& request = problem.batch[static_cast<std::size_t>(first_request) + i];
    call.batch.push_back({request.query_len, key_lens[i]});
  }
  set_common(call, device);
  json_ = problem_to_json(problem);
  view_.json = json_.c_str();
  view_.type = ATTNBENCH_MLA_PREFILL;
  view_.causal = causal ? 1 : 0;
  view_.scale = problem.attention.scale;
  view_.window_left = -1;
  view_.window_right = causal ? 0 : -1;
  view_.num_kv_heads = view_.num_heads;
  view_.head_size = problem.mla.qk_nope_head_dim + problem.mla.qk_rope_head_dim;
  view_.v_head_size = problem.mla.v_head_dim;
  view_.output_scale = 0;
  view_.kv_cache_dtype = view_.dtype;
  view_.kv_lora_rank = problem.mla.kv_lora_rank;
  view_.qk_nope_head_dim = problem.mla.qk_nope_head_dim;
  view_.qk_rope_head_dim = problem.mla.qk_rope_head_dim;
  view_.features = causal ? ATTNBENCH_CAUSAL : ATTNBENCH_NON_CAUSAL;
  if (view_.v_head_size != view_.head_size) view_.features |= ATTNBENCH_V_HEAD_SIZE;
}

void PluginProblem::set_encoder_codes(int head_size) {
  view_.head_size = view_.v_head_size = head_size;
  view_.kv_cache_dtype = ATTNBENCH_FP8_E4M3;
  view_.features |= ATTNBENCH_FP8_QUERY | ATTNBENCH_FP8_KV;
}

void PluginProblem::set_rank(int rank, const std::vector<std::int32_t>& context_lens) {
  seq_lens_.assign(context_lens.begin(), context_lens.end());
  view_.seq_lens = seq_lens_.data();
  view_.num_keys = view_.max_seq_len = 0;
  for (const std::int64_t len : seq_lens_) {
    view_.num_keys += len;
    view_.max_seq_len = std::max(view_.max_seq_len, len);
  }
  view_.dcp_rank = rank;
  view_.causal = 0;
  view_.window_right = -1;
  view_.common_prefix_len = 0;
  view_.features &= ~(ATTNBENCH_CAUSAL | ATTNBENCH_FP8_OUTPUT);
  view_.features |= ATTNBENCH_NON_CAUSAL | ATTNBENCH_DCP;
  view_.output_scale = 0;
}

/// The output is quantised behind the kernel, so that is nothing that it needs.
void PluginProblem::set_latents(const Problem& problem, const MlaCapability& capability) {
  const KvCacheDtype dtype = mla_cache_dtype(capability, problem);
  const bool is_quantised_query = problem.attention.query_dtype == QueryDtype::kFp8E4M3 ||
                                  plan_mla(capability, problem).quantised_query;
  set_cache(problem, kv_element_dtype(dtype, problem.attention.dtype));
  view_.num_heads = std::max(view_.num_heads, problem.mla.q_pad_num_heads.value_or(0));
  view_.num_kv_heads = 1;
  view_.head_size = problem.mla.kv_lora_rank + problem.mla.qk_rope_head_dim;
  view_.v_head_size = problem.mla.kv_lora_rank;
  view_.topk = checked_int32(problem.mla.sparse_topk.value_or(0), "sparse_topk");
  view_.output_scale = 0;
  view_.features = ATTNBENCH_CAUSAL;
  if (view_.topk > 0) view_.features |= ATTNBENCH_MLA_TOPK;
  if (is_packed(dtype)) view_.features |= ATTNBENCH_MLA_DS_KV;
  if (view_.kv_cache_dtype == ATTNBENCH_FP8_E4M3) view_.features |= ATTNBENCH_FP8_KV;
  if (is_quantised_query) view_.features |= ATTNBENCH_FP8_QUERY;
  if (problem.attention.probability_dtype == ProbabilityDtype::kFp8E4M3) {
    view_.features |= ATTNBENCH_FP8_PROBABILITY;
  }
}

void PluginProblem::set_math(const AttentionMath& math) {
  view_.causal = math.causal ? 1 : 0;
  view_.scale = math.softmax_scale;
  view_.logits_soft_cap = math.logits_soft_cap;
  view_.window_left = math.window_left;
  view_.window_right = math.window_right;
  view_.alibi = bias_of(math.alibi);
  for (const auto& ranges : math.mm_prefix_ranges) {
    view_.num_mm_ranges = std::max(view_.num_mm_ranges, static_cast<std::int32_t>(ranges.size()));
  }
}

void PluginProblem::set_batch(const Problem& problem) {
  for (const Request& request : problem.batch) {
    query_lens_.push_back(request.query_len);
    seq_lens_.push_back(request.seq_len);
  }
  view_.num_requests = problem.num_requests();
  view_.num_tokens = problem.num_tokens();
  view_.num_keys = problem.num_keys();
  view_.max_query_len = problem.max_query_len();
  view_.max_seq_len = problem.max_seq_len();
  view_.query_lens = query_lens_.data();
  view_.seq_lens = seq_lens_.data();
  view_.common_prefix_len = problem.cascade.common_prefix_len;
}

void PluginProblem::set_cache(const Problem& problem, Dtype element) {
  view_.kv_cache_dtype = plugin_dtype(element);
  view_.block_size = problem.kv_cache.block_size;
  view_.num_blocks = problem.kv_cache.num_blocks;
  view_.kv_cache_hnd = problem.kv_cache.layout == CacheLayout::kHnd ? 1 : 0;
}

namespace {

/// What int8 attention has no definition for (§13.2), or no tensors to hand over.
void add_users_int8_reasons(const Problem& problem, Refusals& reasons) {
  const AttentionSpec& a = problem.attention;
  if (problem.kv_cache.int8_level == 0) return;
  reasons.int8_with_fp8_cache(is_quantised(problem.kv_cache.dtype));
  reasons.add_if(a.sinks != SinksKind::kNone, "attention sinks with int8 attention");
  reasons.int8_with_dcp();
  reasons.int8_of_type(a.type != AttentionType::kDecoder);
  reasons.add_if(a.dtype == Dtype::kF32, "float32 with int8 attention");
  reasons.add_if(a.kv_sharing, "KV sharing with int8 attention");
}

/// As those of FLASH_ATTN (§13.2), whose steps are around the kernel, and what only whole steps of
/// ours have. Ranks in processes of their own have no kernel of a user.
void add_users_dcp_reasons(const Problem& problem, Refusals& reasons) {
  const AttentionSpec& a = problem.attention;
  if (problem.dcp.world_size == 1) return;
  if (a.type != AttentionType::kDecoder) return reasons.dcp();
  reasons.add_if(a.alibi != AlibiKind::kNone, "DCP with ALiBi");
  reasons.add_if(a.sinks != SinksKind::kNone, "DCP with sinks");
  reasons.add_if(problem.kv_cache.calculate_kv_scales, "DCP with calculate_kv_scales");
  reasons.add_if(forces_cascade(problem), "DCP with cascade");
  reasons.add_if(a.kv_sharing, "DCP with KV sharing");
  reasons.add_if(a.sliding_window.has_value(), "DCP with a sliding window");
  reasons.add_if(has_mm_prefix(a), "DCP with mm_prefix");
  reasons.add_if(is_per_token_head(problem.kv_cache.dtype),
                 "DCP with scales of each token and head");
  reasons.add_if(problem.output_quant.type != OutputQuantType::kNone,
                 "DCP with output quantization");
  reasons.add_if(problem.dcp.transport != DcpTransport::kSimulated,
                 fmt::format("DCP over {} with a user's kernel", to_string(problem.dcp.transport)));
  reasons.dcp_interleaved_speculation();
}

}  // namespace

std::vector<std::string> common_refusals(const Problem& problem) {
  const AttentionSpec& a = problem.attention;
  const KvCacheSpec& cache = problem.kv_cache;
  const OutputQuantType output = problem.output_quant.type;
  if (a.type == AttentionType::kOp) return operation_refusals(problem);
  Refusals reasons(problem);
  reasons.kv_cache_dtype(has_inner_scales(cache.dtype) && !has_token_head_codes(cache.dtype));
  add_users_int8_reasons(problem, reasons);
  reasons.quantised_kv_of_encoder(has_direct_kv(a.type));
  add_users_dcp_reasons(problem, reasons);
  reasons.chunks();
  reasons.cross_layer_cache();
  reasons.output_quant(output != OutputQuantType::kNone && output != OutputQuantType::kFp8Static);
  const bool fp8_encoder =
      a.type == AttentionType::kMmEncoder && problem.mm_encoder.attn_dtype == MmAttnDtype::kFp8;
  // §14.2 has limits for e4m3 queries over e4m3 keys only, as the native backends take them.
  const bool fp8_query = a.query_dtype == QueryDtype::kFp8E4M3;
  const bool e4m3_operands = fp8_query && is_e4m3_cache(cache.dtype);
  reasons.add_if(fp8_query && !e4m3_operands, "fp8 query");
  reasons.add_if(fp8_encoder && problem.mm_encoder.amax == AmaxKind::kSigned,
                 "scales by signed elements, which other signs change");
  reasons.e4m3_probability(!e4m3_operands && !fp8_encoder);
  reasons.fast_fp8_sums(!e4m3_operands && !fp8_encoder);
  return reasons.take();
}

std::vector<std::string> undeclared(const AttnbenchProblem& problem, AttentionType type,
                                    const AttnbenchBackend& table) {
  std::vector<std::string> reasons;
  if ((table.devices & problem.device) == 0) {
    const bool is_cuda = problem.device == ATTNBENCH_CUDA;
    reasons.push_back(fmt::format("device {} not supported", is_cuda ? "cuda" : "cpu"));
  }
  if ((table.attention_types & problem.type) == 0) {
    reasons.push_back(fmt::format("attention type {} not supported", to_string(type)));
  }
  if (type == AttentionType::kOp && (table.operations & problem.operation) == 0) {
    reasons.push_back(
        fmt::format("operation {} not supported", plugin_operation_name(problem.operation)));
  }
  if ((table.dtypes & problem.dtype) == 0) reasons.emplace_back("dtype not supported");
  for (const auto& [bit, name] : kFeatureNames) {
    if ((problem.features & bit) == 0 || (table.features & bit) != 0) continue;
    reasons.push_back(fmt::format("needs {}, which the plugin does not declare", name));
  }
  return reasons;
}

std::string plugin_operation_name(std::uint32_t operation) {
  for (const auto& [op, bit] : kOperations) {
    if (bit == operation) return to_string(op);
  }
  return "";
}

void PluginProblem::set_operation(const Problem& problem) {
  view_.operation = bit_of(*problem.op.name);
  set_cache(problem, cache_element(problem));
  view_.scale = problem.attention.scale;
  view_.num_merged_tokens = problem.op.tokens_with_context.value_or(problem.num_tokens());
  view_.features = operation_features(problem, view_.kv_cache_dtype);
  const bool has_latents = problem.op.mla;
  view_.kv_lora_rank = has_latents ? problem.mla.kv_lora_rank : 0;
  view_.qk_nope_head_dim = has_latents ? problem.mla.qk_nope_head_dim : 0;
  view_.qk_rope_head_dim = has_latents ? problem.mla.qk_rope_head_dim : 0;
  view_.index_n_heads = problem.mla.index_n_heads;
  view_.index_ue8m0 = problem.mla.index_ue8m0 ? 1 : 0;
  view_.topk = problem.op.name == OpKind::kIndexTopk ? problem.mla.sparse_topk.value_or(0) : 0;
  view_.rotary_dim = problem.op.rotary_dim.value_or(0);
  view_.is_neox = problem.op.rope_style == RopePairs::kNeox ? 1 : 0;
  view_.is_raw = problem.op.raw ? 1 : 0;
  view_.lse_is_base_2 = problem.op.lse_base == LseBase::kTwo ? 1 : 0;
  view_.output_quant = plugin_quant(problem.output_quant.type);
  view_.scales_are_ue8m0 = problem.output_quant.ue8m0 ? 1 : 0;
  view_.scales_are_swizzled = problem.output_quant.swizzle ? 1 : 0;
  view_.dcp_comm = static_cast<std::int32_t>(problem.dcp.comm);
  view_.amax_is_signed = problem.mm_encoder.amax == AmaxKind::kSigned ? 1 : 0;
}

std::vector<std::string> operation_refusals(const Problem& problem) {
  const OpKind op = *problem.op.name;
  if (bit_of(op) == 0) return {fmt::format("operation {} not supported", to_string(op))};
  if (op == OpKind::kMerge) return {};
  std::vector<std::string> native = op_refusals(problem, DeviceFacts{});
  if (!native.empty()) return native;
  Refusals reasons(problem);
  const bool has_nibbles = kv_format(problem.kv_cache.dtype).codes == Dtype::kU8 && !problem.op.mla;
  reasons.kv_cache_dtype(has_nibbles && has_inner_scales(problem.kv_cache.dtype));
  return reasons.take();
}

}  // namespace attnbench
