// A backend that is not there is an object like those that are, so that `support`, tables and
// result files say why, beside the backends that run.
#include "backends/upstream_names.h"

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"

namespace attnbench {
namespace {

/// What upstream raises on a CUDA device for a backend whose class another platform brings, and for
/// names that stand for no class until somebody registers one.
#define ATTNBENCH_NO_IMPORT(name) \
  "Selected backend " name " is not valid for this configuration. Reason: ['ImportError']"
#define ATTNBENCH_NOT_REGISTERED(name)                                                 \
  "Backend " name " must be registered before use. Use register_backend(Backend." name \
  ", 'your.module.YourClass')"
/// Upstream runs these on CUDA, by libraries that are here adapters or nothing.
#define ATTNBENCH_NO_PIPELINE(name) name " has no pipeline of its own here"

struct MissingName {
  std::string_view name;
  std::string_view reason;
};

constexpr std::array kMissing{
    MissingName{"ROCM_ATTN", ATTNBENCH_NO_IMPORT("ROCM_ATTN")},
    MissingName{"ROCM_AITER_FA", ATTNBENCH_NO_IMPORT("ROCM_AITER_FA")},
    MissingName{"ROCM_AITER_UNIFIED_ATTN", ATTNBENCH_NO_IMPORT("ROCM_AITER_UNIFIED_ATTN")},
    MissingName{"ROCM_AITER_MLA", ATTNBENCH_NO_IMPORT("ROCM_AITER_MLA")},
    MissingName{"ROCM_AITER_TRITON_MLA", ATTNBENCH_NO_IMPORT("ROCM_AITER_TRITON_MLA")},
    MissingName{"ROCM_AITER_MLA_SPARSE", ATTNBENCH_NO_IMPORT("ROCM_AITER_MLA_SPARSE")},
    MissingName{"XPU_MLA_SPARSE", ATTNBENCH_NO_IMPORT("XPU_MLA_SPARSE")},
    MissingName{"CPU_ATTN", ATTNBENCH_NO_IMPORT("CPU_ATTN")},
    MissingName{"CUSTOM", ATTNBENCH_NOT_REGISTERED("CUSTOM")},
    MissingName{"TORCH_SDPA", ATTNBENCH_NOT_REGISTERED("TORCH_SDPA")},
    MissingName{"MM_ROCM_AITER_FA", "ROCM_AITER_FA requires ROCm"},
    MissingName{"FLASHINFER",
                ATTNBENCH_NO_PIPELINE("FLASHINFER") "; python:attnbench.adapters.flashinfer:"
                                                    "Decode and Prefill run the library"},
    MissingName{
        "FLASHINFER_MLA",
        ATTNBENCH_NO_PIPELINE("FLASHINFER_MLA") "; python:attnbench.adapters.flashinfer:Mla "
                                                "runs the library"},
    MissingName{"FLEX_ATTENTION",
                ATTNBENCH_NO_PIPELINE("FLEX_ATTENTION") "; python:attnbench.adapters.torch_flex:"
                                                        "Flex runs the library"},
    MissingName{"FLASH_ATTN_DIFFKV", ATTNBENCH_NO_PIPELINE("FLASH_ATTN_DIFFKV")},
    MissingName{"TREE_ATTN", ATTNBENCH_NO_PIPELINE("TREE_ATTN")},
    MissingName{"TRITON_MLA_SPARSE", ATTNBENCH_NO_PIPELINE("TRITON_MLA_SPARSE")},
    MissingName{"NO_ATTENTION", ATTNBENCH_NO_PIPELINE("NO_ATTENTION")},
};

class MissingBackend final : public Backend {
 public:
  explicit MissingBackend(const MissingName& row) : row_(row) {}

  std::string_view name() const override { return row_.name; }
  std::string_view description() const override { return row_.reason; }
  bool is_default_for(AttentionType) const override { return false; }
  std::vector<std::string> refusals(const Problem&, const DeviceFacts&) const override {
    return {std::string(row_.reason)};
  }
  KernelRules kernel_rules() const override { return {}; }
  std::optional<CacheLayoutKind> cache_layout() const override { return std::nullopt; }
  Dtype probability_dtype(const Problem& problem) const override { return problem.attention.dtype; }
  std::unique_ptr<Pipeline> prepare(const Problem&, const BackendInputs&, Ops&) const override {
    fail(ErrorKind::kInternal, "{} cannot run: {}", row_.name, row_.reason);
  }
  Facts explain(const Problem&, const DeviceFacts&) const override { return {}; }

 private:
  MissingName row_;
};

}  // namespace

const Backend* find_upstream_backend(std::string_view name) {
  if (name == "TRITON_MLA") return find_backend("MLA");
  static const auto missing = [] {
    std::vector<std::unique_ptr<MissingBackend>> all;
    for (const MissingName& row : kMissing) all.push_back(std::make_unique<MissingBackend>(row));
    return all;
  }();
  for (const auto& backend : missing) {
    if (backend->name() == name) return backend.get();
  }
  return nullptr;
}

}  // namespace attnbench
