// A key has one place, by its request, position and the block table; context and new keys differ
// only in who writes them.
#include "bench/cases/op_index_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "inputs/cache/cache_cells.h"
#include "inputs/cache/poison.h"
#include "inputs/index_inputs.h"
#include "inputs/make_inputs.h"
#include "inputs/random.h"
#include "kernels/params_indexer.h"
#include "metadata/batch.h"
#include "reference/mla/indexer.h"

namespace attnbench {
namespace {

std::int64_t slot_of(const Problem& problem, const Tensor& table, std::size_t b, std::int64_t p) {
  const std::int64_t block_size = problem.kv_cache.block_size;
  const std::int64_t column = static_cast<std::int64_t>(b) * table.dim(1) + p / block_size;
  return table.data<std::int32_t>()[column] * block_size + p % block_size;
}

/// Stores the keys of those positions that `chosen` accepts.
template <typename Chosen>
void store_keys(const Problem& problem, const Tensor& keys, const Tensor& table,
                const Chosen& chosen, Tensor& cache) {
  std::int64_t row = 0;
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    for (std::int64_t p = 0; p < problem.batch[b].seq_len; ++p, ++row) {
      if (!chosen(problem.batch[b], p)) continue;
      store_index_key(keys, row, problem.mla.index_ue8m0, problem.kv_cache.block_size,
                      slot_of(problem, table, b, p), cache);
    }
  }
}

Tensor poisoned_cache(const Problem& problem) {
  return poisoned_tensor(Dtype::kU8,
                         {physical_blocks(problem),
                          std::int64_t{problem.kv_cache.block_size} * attn::kIndexEntryBytes});
}

bool is_context(const Request& request, std::int64_t position) {
  return position < request.seq_len - request.query_len;
}

void add_batch(const Problem& problem, OpInputs& inputs) {
  inputs.add("block_table", make_block_table(problem, new_key_ranges(problem)));
  inputs.add("query_start_loc", Tensor::from_i32(query_start_loc_of(problem)));
  inputs.add("seq_lens", Tensor::from_i32(seq_lens_of(problem)));
}

}  // namespace

void make_index_key_cache(const Problem& problem, OpInputs& inputs) {
  const IndexInputs index = make_drawn_index_inputs(problem);
  const Tensor table = make_block_table(problem, new_key_ranges(problem));
  const auto padding = static_cast<std::int64_t>(kPaddingSlots.size());
  Tensor rows =
      poisoned_tensor(problem.attention.dtype, {problem.num_tokens() + padding, attn::kIndexKey});
  const std::size_t bytes = attn::kIndexKey * dtype_size(problem.attention.dtype);
  std::vector<std::int64_t> slots;
  std::int64_t first = 0;
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const Request& request = problem.batch[b];
    for (std::int64_t p = request.seq_len - request.query_len; p < request.seq_len; ++p) {
      if (!problem.inputs.shapes_only) {
        std::memcpy(rows.bytes() + slots.size() * bytes,
                    index.keys.bytes() + static_cast<std::size_t>(first + p) * bytes, bytes);
      }
      slots.push_back(slot_of(problem, table, b, p));
    }
    first += request.seq_len;
  }
  // Why not poison (§18.1): written to an unused slot, which holds poison, it would not show.
  for (std::size_t i = 0; !slots.empty() && i + 1 < kPaddingSlots.size(); ++i) {
    std::memcpy(rows.bytes() + (slots.size() + i) * bytes, rows.bytes(), bytes);
  }
  slots.insert(slots.end(), kPaddingSlots.begin(), kPaddingSlots.end());
  Tensor cache = poisoned_cache(problem);
  if (!problem.inputs.shapes_only) store_keys(problem, index.keys, table, is_context, cache);
  inputs.add("new_index_key", std::move(rows));
  inputs.add("slot_mapping", Tensor::from_i64(slots));
  inputs.add("index_cache_before", std::move(cache));
}

void make_index_logits(const Problem& problem, OpInputs& inputs) {
  IndexInputs index = make_drawn_index_inputs(problem);
  add_batch(problem, inputs);
  Tensor cache = poisoned_cache(problem);
  if (!problem.inputs.shapes_only) {
    store_keys(
        problem, index.keys, inputs.at("block_table"),
        [](const Request&, std::int64_t) { return true; }, cache);
  }
  inputs.add("index_query", std::move(index.query));
  inputs.add("index_weights", std::move(index.weights));
  inputs.add("index_cache", std::move(cache));
}

void make_index_topk(const Problem& problem, OpInputs& inputs) {
  add_batch(problem, inputs);
  const std::int64_t columns = std::max<std::int64_t>(1, problem.max_seq_len());
  Tensor logits(Dtype::kF32, {problem.num_tokens(), columns});
  std::vector<float> drawn(static_cast<std::size_t>(columns));
  std::int64_t t = 0;
  for (const Request& request : problem.batch) {
    for (std::int64_t i = 0; i < request.query_len; ++i, ++t) {
      const std::int64_t seen = request.seq_len - request.query_len + i + 1;
      if (!problem.inputs.shapes_only) {
        draw({problem.inputs.seed, StreamId::kOpLse}, Distribution::kNormal, 1.0,
             static_cast<std::uint64_t>(t * columns), drawn);
      }
      float* row = logits.data<float>() + t * columns;
      for (std::int64_t j = 0; j < columns; ++j) {
        // Quarters of a deviation: a few dozen different logits.
        row[j] = j < seen ? std::round(drawn[static_cast<std::size_t>(j)] * 4) / 4
                          : std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
  inputs.add("logits", std::move(logits));
}

}  // namespace attnbench
