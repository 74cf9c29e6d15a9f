// Lists are cut here, once: whoever computes what is right reads lists without the entries that do
// not count, and only kernels are given those with a length.
#include "inputs/sparse_lists.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "inputs/mla_inputs.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

/// Rows [S, width] of all requests with `num_extra` rows of `extra` behind each.
Tensor join_rows(const MlaInputs& inputs, const Tensor& own, const Tensor& extra,
                 std::int64_t num_extra) {
  Tensor joined(own.dtype(), {own.dim(0) + extra.dim(0), own.dim(1)});
  const std::size_t row = static_cast<std::size_t>(own.dim(1)) * dtype_size(own.dtype());
  std::byte* to = joined.bytes();
  const auto append = [&](const Tensor& from, std::int64_t first, std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * row;
    if (bytes > 0) std::memcpy(to, from.bytes() + static_cast<std::size_t>(first) * row, bytes);
    to += bytes;
  };
  for (std::size_t b = 0; b < inputs.seq_lens.size(); ++b) {
    append(own, inputs.key_start_loc[b], inputs.seq_lens[b]);
    append(extra, static_cast<std::int64_t>(b) * num_extra, num_extra);
  }
  return joined;
}

/// Positions in the second cache are behind the request's own.
Tensor join_lists(const MlaInputs& inputs) {
  const Tensor& own = inputs.topk_indices;
  const Tensor& extra = inputs.extra.lists.indices;
  const std::int64_t width = own.dim(1) + extra.dim(1);
  Tensor joined(Dtype::kI32, {own.dim(0), width});
  for (std::size_t b = 0; b < inputs.seq_lens.size(); ++b) {
    for (std::int64_t token = inputs.query_start_loc[b]; token < inputs.query_start_loc[b + 1];
         ++token) {
      std::int32_t* const row = joined.data<std::int32_t>() + token * width;
      std::memcpy(row, own.data<std::int32_t>() + token * own.dim(1),
                  static_cast<std::size_t>(own.dim(1)) * sizeof(std::int32_t));
      for (std::int64_t k = 0; k < extra.dim(1); ++k) {
        const std::int32_t index = extra.data<std::int32_t>()[token * extra.dim(1) + k];
        row[own.dim(1) + k] = index < 0 ? -1 : inputs.seq_lens[b] + index;
      }
    }
  }
  return joined;
}

}  // namespace

bool has_extra_keys(const Problem& problem) {
  return problem.attention.type == AttentionType::kMla && problem.mla.sparse_topk &&
         problem.mla.sparse_extra_topk;
}

Problem problem_of_extra_keys(const Problem& problem) {
  // Any number that the other draws do not have.
  constexpr std::uint64_t kOtherSeed = 0x5EC0'7D0C'AC4EULL;
  Problem extra = problem;
  const MlaSpec& mla = problem.mla;
  const int num_keys = mla.sparse_extra_keys.value_or(0);
  for (Request& request : extra.batch) request = {0, num_keys};
  extra.inputs.seed ^= kOtherSeed;
  extra.cascade = {};
  KvCacheSpec& cache = extra.kv_cache;
  cache.block_size = mla.sparse_extra_block_size.value_or(problem.kv_cache.block_size);
  cache.manager_block_size.reset();
  constexpr std::int64_t kSpareBlocks = 2;  // of poison
  cache.num_blocks = problem.num_requests() * ceil_div(num_keys, cache.block_size) + kSpareBlocks;
  extra.mla.sparse_topk = mla.sparse_extra_topk;
  return extra;
}

std::int64_t topk_length_of(const std::vector<int>& lengths, std::size_t b, std::int64_t topk) {
  if (lengths.empty()) return topk;
  return std::min<std::int64_t>(topk, lengths.size() == 1 ? lengths.front() : lengths.at(b));
}

SparseLists lists_of_lengths(const Problem& problem, Tensor indices,
                             const std::vector<int>& lengths) {
  SparseLists lists;
  if (lengths.empty()) {
    lists.indices = std::move(indices);
    return lists;
  }
  lists.listed = indices;
  const std::int64_t topk = indices.dim(1);
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const std::int64_t length = topk_length_of(lengths, b, topk);
    for (std::int64_t i = 0; i < problem.batch[b].query_len; ++i) {
      const auto token = static_cast<std::int64_t>(lists.lengths.size());
      std::int32_t* const row = indices.data<std::int32_t>() + token * topk;
      std::fill(row + length, row + topk, -1);
      lists.lengths.push_back(static_cast<std::int32_t>(length));
    }
  }
  lists.indices = std::move(indices);
  return lists;
}

SparseLists slice_lists(const SparseLists& lists, std::int64_t first, std::int64_t count) {
  SparseLists own;
  if (!lists.indices.empty()) own.indices = slice_rows(lists.indices, first, count);
  if (!lists.listed.empty()) own.listed = slice_rows(lists.listed, first, count);
  if (!lists.lengths.empty()) {
    const auto begin = lists.lengths.begin() + first;
    own.lengths.assign(begin, begin + count);
  }
  return own;
}

JoinedKeys join_extra_keys(const MlaInputs& inputs, const LatentRows& own,
                           const LatentRows& extra) {
  const auto requests = static_cast<std::int64_t>(inputs.seq_lens.size());
  const std::int64_t num_extra = requests == 0 ? 0 : extra.kv_c.dim(0) / requests;
  JoinedKeys joined;
  joined.kv_c = join_rows(inputs, own.kv_c, extra.kv_c, num_extra);
  joined.k_pe = join_rows(inputs, own.k_pe, extra.k_pe, num_extra);
  joined.topk_indices = join_lists(inputs);
  joined.key_start_loc = {0};
  for (const std::int32_t len : inputs.seq_lens) {
    joined.seq_lens.push_back(len + static_cast<std::int32_t>(num_extra));
    joined.key_start_loc.push_back(joined.key_start_loc.back() + joined.seq_lens.back());
  }
  return joined;
}

}  // namespace attnbench
