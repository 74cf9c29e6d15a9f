// A backend that is not there is an object like those that are, so that `support`, tables and
// result files say why, beside the backends that run.
#include "backends/upstream_names.h"

#include <fmt/format.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/upstream_choice.h"
#include "core/error.h"

namespace attnbench {
namespace {

/// What upstream raises for names that stand for no class until somebody registers one.
#define ATTNBENCH_NOT_REGISTERED(name)                                                 \
  "Backend " name " must be registered before use. Use register_backend(Backend." name \
  ", 'your.module.YourClass')"
/// Upstream takes these, or refuses them for what upstream_refusal() knows.
#define ATTNBENCH_NO_PIPELINE(name) name " has no pipeline of its own here"

struct MissingName {
  std::string_view name;
  std::string_view reason;
};

/// What the classes of another platform import as soon as they are made, and CUDA has not.
constexpr std::string_view kNoAiter = "No module named 'aiter'";

constexpr std::array kMissing{
    MissingName{"ROCM_ATTN", ATTNBENCH_NO_PIPELINE("ROCM_ATTN")},
    MissingName{"ROCM_AITER_FA", ATTNBENCH_NO_PIPELINE("ROCM_AITER_FA")},
    MissingName{"ROCM_AITER_UNIFIED_ATTN", kNoAiter},
    MissingName{"ROCM_AITER_MLA", kNoAiter},
    MissingName{"ROCM_AITER_TRITON_MLA", kNoAiter},
    MissingName{"ROCM_AITER_MLA_SPARSE", kNoAiter},
    MissingName{"XPU_MLA_SPARSE", ATTNBENCH_NO_PIPELINE("XPU_MLA_SPARSE")},
    MissingName{"CPU_ATTN", ATTNBENCH_NO_PIPELINE("CPU_ATTN")},
    MissingName{"CUSTOM", ATTNBENCH_NOT_REGISTERED("CUSTOM")},
    MissingName{"TORCH_SDPA", ATTNBENCH_NOT_REGISTERED("TORCH_SDPA")},
    MissingName{"NO_ATTENTION",
                "Selected backend AttentionBackendEnum.NO_ATTENTION is not valid for this "
                "configuration. Reason: ['ImportError']"},
    MissingName{"FLASHINFER",
                ATTNBENCH_NO_PIPELINE("FLASHINFER") "; python:attnbench.adapters.flashinfer:"
                                                    "Decode and Prefill run the library"},
    MissingName{
        "FLASHINFER_MLA",
        ATTNBENCH_NO_PIPELINE("FLASHINFER_MLA") "; python:attnbench.adapters.flashinfer:Mla "
                                                "runs the library"},
    MissingName{"TOKENSPEED_MLA", ATTNBENCH_NO_PIPELINE("TOKENSPEED_MLA")},
    MissingName{"FLEX_ATTENTION",
                ATTNBENCH_NO_PIPELINE("FLEX_ATTENTION") "; python:attnbench.adapters.torch_flex:"
                                                        "Flex runs the library"},
    MissingName{"FLASH_ATTN_DIFFKV", ATTNBENCH_NO_PIPELINE("FLASH_ATTN_DIFFKV")},
    MissingName{"TREE_ATTN", ATTNBENCH_NO_PIPELINE("TREE_ATTN")},
    // Names of U-Aug.
    MissingName{"TRITON_ATTN_DIFFKV", ATTNBENCH_NO_PIPELINE("TRITON_ATTN_DIFFKV")},
    MissingName{"TRITON_MLA_SPARSE", ATTNBENCH_NO_PIPELINE("TRITON_MLA_SPARSE")},
    MissingName{"FLASH_ATTN_MLA_SPARSE", ATTNBENCH_NO_PIPELINE("FLASH_ATTN_MLA_SPARSE")},
    MissingName{"FLASHINFER_MLA_SPARSE_SM120",
                ATTNBENCH_NO_PIPELINE("FLASHINFER_MLA_SPARSE_SM120")},
    MissingName{"FLASHINFER_MLA_SPARSE_DSV4", ATTNBENCH_NO_PIPELINE("FLASHINFER_MLA_SPARSE_DSV4")},
    MissingName{"FLASHMLA_SPARSE_DSV4", ATTNBENCH_NO_PIPELINE("FLASHMLA_SPARSE_DSV4")},
    MissingName{"ROCM_FLASHMLA_SPARSE_DSV4", ATTNBENCH_NO_PIPELINE("ROCM_FLASHMLA_SPARSE_DSV4")},
    MissingName{"MINIMAX_M3_SPARSE", ATTNBENCH_NO_PIPELINE("MINIMAX_M3_SPARSE")},
    MissingName{"CUTLASS_MSA", ATTNBENCH_NO_PIPELINE("CUTLASS_MSA")},
    MissingName{"TRITON_MSA", ATTNBENCH_NO_PIPELINE("TRITON_MSA")},
    MissingName{"HPC_ATTN", ATTNBENCH_NO_PIPELINE("HPC_ATTN")},
};

class MissingBackend final : public Backend {
 public:
  MissingBackend(std::string name, std::string reason)
      : name_(std::move(name)), reason_(std::move(reason)) {}

