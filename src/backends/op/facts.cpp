// Reasons first, then bytes, one function for each kind. A count is written as what an operation of
// that kind must touch, per token where it can be, so that it can be checked against the formula in
// the contract.
#include "backends/op/facts.h"

#include <fmt/format.h>

#include <algorithm>

#include "backends/backend_list.h"
#include "backends/op/index_steps.h"
#include "backends/refusals.h"
#include "inputs/cache/cache_cells.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

constexpr double kFloatBytes = sizeof(float);
constexpr double kSlot = sizeof(std::int64_t);

bool kv_dtype_fits(const Problem& problem) {
  const KvCacheDtype dtype = problem.kv_cache.dtype;
  if (problem.op.mla) return kv_format(dtype).of_latents;
  if (!kv_format(dtype).of_heads) return false;
  return !has_inner_scales(dtype) || problem.op.cache_layout == OpCacheLayout::kTr;
}

class OpRefusals : private Refusals {
 public:
  OpRefusals(const Problem& problem, const DeviceFacts& device)
      : Refusals(problem, device), problem_(problem), op_(*problem.op.name) {}

  std::vector<std::string> collect() {
    const bool writes = op_ == OpKind::kReshapeAndCache || op_ == OpKind::kRopeAndCache;
    // Values of level 2 have 16 bits.
    dtype(writes && problem_.kv_cache.int8_level == 2 && problem_.attention.dtype == Dtype::kF32,
          "bfloat16 or float16 with kv_cache.int8_level 2");
    if (writes || op_ == OpKind::kGather) add_cache();
    if (writes && !problem_.op.mla) add_paged_cache();
    dcp_transport();
    v_head_size((rotates() || op_ == OpKind::kQuantize) && !problem_.op.mla);
    return take();
  }

 private:
  bool rotates() const { return op_ == OpKind::kRope || op_ == OpKind::kRopeAndCache; }

  void add_cache() {
    kv_cache_dtype(!kv_dtype_fits(problem_));
    per_head_scales(problem_.op.mla);
    add_if(problem_.op.raw && footer_bytes(problem_.kv_cache.dtype) > 0,
           "raw gather of entries whose scales lie behind the block");
  }

  void add_paged_cache() {
    const KvCacheSpec& cache = problem_.kv_cache;
    const bool inner_scales = has_inner_scales(cache.dtype);
    int8(problem_.op.cache_layout != OpCacheLayout::kIx);
    int8_with_fp8_cache(has_tensor_scales(cache.dtype));
    int8_with_dcp();
    add_if(op_ == OpKind::kRopeAndCache && inner_scales,
           "fused rope+kvcache with " + (shares_slots(cache.dtype)
                                             ? std::string(to_string(cache.dtype))
                                             : "per-token-head quantization"));
    stored_head_size();
    v_head_size(op_ == OpKind::kReshapeAndCache);
  }

  const Problem& problem_;
  OpKind op_;
};

// ---- Traffic ----------------------------------------------------------------------------------

/// The dimensions that every count is made of.
struct Extents {
  double tokens, heads, kv_heads, d, dv, size;

  explicit Extents(const Problem& problem)
      : tokens(static_cast<double>(problem.num_tokens())),
        heads(problem.attention.num_heads),
        kv_heads(problem.attention.num_kv_heads),
        d(problem.attention.head_size),
        dv(problem.attention.v_head_size),
        size(static_cast<double>(dtype_size(problem.attention.dtype))) {}
};

double entry_bytes(const Problem& problem) {
  return static_cast<double>(latent_entry_bytes(problem.kv_cache.dtype, problem.attention.dtype,
                                                problem.mla.kv_lora_rank,
                                                problem.mla.qk_rope_head_dim));
}

