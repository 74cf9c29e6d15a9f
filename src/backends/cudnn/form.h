// How a problem is put to cuDNN: its tensors, mask and lengths as a CudnnGraph, and the way back of
// its statistics.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"
#include "cudnn/graph.h"
#include "inputs/cache/paged_cache.h"
#include "metadata/mask/attention_math.h"

namespace attnbench {

constexpr const char* kCudnnName = "CUDNN";
constexpr KernelRules kCudnnRules{.quantises_query = true};

/// Whether cuDNN reads the pages of the cache. Otherwise keys and values are tensors: for encoders,
/// for prefills of which no request has context (all keys are new then), for values of another head
/// size than the keys', which no paged cache here has, and for e4m3.
bool cudnn_reads_pages(const Problem& problem);

/// e4m3 queries, keys and values: where the cache is of e4m3.
bool cudnn_is_fp8(const Problem& problem);

struct CudnnForm {
  CudnnGraph graph;
  /// Every request has as many rows, and as many keys where these are tensors: then nothing is
  /// ragged, and the offsets are empty.
  bool is_uniform = false;
  /// [B+1] in elements of their tensor.
  std::vector<std::int64_t> query_offsets;
  std::vector<std::int64_t> key_offsets;    // empty when keys lie in pages
  std::vector<std::int64_t> value_offsets;  // likewise
  std::vector<std::int64_t> output_offsets;
  std::vector<std::int64_t> stats_offsets;
  std::vector<std::int32_t> query_lens;  // [B], empty where the graph has no lengths
  std::vector<std::int32_t> key_lens;    // [B], likewise
};

/// `math` is resolve_attention_math() of the problem. At least one request has rows and keys.
CudnnForm make_cudnn_form(const Problem& problem, const AttentionMath& math);

/// `before`, a paged cache, with zeros in every slot that holds no key of a request. Why: cuDNN
/// multiplies what lies behind a request's last key, in its last page, by a weight of 0, which
/// takes NaN for NaN; inference engines start from a cache of zeros.
Tensor cudnn_cache(const Problem& problem, const PagedCache& before);
/// The way back: what is still zero in those slots becomes what it was in `before`, so that a stray
/// write shows.
void restore_cudnn_cache(const Problem& problem, const PagedCache& before, Tensor& cache);

/// [B, width] of a block table [B, more]: what pages.table_width says. The entries past those of a
/// request's keys become 0, a block that exists.
std::vector<std::int32_t> cudnn_block_table(const Problem& problem, const Tensor& block_table,
                                            std::int64_t width);

/// Elements of the statistics.
std::int64_t cudnn_stats_size(const Problem& problem);

/// LSE f32 [H, T] of statistics, which stand as [T, H] where the tensors are ragged and else as
/// [B, H, Sq].
Tensor lse_of_cudnn_stats(const Problem& problem, std::span<const float> stats, bool is_uniform);

}  // namespace attnbench
