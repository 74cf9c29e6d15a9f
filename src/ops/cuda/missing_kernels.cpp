// The question is put to the kernels themselves: a call of attend() with the element types and head
// sizes of the problem, and addresses that nothing touches. So there is no second table of what
// kernels can do.
#include "ops/cuda/missing_kernels.h"

#include <array>

#include "core/error.h"
#include "ops/cuda/attention/candidates.h"

namespace attnbench {
namespace {

/// The cache's element that demands most of a kernel: codes are expanded, other keys are as
/// queries.
attn::Element cache_element(const Problem& problem) {
  const KvFormat& format = kv_format(problem.kv_cache.dtype);
  const bool copies = format.scales == KvScales::kNone;
  return static_cast<attn::Element>(copies ? problem.attention.dtype : format.codes.value());
}

/// Attention over paged keys as far as the choice of a kernel goes; pointers that are set mean
/// "there is one" and are never followed.
attn::AttendParams attend_form(const Problem& problem, int head_size, int v_head_size) {
  // Why on 16 bytes: as on a device, and which kernel is chosen goes by it.
  alignas(16) static std::array<float, 64> somewhere{};
  attn::AttendParams p{};
  p.query_element = p.output_element = static_cast<attn::Element>(problem.attention.dtype);
  p.num_heads = p.num_kv_heads = 1;
  p.head_size = head_size;
  p.v_head_size = v_head_size;
  p.max_query_len = 1;
  p.score.softmax_scale = 1.0f;
  static constexpr std::array<int, 1> kTable{};
  p.kv.block_table = kTable.data();
  p.kv.block_size = problem.kv_cache.block_size;
  p.kv.element = cache_element(problem);
  p.kv.key = somewhere.data();
  // The latent of MLA is key and value at once.
  const bool is_mla = problem.attention.type == AttentionType::kMla;
  p.kv.value = is_mla ? p.kv.key : somewhere.data() + 16;
  if (problem.kv_cache.int8_level > 0) {
    p.query_element = p.kv.element = attn::Element::kI8;
    p.int8.query_scale = p.kv.key_scales = somewhere.data();
    p.int8.value_element = problem.kv_cache.int8_level == 1
                               ? attn::Element::kI8
                               : static_cast<attn::Element>(problem.attention.dtype);
  }
  return p;
}

}  // namespace

std::vector<std::string> cuda_lacks(const Problem& problem, const cuda::Target& target) {
  const AttentionSpec& attention = problem.attention;
  if (attention.type == AttentionType::kOp) return {};
  attn::AttendParams params = attend_form(problem, attention.head_size, attention.v_head_size);
  if (attention.type == AttentionType::kMla) {
    const MlaSpec& mla = problem.mla;
    params = attend_form(problem, mla.kv_lora_rank + mla.qk_rope_head_dim, mla.kv_lora_rank);
  }
  try {
    cuda::check_attend(target, params);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    return {error.what()};
  }
  return {};
}

}  // namespace attnbench