  std::string_view name() const override { return name_; }
  std::string_view description() const override { return reason_; }
  bool is_default_for(AttentionType) const override { return false; }
  std::vector<std::string> refusals(const Problem& problem,
                                    const DeviceFacts& device) const override {
    const std::string upstream = upstream_refusal(name_, problem, device);
    return upstream.empty() ? std::vector{reason_} : std::vector{upstream, reason_};
  }
  KernelRules kernel_rules() const override { return {}; }
  std::optional<CacheLayoutKind> cache_layout() const override { return std::nullopt; }
  Dtype probability_dtype(const Problem& problem) const override { return problem.attention.dtype; }
  std::unique_ptr<Pipeline> prepare(const Problem&, const BackendInputs&, Ops&) const override {
    fail(ErrorKind::kInternal, "{} cannot run: {}", name_, reason_);
  }
  Facts explain(const Problem&, const DeviceFacts&) const override { return {}; }

 private:
  std::string name_;
  std::string reason_;
};

using MissingBackends = std::vector<std::unique_ptr<MissingBackend>>;

/// Every name of kMissing, and as MM_X every name X of upstream that no encoder runs.
MissingBackends missing_backends() {
  MissingBackends all;
  const auto add = [&](std::string name, std::string reason) {
    all.push_back(std::make_unique<MissingBackend>(std::move(name), std::move(reason)));
  };
  const auto add_encoder = [&](std::string_view name) {
    const std::string own = fmt::format("MM_{}", name);
    if (find_backend(own) != nullptr) return;
    add(own,
        name == "ROCM_AITER_FA"
            ? "ROCM_AITER_FA requires ROCm"
            : fmt::format("Unsupported multi-modal encoder attention backend for CUDA: {}.", name));
  };
  for (const MissingName& row : kMissing) {
    add(std::string(row.name), std::string(row.reason));
    add_encoder(row.name);
  }
  for (const Backend* backend : all_backends()) {
    const std::string_view name = backend->name();
    const bool is_upstreams = !name.starts_with("MM_") && name != "REFERENCE" && name != "OPS" &&
                              name != "CUDNN" && name != "FLASH_ATTN_IX";
    if (is_upstreams) add_encoder(name == "MLA" ? "TRITON_MLA" : name);
  }
  return all;
}

}  // namespace

const Backend* find_upstream_backend(std::string_view name) {
  if (name == "TRITON_MLA") return find_backend("MLA");
  static const MissingBackends missing = missing_backends();
  for (const auto& backend : missing) {
    if (backend->name() == name) return backend.get();
  }
  return nullptr;
}

}  // namespace attnbench
