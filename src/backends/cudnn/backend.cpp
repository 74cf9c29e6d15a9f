#include "backends/cudnn/backend.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>

#include "backends/backend_list.h"
#include "backends/cache_facts.h"
#include "backends/cudnn/pipeline.h"
#include "backends/cudnn/refusals.h"
#include "core/error.h"
#include "core/sha256.h"

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

}  // namespace attnbench
