#include "backends/cudnn/refusals.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "backends/attention/capability.h"
#include "backends/cudnn/form.h"
#include "inputs/cache/kv_scales.h"

namespace attnbench {
namespace {

class CudnnQuestion {
 public:
  CudnnQuestion(const Problem& problem, const DeviceFacts& device,
                const std::vector<std::string>& missing)
      : problem_(problem), device_(device), reasons_(missing) {}

  std::vector<std::string> answer() {
    add_if(!device_.is_cuda, "CUDNN needs a CUDA device");
    const AttentionType type = attention().type;
    if (type == AttentionType::kMla) {
      add_if(true, "MLA not supported");
    } else if (type == AttentionType::kMmEncoder || type == AttentionType::kOp) {
      add_if(true, fmt::format("attention type {} not supported", to_string(type)));
    } else {
      add_format_reasons();
      add_kind_reasons();
      add_score_reasons();
      add_fp8_reasons();
    }
    return std::move(reasons_);
  }

 private:
  const AttentionSpec& attention() const { return problem_.attention; }
  bool has_cache() const { return !is_encoder_type(attention().type); }
  bool fp8() const { return cudnn_is_fp8(problem_); }
  void add_if(bool condition, std::string reason) {
    if (condition) reasons_.push_back(std::move(reason));
  }

  /// Head sizes of cuDNN: equal ones, or those of DeepSeek's prefill from Hopper on.
  void add_format_reasons() {
    const AttentionSpec& a = attention();
    const bool decode_only = problem_.max_query_len() <= 1;
    const bool is_deepseek = a.head_size == 192 && a.v_head_size == 128 && device_.sm >= 90;
    const bool is_hopper = device_.sm >= 90 && device_.sm < 100;
    const int most = !is_hopper && (decode_only || fp8()) ? 128 : 256;
    const int unit = fp8() ? 16 : 8;
    add_if(a.head_size % unit != 0 || (a.head_size > most && !is_deepseek),
           "head_size not supported");
    add_if(a.dtype != Dtype::kBF16 && a.dtype != Dtype::kF16, "dtype not supported");
    const bool copies = !is_quantised(problem_.kv_cache.dtype);
    add_if(has_cache() && !copies && (!fp8() || device_.sm < 90), "kv_cache_dtype not supported");
    add_if(cudnn_reads_pages(problem_) &&
               !std::has_single_bit(static_cast<unsigned>(problem_.kv_cache.block_size)),
           "block_size not supported");
    add_if(a.v_head_size != a.head_size && !is_deepseek, "v_head_size not supported");
  }

  void add_kind_reasons() {
    const KvCacheSpec& cache = problem_.kv_cache;
    const OutputQuantType output = problem_.output_quant.type;
    add_if(cache.k_scale.size() > 1 || cache.v_scale.size() > 1,
           "per-head quant scales not supported");
    add_if(device_.sm < 80, "compute capability not supported");
    add_if(attention().batch_invariant, "batch invariance not supported");
    add_if(cache.int8_level > 0, "int8 attention not supported");
    add_if(problem_.cascade.mode == CascadeMode::kAlways && problem_.cascade.common_prefix_len > 0,
           "cascade attention not supported by CUDNN");
    add_if(problem_.dcp.world_size > 1, "DCP not supported");
    add_if(!has_cache() && is_quantised(cache.dtype),
           "quantized KV cache is not supported for encoder attention");
    add_if(output != OutputQuantType::kNone && (output != OutputQuantType::kFp8Static || !fp8()),
           fmt::format("output quantization {} not supported", to_string(output)));
    add_if(problem_.max_query_len() == 0 || problem_.max_seq_len() == 0,
           "a batch without rows or keys");
  }

  void add_score_reasons() {
    const AttentionSpec& a = attention();
    const AttentionMath math = resolve_attention_math(problem_, kCudnnRules);
    add_if(!math.mm_prefix_ranges.empty(), "partial multimodal token full attention not supported");
    // cuDNN's own slopes only, and not below a diagonal that ends bottom-right.
    add_if(a.alibi != AlibiKind::kNone, "ALiBi not supported");
    add_if(a.logits_soft_cap > 0, "logits_soft_cap not supported");
    add_if(math.has_sinks && problem_.max_query_len() <= 1,
           "attention sinks where every request has one row");
    add_if(has_infinite_sink(a), "an infinite sink");
  }

  void add_fp8_reasons() {
    const bool e4m3_p = attention().probability_dtype == ProbabilityDtype::kFp8E4M3;
    if (!fp8()) {
      add_if(attention().query_dtype == QueryDtype::kFp8E4M3, "fp8 query");
      add_if(e4m3_p, kProbabilityRefusal);
      return;
    }
    const bool has_context = std::ranges::any_of(problem_.batch, [](const Request& request) {
      return request.query_len != request.seq_len;
    });
    add_if(has_context, "e4m3 keys in pages");
    add_if(calculates_kv_scales(problem_), "scales calculated in the step");
    // Its 16-bit output of e4m3 inputs needs Blackwell.
    add_if(device_.sm < 100 && problem_.output_quant.type == OutputQuantType::kNone,
           "e4m3 inputs without e4m3 output on compute capability < 10.0");
  }

  const Problem& problem_;
  const DeviceFacts& device_;
  std::vector<std::string> reasons_;
};

}  // namespace

std::vector<std::string> cudnn_refusals(const Problem& problem, const DeviceFacts& device,
                                        const std::vector<std::string>& missing) {
  return CudnnQuestion(problem, device, missing).answer();
}

}  // namespace attnbench
