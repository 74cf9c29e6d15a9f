// Which problems need operations that have no CUDA kernel yet.
#include "ops/cuda/cuda_ops.h"

namespace attnbench {
namespace {

bool is_mla(const Problem& problem) { return problem.attention.type == AttentionType::kMla; }
bool is_vision(const Problem& problem) {
  return problem.attention.type == AttentionType::kMmEncoder;
}

/// An operation without a kernel, and the problems whose pipelines use it. A kernel that is added
/// takes its row away.
struct Lack {
  const char* operation;
  bool (*is_needed)(const Problem& problem);
};

constexpr Lack kLacks[] = {
    {"quantise_int8", [](const Problem& p) { return p.kv_cache.int8_level > 0; }},
    {"matmul", is_mla},
    {"quantise_pad_fp8",
     [](const Problem& p) { return is_vision(p) && p.mm_encoder.attn_dtype == MmAttnDtype::kFp8; }},
    {"quantise_fp8_groups",
     [](const Problem& p) {
       return p.output_quant.type == OutputQuantType::kFp8Group128 ||
              p.output_quant.type == OutputQuantType::kFp8Group64;
     }},
    {"quantise_nvfp4",
     [](const Problem& p) { return p.output_quant.type == OutputQuantType::kNvfp4; }},
    {"correct_dcp", [](const Problem& p) { return p.dcp.world_size > 1; }},
};

}  // namespace

std::vector<std::string> cuda_lacks(const Problem& problem) {
  std::vector<std::string> reasons;
  for (const Lack& lack : kLacks) {
    if (lack.is_needed(problem)) {
      reasons.push_back(std::string(lack.operation) + " has no CUDA kernel yet");
    }
  }
  return reasons;
}

}  // namespace attnbench