/// Bytes of K and V of one token in the cache.
double stored_bytes(const Problem& problem) {
  const Extents e(problem);
  if (problem.kv_cache.int8_level > 0) {
    return e.kv_heads *
           (e.d + e.dv * (problem.kv_cache.int8_level == 1 ? 1 : e.size) + kFloatBytes);
  }
  const AttentionSpec& a = problem.attention;
  const auto vector_bytes = [&](int head_size) {
    return static_cast<double>(stored_vector_bytes(problem.kv_cache.dtype, a.dtype, head_size));
  };
  return e.kv_heads * (vector_bytes(a.head_size) + vector_bytes(a.v_head_size));
}

double write_bytes(const Problem& problem) {
  const Extents e(problem);
  if (problem.op.mla) {
    const double read = (problem.mla.kv_lora_rank + problem.mla.qk_rope_head_dim) * e.size;
    return e.tokens * (read + entry_bytes(problem) + kSlot);
  }
  const bool codes = problem.kv_cache.int8_level > 0;
  const double read = codes ? stored_bytes(problem) : e.kv_heads * (e.d + e.dv) * e.size;
  return e.tokens * (read + stored_bytes(problem) + kSlot * problem.dcp.world_size);
}

/// Rotated elements are read and written, each used row of the table is read.
double rope_bytes(const Problem& problem) {
  const Extents e(problem);
  const double rotated = *problem.op.rotary_dim;
  const double key_heads = problem.op.mla ? 1 : e.kv_heads;
  const bool wide = problem.op.cos_sin_dtype == CosSinDtype::kFloat32;
  const double table = std::min(e.tokens, static_cast<double>(problem.max_seq_len())) * rotated;
  return e.tokens * (2 * (e.heads + key_heads) * rotated * e.size + kSlot) +
         table * (wide ? kFloatBytes : e.size);
}

/// What a fused write reads and writes beyond the rotation: the rotated part of the keys is there.
double fused_write_bytes(const Problem& problem) {
  const Extents e(problem);
  const double rotated = *problem.op.rotary_dim * (problem.op.mla ? 1 : e.kv_heads);
  return write_bytes(problem) - e.tokens * rotated * e.size;
}

double gather_bytes(const Problem& problem) {
  const Extents e(problem);
  const double elements = problem.mla.kv_lora_rank + problem.mla.qk_rope_head_dim;
  const double written = problem.op.raw ? entry_bytes(problem) : elements * e.size;
  return e.tokens * (entry_bytes(problem) + written);
}

double merge_bytes(const Problem& problem) {
  const Extents e(problem);
  const double merged =
      static_cast<double>(problem.op.tokens_with_context.value_or(problem.num_tokens()));
  const double output = problem.output_quant.type == OutputQuantType::kFp8Static ? 1 : e.size;
  const double part = e.heads * (e.dv * e.size + kFloatBytes);
  return (merged + e.tokens) * part + e.tokens * e.heads * (e.dv * output + kFloatBytes);
}

/// Sums over the ranks are f32 where they are exchanged after the correction.
double dcp_bytes(const Problem& problem) {
  const Extents e(problem);
  const double width = problem.op.mla ? problem.mla.kv_lora_rank : e.dv;
  const double ranks = problem.dcp.world_size;
  const bool corrected = ranks > 1 && problem.dcp.comm != DcpComm::kA2a;
  const double read = ranks * (width * e.size + kFloatBytes);
  const double written = corrected ? ranks * width * kFloatBytes : width * e.size;
  return e.tokens * e.heads * (read + written + kFloatBytes);
}

double quantize_bytes(const Problem& problem) {
  const Extents e(problem);
  if (problem.op.mla) {
    const double width = problem.mla.kv_lora_rank + problem.mla.qk_rope_head_dim;
    return e.tokens * e.heads * width * (e.size + 1);
  }
  if (problem.kv_cache.int8_level == 0) return e.tokens * e.heads * e.d * (e.size + 1);
  const double by_token = (e.heads + e.kv_heads) * (e.d * (e.size + 1) + kFloatBytes);
  if (problem.kv_cache.int8_level == 2) return e.tokens * by_token;
  return e.tokens * (by_token + e.kv_heads * e.dv * (e.size + 1)) + e.kv_heads * e.dv * kFloatBytes;
}

