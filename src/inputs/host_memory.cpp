#include "inputs/host_memory.h"

#include <unistd.h>

#include <string_view>

#include "core/error.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/files/input_file.h"
#include "inputs/inputs.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

/// Bytes of inputs, of K and V as stored and dequantised, and of the paged cache.
std::int64_t attention_bytes(const Problem& problem) {
  constexpr std::string_view kWhat = "host memory of the case";
  const AttentionSpec& a = problem.attention;
  const auto element = static_cast<std::int64_t>(dtype_size(a.dtype));
  const auto bytes = [&](std::int64_t rows, std::int64_t width, std::int64_t size) {
    return checked_mul(checked_mul(rows, width, kWhat), size, kWhat);
  };
  const std::int64_t kv_width = std::int64_t{a.num_kv_heads} * (a.head_size + a.v_head_size);
  std::int64_t sum = bytes(problem.num_tokens() + kQueryPaddingRows,
                           std::int64_t{a.num_heads} * a.head_size, element);
  const auto float_size = static_cast<std::int64_t>(sizeof(float));
  sum = checked_add(sum, bytes(problem.num_keys(), kv_width, element + float_size), kWhat);
  if (!has_direct_kv(a.type)) {
    const auto stored =
        static_cast<std::int64_t>(dtype_size(kv_element_dtype(problem.kv_cache.dtype, a.dtype)));
    const std::int64_t slots =
        checked_mul(problem.kv_cache.num_blocks, page_tokens(problem), kWhat);
    sum = checked_add(sum, bytes(problem.num_keys(), kv_width, stored), kWhat);
    sum = checked_add(sum, bytes(slots, kv_width, stored), kWhat);
  }
  return sum;
}

/// Latents as drawn, stored and dequantised, their cache, weights, query and top-k indices.
std::int64_t mla_bytes(const Problem& problem) {
  constexpr std::string_view kWhat = "host memory of the case";
  const AttentionSpec& a = problem.attention;
  const MlaSpec& mla = problem.mla;
  const auto element = static_cast<std::int64_t>(dtype_size(a.dtype));
  const auto bytes = [&](std::int64_t rows, std::int64_t width) {
    return checked_mul(rows, width, kWhat);
  };
  const std::int64_t entry = std::int64_t{mla.kv_lora_rank} + mla.qk_rope_head_dim;
  const std::int64_t slots = checked_mul(problem.kv_cache.num_blocks, page_tokens(problem), kWhat);
  const std::int64_t per_token = std::int64_t{a.num_heads} * a.head_size * element +
                                 std::int64_t{mla.sparse_topk.value_or(0)} * 4;
  std::int64_t sum = bytes(problem.num_tokens() + kQueryPaddingRows, per_token);
  sum = checked_add(sum, bytes(problem.num_keys(), entry * (2 * element + 4)), kWhat);
  sum = checked_add(sum, bytes(slots, entry * element), kWhat);
  const std::int64_t weights = std::int64_t{mla.qk_nope_head_dim} + mla.v_head_dim;
  return checked_add(sum, bytes(std::int64_t{a.num_heads} * mla.kv_lora_rank, weights * element),
                     kWhat);
}

}  // namespace

void check_inputs_fit(const Problem& problem) {
  if (problem.inputs.shapes_only) return;
  const std::int64_t needed =
      problem.attention.type == AttentionType::kMla ? mla_bytes(problem) : attention_bytes(problem);
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  const std::int64_t available =
      std::int64_t{::sysconf(_SC_PHYS_PAGES)} * std::int64_t{::sysconf(_SC_PAGESIZE)};
  if (needed <= available) return;
  fail(ErrorKind::kCapacity,
       "the case needs {:.1f} GiB of host memory, this machine has {:.1f} GiB",
       static_cast<double>(needed) / kGiB, static_cast<double>(available) / kGiB);
}

}  // namespace attnbench
