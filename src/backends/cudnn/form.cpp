// cuDNN takes a batch in one of two forms: uniform, every request with as many rows and keys, or
// ragged, with offsets into tensors without gaps. The uniform one is used wherever it fits, as it
// needs no offsets.
#include "backends/cudnn/form.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "metadata/batch.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

using TensorExtents = std::array<std::int64_t, 4>;

bool has_context(const Problem& problem) {
  return std::ranges::any_of(
      problem.batch, [](const Request& request) { return request.query_len != request.seq_len; });
}

/// [B, heads, rows, columns] of which a token's heads lie side by side.
CudnnTensor token_major(const TensorExtents& extents, bool is_ragged) {
  const auto [batch, heads, rows, columns] = extents;
  return {extents, {rows * heads * columns, columns, heads * columns, 1}, is_ragged};
}

bool same_query_lens(const Problem& problem) {
  const std::int64_t first = problem.batch.front().query_len;
  return std::ranges::all_of(problem.batch,
                             [&](const Request& request) { return request.query_len == first; });
}

bool same_seq_lens(const Problem& problem) {
  const std::int64_t first = problem.batch.front().seq_len;
  return std::ranges::all_of(problem.batch,
                             [&](const Request& request) { return request.seq_len == first; });
}

CudnnMask mask_of(const Problem& problem, const AttentionMath& math) {
  CudnnMask mask;
  mask.is_bottom_right = has_context(problem);
  if (math.window_left >= 0 && math.window_left < problem.max_seq_len()) {
    mask.left = math.window_left + 1;
  }
  // The last row of a request sees every key up to its own, and there is none behind.
  const bool hides_keys = problem.max_query_len() > 1 || !mask.is_bottom_right || mask.left;
  if (math.window_right >= 0 && math.window_right < problem.max_seq_len() && hides_keys) {
    mask.right = math.window_right;
  }
  return mask;
}

/// [B+1]: the sums of a length, `unit` elements each.
template <typename Length>
std::vector<std::int64_t> offsets_of(const Problem& problem, std::int64_t unit, Length length) {
  std::vector<std::int64_t> offsets{0};
  for (const Request& request : problem.batch) {
    offsets.push_back(offsets.back() + length(request) * unit);
  }
  return offsets;
}

std::int64_t query_len_of(const Request& request) { return request.query_len; }
std::int64_t seq_len_of(const Request& request) { return request.seq_len; }

void set_offsets(const Problem& problem, CudnnForm& form) {
  const AttentionSpec& a = problem.attention;
  const std::int64_t heads = a.num_heads;
  const std::int64_t kv_heads = a.num_kv_heads;
  form.query_offsets = offsets_of(problem, heads * a.head_size, query_len_of);
  form.output_offsets = offsets_of(problem, heads * a.v_head_size, query_len_of);
  form.stats_offsets = offsets_of(problem, heads, query_len_of);
  if (!form.graph.pages) {
    form.key_offsets = offsets_of(problem, kv_heads * a.head_size, seq_len_of);
    form.value_offsets = offsets_of(problem, kv_heads * a.v_head_size, seq_len_of);
  }
  // 32-bit offsets are enough for nearly every batch; wide ones only where an offset does not fit.
  for (const auto* offsets : {&form.query_offsets, &form.output_offsets, &form.stats_offsets,
                              &form.key_offsets, &form.value_offsets}) {
    if (!offsets->empty() && offsets->back() > std::numeric_limits<std::int32_t>::max()) {
      form.graph.wide_offsets = true;
    }
  }
}

void set_lengths(const Problem& problem, CudnnForm& form) {
  form.graph.has_lengths = true;
  form.query_lens = query_lens_of(problem);
  form.key_lens = seq_lens_of(problem);
}

void set_pages(const Problem& problem, CudnnGraph& graph) {
  const AttentionSpec& a = problem.attention;
  const KvCacheSpec& cache = problem.kv_cache;
  const bool nhd = cache.layout == CacheLayout::kNhd;
  const KvLayout layout =
      make_kv_layout(CacheLayoutKind::kFa, nhd ? HeadOrder::kNhd : HeadOrder::kHnd,
                     cache.num_blocks, cache.block_size, a.num_kv_heads, a.head_size);
  graph.pages =
      CudnnPages{ceil_div(problem.max_seq_len(), cache.block_size), problem.max_seq_len()};
  graph.key_shape = {{cache.num_blocks, a.num_kv_heads, cache.block_size, a.head_size},
                     {layout.block_stride, layout.head_stride, layout.slot_stride, 1},
                     false};
  graph.value_shape = graph.key_shape;
}

/// Calls visit(first byte, bytes) for the key and the value vector of every head in every slot that
/// holds no key of a request.
template <typename Visit>
void for_each_unused_vector(const Problem& problem, const PagedCache& cache, Visit visit) {
  const std::int64_t block_size = problem.kv_cache.block_size;
  std::vector<bool> used(static_cast<std::size_t>(problem.kv_cache.num_blocks * block_size), false);
  const auto* row = cache.block_table.data<std::int32_t>();
  for (const Request& request : problem.batch) {
    for (std::int64_t p = 0; p < request.seq_len; ++p) {
      used[static_cast<std::size_t>(row[p / block_size] * block_size + p % block_size)] = true;
    }
    row += cache.block_table.dim(1);
  }
  const KvLayout& layout = cache.layout;
  const std::size_t element = dtype_size(cache.data.dtype());
  const std::size_t size = static_cast<std::size_t>(problem.attention.head_size) * element;
  for (std::size_t slot = 0; slot < used.size(); ++slot) {
    if (used[slot]) continue;
    const auto index = static_cast<std::int64_t>(slot);
    const std::int64_t place =
        index / block_size * layout.block_stride + index % block_size * layout.slot_stride;
    for (std::int64_t head = 0; head < problem.attention.num_kv_heads; ++head) {
      for (const std::int64_t plane : {layout.key_offset, layout.value_offset}) {
        visit(static_cast<std::size_t>(plane + place + head * layout.head_stride) * element, size);
      }
    }
  }
}

}  // namespace

