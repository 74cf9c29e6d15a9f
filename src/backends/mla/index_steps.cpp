// Lists are compared as sets: what is chosen is exact in these cases (inputs/index_inputs.h), the
// order is the kernel's.
#include "backends/mla/index_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backends/mla/sparse.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/cache/poison.h"
#include "inputs/make_inputs.h"
#include "kernels/params_indexer.h"
#include "metadata/int_math.h"
#include "reference/mla/cache_entry.h"

namespace attnbench {

using attn::i64;

namespace {

i64 block_bytes(const Problem& problem) {
  return i64{problem.kv_cache.block_size} * attn::kIndexEntryBytes;
}

}  // namespace

/// Keys of all positions before the new ones, in the pages of their requests.
Tensor MlaIndexer::context_cache() const {
  const Problem& problem = work_.problem;
  const Tensor& keys = work_.inputs.index.keys;
  const Tensor& table = work_.cache_before.block_table;
  const i64 block_size = problem.kv_cache.block_size;
  Tensor cache =
      poisoned_tensor(Dtype::kU8, {work_.cache_before.data.dim(0), block_bytes(problem)});
  if (problem.inputs.shapes_only) return cache;
  const std::vector<PositionRange> fresh = new_key_ranges(problem);
  std::array<float, kIndexKeySize> values{};
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    for (i64 p = 0; p < problem.batch[b].seq_len; ++p) {
      if (p >= fresh[b].begin && p < fresh[b].end) continue;
      const i64 row = work_.inputs.key_start_loc[b] + p;
      for (std::size_t d = 0; d < values.size(); ++d) {
        values[d] = keys.at(row * kIndexKeySize + static_cast<i64>(d));
      }
      const IndexKey key = quantise_index_key(values, problem.mla.index_ue8m0);
      const i64 column = static_cast<i64>(b) * table.dim(1) + p / block_size;
      std::byte* block = cache.bytes() + table.data<std::int32_t>()[column] * block_bytes(problem);
      std::memcpy(block + attn::index_codes_at(p % block_size), key.codes.data(), key.codes.size());
      std::memcpy(block + attn::index_scale_at(problem.kv_cache.block_size, p % block_size),
                  &key.scale, sizeof key.scale);
    }
  }
  return cache;
}

void MlaIndexer::add_write() {
  const Problem& problem = work_.problem;
  const Tensor& keys = work_.inputs.index.keys;
  const i64 num_slots = work_.cache_before.new_kv_c.dim(0);
  Tensor rows = poisoned_tensor(keys.dtype(), {num_slots, kIndexKeySize});
  const std::size_t bytes = kIndexKeySize * dtype_size(keys.dtype());
  std::byte* next = rows.bytes();
  const std::vector<PositionRange> fresh = new_key_ranges(problem);
  for (std::size_t b = 0; b < fresh.size() && !problem.inputs.shapes_only; ++b) {
    for (i64 p = fresh[b].begin; p < fresh[b].end; ++p, next += bytes) {
      const auto row = static_cast<std::size_t>(work_.inputs.key_start_loc[b] + p);
      std::memcpy(next, keys.bytes() + row * bytes, bytes);
    }
  }
  cache_ = const_cast<unsigned char*>(
      static_cast<const unsigned char*>(work_.memory.upload(context_cache(), "index cache")));
  attn::IndexCacheWriteParams write{};
  write.source_element = element_of(keys.dtype());
  write.key = work_.memory.upload(rows, "new index keys");
  write.key_token_stride = kIndexKeySize;
  write.cache = cache_;
  write.block_stride = block_bytes(problem);
  write.slot_mapping = work_.ranks.front().slot_mapping;
  write.num_slots = num_slots;
  write.block_size = problem.kv_cache.block_size;
  write.ue8m0 = problem.mla.index_ue8m0 ? 1 : 0;
  work_.add_each(
      "write_index_cache", false, &Ops::write_index_cache, std::vector{write},
      static_cast<double>(num_slots) * (static_cast<double>(bytes) + attn::kIndexEntryBytes));
}

