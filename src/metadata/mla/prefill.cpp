#include "metadata/mla/prefill.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace attnbench {
namespace {

constexpr std::array<std::string_view, 3> kNames{"FLASH_ATTN_PREFILL", "TRTLLM_RAGGED",
                                                 "FLASHINFER"};
constexpr int kMaxHeadSize = 256;
constexpr int kHeadSizeMultiple = 8;

std::vector<std::string> flash_attn_reasons(const MlaSpec& mla, Dtype dtype) {
  const int qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim;
  std::vector<std::string> reasons;
  if (qk > kMaxHeadSize || qk % kHeadSizeMultiple != 0) {
    reasons.push_back(fmt::format("head_size {} not supported", qk));
  }
  if (mla.v_head_dim > qk) {
    reasons.push_back(fmt::format("v_head_dim {} larger than {}", mla.v_head_dim, qk));
  }
  if (dtype != Dtype::kF16 && dtype != Dtype::kBF16) reasons.emplace_back("dtype not supported");
  return reasons;
}

}  // namespace

bool is_mla_prefill_backend(std::string_view name) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

std::vector<std::string> mla_prefill_reasons(std::string_view name, const MlaSpec& mla,
                                             Dtype dtype) {
  if (name == kNames.front()) return flash_attn_reasons(mla, dtype);
  std::vector<std::string> reasons{"compute capability 9.0 not supported"};
  if (mla.qk_nope_head_dim != 128 || mla.qk_rope_head_dim != 64 || mla.v_head_dim != 128) {
    reasons.emplace_back("requires qk_nope_head_dim 128, qk_rope_head_dim 64, v_head_dim 128");
  }
  return reasons;
}

std::string mla_prefill_message(std::string_view name, const std::vector<std::string>& reasons) {
  return fmt::format(
      "Selected MLA prefill backend {} is not valid for this configuration. Reason: [{}]", name,
      fmt::join(reasons, ", "));
}

}  // namespace attnbench
