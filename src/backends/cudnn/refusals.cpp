#include "backends/cudnn/refusals.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "backends/attention/capability.h"
#include "backends/cudnn/form.h"
#include "backends/refusals.h"
#include "inputs/cache/kv_scales.h"

namespace attnbench {
namespace {

class CudnnRefusals : private Refusals {
 public:
  CudnnRefusals(const Problem& problem, const DeviceFacts& device,
                const std::vector<std::string>& missing)
      : Refusals(problem, device, missing), problem_(problem), device_(device) {}

  std::vector<std::string> collect() {
    add_if(!device_.is_cuda, "CUDNN needs a CUDA device");
    const AttentionType type = attention().type;
    const bool is_other_type = type == AttentionType::kMmEncoder || type == AttentionType::kOp;
    mla();
    attention_type(is_other_type);
    if (type != AttentionType::kMla && !is_other_type) {
      add_format_reasons();
      add_kind_reasons();
      add_score_reasons();
      add_fp8_reasons();
    }
    return take();
  }

 private:
  const AttentionSpec& attention() const { return problem_.attention; }
  bool has_cache() const { return !is_encoder_type(attention().type); }
  bool fp8() const { return cudnn_is_fp8(problem_); }

  /// Head sizes of cuDNN: equal ones, or those of DeepSeek's prefill from Hopper on.
  void add_format_reasons() {
    const AttentionSpec& a = attention();
    const bool decode_only = problem_.max_query_len() <= 1;
    const bool is_deepseek = a.head_size == 192 && a.v_head_size == 128 && device_.sm >= 90;
    const bool is_hopper = device_.sm >= 90 && device_.sm < 100;
    const int most = !is_hopper && (decode_only || fp8()) ? 128 : 256;
    const int unit = fp8() ? 16 : 8;
    head_size(a.head_size % unit != 0 || (a.head_size > most && !is_deepseek));
    check_dtype({Dtype::kBF16, Dtype::kF16});
    const bool copies = !is_quantised(problem_.kv_cache.dtype);
    kv_cache_dtype(has_cache() && !copies && (!fp8() || device_.sm < 90));
    block_size(cudnn_reads_pages(problem_) &&
               !std::has_single_bit(static_cast<unsigned>(problem_.kv_cache.block_size)));
    v_head_size(!is_deepseek);
  }

  void add_kind_reasons() {
    const OutputQuantType output = problem_.output_quant.type;
    per_head_scales();
    compute_capability(80);
    batch_invariance();
    int8();
    cascade_by(kCudnnName);
    dcp();
    quantised_kv_of_encoder(!has_cache());
    output_quant(output != OutputQuantType::kNone &&
                 (output != OutputQuantType::kFp8Static || !fp8()));
    add_if(problem_.max_query_len() == 0 || problem_.max_seq_len() == 0,
           "a batch without rows or keys");
  }

  void add_score_reasons() {
    const AttentionSpec& a = attention();
    const AttentionMath math = resolve_attention_math(problem_, kCudnnRules);
    mm_prefix(!math.mm_prefix_ranges.empty());
    // cuDNN's own slopes only, and not below a diagonal that ends bottom-right.
    add_if(a.alibi != AlibiKind::kNone, "ALiBi not supported");
    add_if(a.logits_soft_cap > 0, "logits_soft_cap not supported");
    add_if(math.has_sinks && problem_.max_query_len() <= 1,
           "attention sinks where every request has one row");
    add_if(has_infinite_sink(a), "an infinite sink");
  }

  void add_fp8_reasons() {
    if (!fp8()) {
      fp8_query();
      return e4m3_probability();
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
};

}  // namespace

std::vector<std::string> cudnn_refusals(const Problem& problem, const DeviceFacts& device,
                                        const std::vector<std::string>& missing) {
  return CudnnRefusals(problem, device, missing).collect();
}

}  // namespace attnbench