void MlaIndexer::add_logits() {
  const IndexInputs& index = work_.inputs.index;
  const i64 heads = work_.problem.mla.index_n_heads;
  attn::IndexLogitsParams p{};
  p.query = static_cast<const unsigned char*>(work_.memory.upload(index.query, "index query"));
  p.query_token_stride = heads * kIndexKeySize;
  p.query_head_stride = kIndexKeySize;
  p.weights = work_.memory.upload_of<float>(index.weights, "index weights");
  p.weights_token_stride = heads;
  p.cache = cache_;
  p.block_stride = block_bytes(work_.problem);
  p.block_size = work_.problem.kv_cache.block_size;
  p.block_table = work_.block_table;
  p.block_table_stride = work_.block_table_columns();
  p.query_start_loc = query_start_loc_;
  p.seq_lens = seq_lens_;
  p.num_requests = checked_int32(work_.problem.num_requests(), "requests");
  p.num_heads = checked_int32(heads, "index heads");
  p.num_tokens = work_.num_tokens;
  p.num_columns = p.logits_stride = std::max<i64>(1, work_.problem.max_seq_len());
  p.logits = logits_ = work_.memory.workspace_of<float>(
      std::max<i64>(1, p.num_tokens) * p.num_columns, "index logits");
  double pairs = 0;
  for (const Request& request : work_.problem.batch) {
    pairs +=
        static_cast<double>(request.query_len) *
        (static_cast<double>(request.seq_len) - (static_cast<double>(request.query_len) - 1) / 2);
  }
  work_.add_each("index_logits", false, &Ops::index_logits, std::vector{p}, 0,
                 pairs * static_cast<double>(heads) * 2 * kIndexKeySize);
}

const int* MlaIndexer::add_steps(const std::vector<std::int32_t>& workspace_starts) {
  query_start_loc_ = work_.memory.upload(work_.inputs.query_start_loc, "index query_start_loc");
  seq_lens_ = work_.memory.upload(work_.inputs.seq_lens, "index seq_lens");
  add_write();
  add_logits();
  const i64 topk = *work_.problem.mla.sparse_topk;
  slots_ = static_cast<int*>(work_.memory.workspace(
      std::max<i64>(1, work_.num_tokens) * topk * i64{sizeof(int)}, "chosen slots"));
  attn::IndexTopkParams p{};
  p.logits = logits_;
  p.logits_stride = std::max<i64>(1, work_.problem.max_seq_len());
  p.query_start_loc = query_start_loc_;
  p.seq_lens = seq_lens_;
  p.num_requests = checked_int32(work_.problem.num_requests(), "requests");
  p.num_tokens = work_.num_tokens;
  p.topk = checked_int32(topk, "sparse_topk");
  p.block_table = work_.block_table;
  p.block_table_stride = work_.block_table_columns();
  p.block_size = work_.problem.kv_cache.block_size;
  p.workspace_starts = work_.memory.upload(workspace_starts, "index workspace starts");
  p.slots = slots_;
  work_.add_each("index_topk", false, &Ops::index_topk, std::vector{p});
  return slots_;
}

std::string MlaIndexer::wrong_choice(const std::vector<std::int32_t>& workspace_starts) {
  const i64 topk = *work_.problem.mla.sparse_topk;
  const Tensor found = work_.memory.read(slots_, Dtype::kI32, {work_.num_tokens, topk});
  std::vector<std::int32_t> expected = mla_sparse_slots(work_, workspace_starts);
  std::vector<std::int32_t> row(static_cast<std::size_t>(topk));
  for (i64 t = 0; t < work_.num_tokens; ++t) {
    std::copy_n(found.data<std::int32_t>() + t * topk, topk, row.begin());
    const auto begin = expected.begin() + t * topk;
    std::sort(row.begin(), row.end());
    std::sort(begin, begin + topk);
    if (std::equal(row.begin(), row.end(), begin)) continue;
    const auto [here, there] = std::mismatch(row.begin(), row.end(), begin);
    return fmt::format(
        "token {}: the indexer chose slot {} where slot {} has the larger logit, or comes first", t,
        *here, *there);
  }
  return "";
}

}  // namespace attnbench
