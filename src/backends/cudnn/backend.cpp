// The reasons against a problem are what cuDNN's documentation excludes and, where that says
// nothing, what was seen on an H200. Whatever else it cannot do, it says when the plan is made.
#include "backends/cudnn/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>

#include "backends/attention/capability.h"
#include "backends/backend_list.h"
#include "backends/cudnn/form.h"
#include "backends/cudnn/pipeline.h"
#include "backends/refusals.h"
#include "core/error.h"
#include "core/sha256.h"
#include "inputs/cache/kv_scales.h"

namespace attnbench {
namespace {

PluginInfo info_of(const CudnnLibrary& library) {
  std::ifstream file(library.path(), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  return {library.path(), library.version(), sha256_hex(bytes)};
}

std::string mask_text(const CudnnMask& mask) {
  std::string text = mask.right ? fmt::format("right bound {}", *mask.right) : "no right bound";
  if (mask.left) text += fmt::format(", left bound {}", *mask.left);
  if (mask.right || mask.left) text += mask.is_bottom_right ? ", bottom-right" : ", top-left";
  return text;
}

class CudnnRefusals : private Refusals {
 public:
  CudnnRefusals(const Problem& problem, const DeviceFacts& device,
                const std::vector<std::string>& missing)
      : Refusals(problem, device, missing), problem_(problem), device_(device) {}

  std::vector<std::string> collect() {
    add_if(!device_.is_cuda, "CUDNN needs a CUDA device");
    const AttentionType type = attention().type;
    const bool is_other_type = type == AttentionType::kOp;
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
  bool has_cache() const { return !has_direct_kv(attention().type); }
  bool fp8() const { return cudnn_is_fp8(problem_); }

  /// Head sizes of cuDNN: equal ones, or those of DeepSeek's prefill from Hopper on.
  void add_format_reasons() {
    const AttentionSpec& a = attention();
    const bool decode_only = problem_.max_query_len() <= 1;
    const bool is_deepseek = a.head_size == 192 && a.v_head_size == 128 && device_.sm >= 90;
    const bool is_hopper = device_.sm >= 90 && device_.sm < 100;
    const int most = !is_hopper && (decode_only || fp8()) ? 128 : 256;
    const int unit = fp8() ? 16 : 8;
    head_size(a.head_size % unit != 0 || (a.head_size > most && !is_deepseek),
              fmt::format("a multiple of {}, at most {}", unit, most));
    check_dtype({Dtype::kBF16, Dtype::kF16});
    const bool copies = !is_quantised(problem_.kv_cache.dtype);
    kv_cache_dtype(has_cache() && !copies && (!fp8() || device_.sm < 90));
    block_size(cudnn_reads_pages(problem_) &&
                   !std::has_single_bit(static_cast<unsigned>(problem_.kv_cache.block_size)),
               "a power of two");
    v_head_size(!is_deepseek);
  }

  void add_kind_reasons() {
    const OutputQuantType output = problem_.output_quant.type;
    per_head_scales();
    compute_capability(80);
    batch_invariance();
    chunks();
    cross_layer_cache();
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
    const bool is_fp8_encoder = attention().type == AttentionType::kMmEncoder &&
                                problem_.mm_encoder.attn_dtype == MmAttnDtype::kFp8;
    add_if(is_fp8_encoder,
           fmt::format("mm_encoder_attn_dtype='fp8' requires the FLASHINFER backend, got {}",
                       kCudnnName));
    if (!fp8()) {
      fp8_query();
      fast_fp8_sums();
      return e4m3_probability();
    }
    fast_fp8_sums(false);
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

class CudnnBackend final : public Backend {
 public:
  explicit CudnnBackend(const CudnnChoice& (*find)()) : find_(find) {}

  std::string_view name() const override { return kCudnnName; }
  std::string_view description() const override {
    return "NVIDIA's cuDNN, the vendor peer, only when named; needs libcudnn.so.9";
  }
  KernelRules kernel_rules() const override { return kCudnnRules; }
  bool states_rules() const override { return false; }
  bool is_default_for(AttentionType) const override { return false; }

  bool is_users() const override { return false; }
  const PluginInfo* plugin() const override {
    std::call_once(asked_, [this] {
      if (const CudnnLibrary* library = find_().library) info_ = info_of(*library);
    });
    return info_ ? &*info_ : nullptr;
  }

  std::vector<std::string> refusals(const Problem& problem,
                                    const DeviceFacts& device) const override {
    return cudnn_refusals(problem, device, find_().missing);
  }

  std::optional<CacheLayoutKind> cache_layout() const override { return CacheLayoutKind::kFa; }
  std::optional<CacheLayoutKind> cache_layout_for(const Problem& problem) const override {
    return cudnn_reads_pages(problem) ? cache_layout() : std::nullopt;
  }

  /// Its decode kernels split the keys and add the parts as they come.
  bool is_deterministic(const Problem& problem) const override {
    return problem.max_query_len() > 1;
  }

  Dtype probability_dtype(const Problem& problem) const override {
    return cudnn_is_fp8(problem) ? Dtype::kE4M3 : problem.attention.dtype;
  }

  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    const CudnnChoice& choice = find_();
    if (choice.library == nullptr) {
      fail(ErrorKind::kUnsupported, "{}", fmt::join(choice.missing, "; "));
    }
    return std::make_unique<CudnnPipeline>(problem, inputs, ops, *choice.library);
  }

  bool chooses_kernels() const override { return false; }
  Facts explain(const Problem& problem, const DeviceFacts&) const override {
    const CudnnForm form = make_cudnn_form(problem, resolve_attention_math(problem, kCudnnRules));
    Facts facts;
    if (const PluginInfo* info = plugin()) {
      facts.emplace_back("library", info->library);
      facts.emplace_back("version", info->version);
    }
    facts.emplace_back("sequences", form.is_uniform ? "of one length" : "ragged");
    facts.emplace_back("keys", form.graph.pages ? "pages" : "contiguous");
    facts.emplace_back("mask", mask_text(form.graph.mask));
    if (form.graph.pages) add_cache_facts(problem, CacheLayoutKind::kFa, kCudnnRules, facts);
    return facts;
  }

 private:
  const CudnnChoice& (*find_)();
  mutable std::once_flag asked_;
  mutable std::optional<PluginInfo> info_;
};

}  // namespace

std::unique_ptr<Backend> make_cudnn_backend(const CudnnChoice& (*find)()) {
  return std::make_unique<CudnnBackend>(find);
}

const Backend& cudnn_backend() {
  static const CudnnBackend backend(find_cudnn);
  return backend;
}

std::vector<std::string> cudnn_refusals(const Problem& problem, const DeviceFacts& device,
                                        const std::vector<std::string>& missing) {
  return CudnnRefusals(problem, device, missing).collect();
}

}  // namespace attnbench