double output_quant_bytes(const Problem& problem) {
  const Extents e(problem);
  const double columns = e.heads * e.dv;
  switch (problem.output_quant.type) {
    case OutputQuantType::kFp8Group128:
      return e.tokens * columns * (e.size + 1 + kFloatBytes / 128);
    case OutputQuantType::kFp8Group64:
      return e.tokens * columns * (e.size + 1 + kFloatBytes / 64);
    case OutputQuantType::kNvfp4:
      return e.tokens * columns * (e.size + 0.5 + 1.0 / attn::kNvfp4Block);
    case OutputQuantType::kNone:
    case OutputQuantType::kFp8Static:
      break;
  }
  return e.tokens * columns * (e.size + 1);
}

/// Without scales from a file every element is read twice: there is no scale before the largest is
/// known (§10.6). Counted so for every size, also where a cache could keep them for the second
/// time.
double mm_quant_bytes(const Problem& problem) {
  const Extents e(problem);
  const double padded = static_cast<double>(round_up(problem.attention.head_size, 16));
  const double reads = problem.mm_encoder.fp8_scale_path ? 1 : 2;
  return e.tokens * (e.heads + 2 * e.kv_heads) * (reads * e.d * e.size + padded);
}

/// What is moved, read and written once: two block tables, the slots, three numbers a request.
double metadata_bytes(const Problem& problem) {
  constexpr double kInt = sizeof(std::int32_t);
  const auto requests = static_cast<double>(problem.num_requests());
  const auto columns = static_cast<double>(block_table_columns(problem));
  return 2 * (requests * (2 * columns + 3) * kInt + Extents(problem).tokens * kSlot);
}

}  // namespace

std::vector<std::string> op_refusals(const Problem& problem, const DeviceFacts& device) {
  if (problem.attention.type == AttentionType::kOp) return OpRefusals(problem, device).collect();
  Refusals reasons(problem, device);
  reasons.attention_type(true);
  return reasons.take();
}

KernelRules op_kernel_rules(const Problem& problem) {
  const bool triton = problem.op.cache_layout == OpCacheLayout::kTr;
  return triton ? triton_attn_backend().kernel_rules() : KernelRules{};
}

double op_traffic(const Problem& problem) {
  switch (*problem.op.name) {
    case OpKind::kReshapeAndCache:
      return write_bytes(problem);
    case OpKind::kMerge:
      return merge_bytes(problem);
    case OpKind::kGather:
      return gather_bytes(problem);
    case OpKind::kRope:
      return rope_bytes(problem);
    case OpKind::kRopeAndCache:
      return rope_bytes(problem) + fused_write_bytes(problem);
    case OpKind::kQuantize:
      return quantize_bytes(problem);
    case OpKind::kDcpCorrect:
      return dcp_bytes(problem);
    case OpKind::kOutputQuant:
      return output_quant_bytes(problem);
    case OpKind::kMmQuant:
      return mm_quant_bytes(problem);
    case OpKind::kMetadata:
      return metadata_bytes(problem);
    case OpKind::kIndexKeyCache:
    case OpKind::kIndexLogits:
    case OpKind::kIndexTopk:
      return index_traffic(problem);
  }
  return 0;
}

void add_op_facts(const Problem& problem, Facts& facts) {
  facts.emplace_back("tokens", std::to_string(problem.num_tokens()));
  const OpCacheLayout layout = problem.op.cache_layout;
  if (layout != OpCacheLayout::kAuto) {
    facts.emplace_back("cache layout", fmt::format("{}, {}", to_string(layout),
                                                   to_string(problem.kv_cache.layout)));
  }
  if (problem.dcp.world_size > 1) {
    facts.emplace_back("ranks", std::to_string(problem.dcp.world_size));
  }
}

}  // namespace attnbench