bool cudnn_is_fp8(const Problem& problem) {
  return !has_direct_kv(problem.attention.type) && is_e4m3_cache(problem.kv_cache.dtype);
}

bool cudnn_reads_pages(const Problem& problem) {
  const AttentionSpec& a = problem.attention;
  if (has_direct_kv(a.type) || a.head_size != a.v_head_size || cudnn_is_fp8(problem)) {
    return false;
  }
  return a.type == AttentionType::kEncoderDecoder || has_context(problem);
}

CudnnForm make_cudnn_form(const Problem& problem, const AttentionMath& math) {
  const AttentionSpec& a = problem.attention;
  const std::int64_t batch = problem.num_requests();
  const std::int64_t rows = problem.max_query_len();
  const std::int64_t keys = problem.max_seq_len();
  const bool paged = cudnn_reads_pages(problem);
  CudnnForm form;
  form.is_uniform = same_query_lens(problem) && (paged || same_seq_lens(problem));
  const bool ragged = !form.is_uniform;
  CudnnGraph& graph = form.graph;
  graph.input = cudnn_is_fp8(problem) ? Dtype::kE4M3 : a.dtype;
  graph.output = problem.output_quant.type == OutputQuantType::kFp8Static ? Dtype::kE4M3 : a.dtype;
  graph.query_shape = token_major({batch, a.num_heads, rows, a.head_size}, ragged);
  graph.output_shape = token_major({batch, a.num_heads, rows, a.v_head_size}, ragged);
  if (paged) {
    set_pages(problem, graph);
  } else {
    graph.key_shape = token_major({batch, a.num_kv_heads, keys, a.head_size}, ragged);
    graph.value_shape = token_major({batch, a.num_kv_heads, keys, a.v_head_size}, ragged);
  }
  graph.stats_shape =
      ragged ? token_major({batch, a.num_heads, rows, 1}, true)
             : CudnnTensor{{batch, a.num_heads, rows, 1}, {a.num_heads * rows, rows, 1, 1}, false};
  graph.softmax_scale = static_cast<float>(math.softmax_scale);
  graph.mask = mask_of(problem, math);
  graph.has_sinks = math.has_sinks;
  if (ragged) set_offsets(problem, form);
  if (ragged || paged) set_lengths(problem, form);
  return form;
}

Tensor cudnn_cache(const Problem& problem, const PagedCache& before) {
  Tensor cache = before.data;
  for_each_unused_vector(problem, before, [&](std::size_t first, std::size_t size) {
    std::memset(cache.bytes() + first, 0, size);
  });
  return cache;
}

void restore_cudnn_cache(const Problem& problem, const PagedCache& before, Tensor& cache) {
  for_each_unused_vector(problem, before, [&](std::size_t first, std::size_t size) {
    const std::byte* begin = cache.bytes() + first;
    const bool untouched =
        std::all_of(begin, begin + size, [](std::byte b) { return b == std::byte{0}; });
    if (untouched) std::memcpy(cache.bytes() + first, before.data.bytes() + first, size);
  });
}

std::vector<std::int32_t> cudnn_block_table(const Problem& problem, const Tensor& block_table,
                                            std::int64_t width) {
  std::vector<std::int32_t> compact(static_cast<std::size_t>(problem.num_requests() * width), 0);
  const auto* row = block_table.data<std::int32_t>();
  auto target = compact.begin();
  for (const Request& request : problem.batch) {
    std::copy_n(row, ceil_div(request.seq_len, problem.kv_cache.block_size), target);
    row += block_table.dim(1);
    target += width;
  }
  return compact;
}

std::int64_t cudnn_stats_size(const Problem& problem) {
  return problem.num_tokens() * problem.attention.num_heads;
}

Tensor lse_of_cudnn_stats(const Problem& problem, std::span<const float> stats, bool is_uniform) {
  const std::int64_t heads = problem.attention.num_heads;
  const std::int64_t tokens = problem.num_tokens();
  // A batch whose rows are ragged is one sequence of all tokens, token-major.
  const std::int64_t rows = is_uniform ? problem.max_query_len() : tokens;
  const std::int64_t head_stride = is_uniform ? rows : 1;
  const std::int64_t row_stride = is_uniform ? 1 : heads;
  Tensor lse(Dtype::kF32, {heads, tokens});
  for (std::int64_t token = 0; token < tokens; ++token) {
    const std::int64_t first = token / rows * heads * rows + token % rows * row_stride;
    for (std::int64_t head = 0; head < heads; ++head) {
      lse.data<float>()[head * tokens + token] =
          stats[static_cast<std::size_t>(first + head * head_stride)];
    }
  }
  return lse;
}

}  // namespace attnbench
