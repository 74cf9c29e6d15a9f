// Strides are those of tensors in one piece: an engine has them so as well.
#include "backends/op/index_steps.h"

#include <algorithm>

#include "inputs/cache/poison.h"
#include "kernels/params_indexer.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

using attn::i64;

/// Keys that the last token of each request sees, over all, and those that any token sees.
struct SeenKeys {
  double of_requests = 0;
  double of_tokens = 0;
};
SeenKeys seen_keys(const Problem& problem) {
  SeenKeys seen;
  for (const Request& request : problem.batch) {
    if (request.query_len == 0) continue;
    const auto last = static_cast<double>(request.seq_len);
    const auto rows = static_cast<double>(request.query_len);
    seen.of_requests += last;
    seen.of_tokens += rows * last - rows * (rows - 1) / 2;
  }
  return seen;
}

}  // namespace

void queue_index_key_cache(OpPipeline& op) {
  const Problem& problem = op.problem();
  const Tensor& keys = op.inputs().at("new_index_key");
  attn::IndexCacheWriteParams write{};
  write.source_element = element_of(keys.dtype());
  write.key = op.operand("new_index_key");
  write.key_token_stride = keys.dim(1);
  write.slot_mapping = op.operand_of<i64>("slot_mapping");
  const Tensor& before = op.inputs().at("index_cache_before");
  write.cache = static_cast<unsigned char*>(op.output("index_cache", before));
  write.block_stride = before.dim(1);
  write.num_slots = keys.dim(0);
  write.block_size = problem.kv_cache.block_size;
  write.ue8m0 = problem.mla.index_ue8m0 ? 1 : 0;
  op.add_step([&op, write] { op.ops().write_index_cache(write); });
}

void queue_index_logits(OpPipeline& op) {
  const Problem& problem = op.problem();
  const Tensor& query = op.inputs().at("index_query");
  const Tensor& table = op.inputs().at("block_table");
  attn::IndexLogitsParams p{};
  p.query = op.operand_of<unsigned char>("index_query");
  p.query_token_stride = query.dim(1) * query.dim(2);
  p.query_head_stride = query.dim(2);
  p.weights = op.operand_of<float>("index_weights");
  p.weights_token_stride = query.dim(1);
  p.cache = op.operand_of<unsigned char>("index_cache");
  p.block_stride = op.inputs().at("index_cache").dim(1);
  p.block_size = problem.kv_cache.block_size;
  p.block_table = op.operand_of<int>("block_table");
  p.block_table_stride = table.dim(1);
  p.query_start_loc = op.operand_of<int>("query_start_loc");
  p.seq_lens = op.operand_of<int>("seq_lens");
  p.num_requests = checked_int32(problem.num_requests(), "requests");
  p.num_heads = checked_int32(query.dim(1), "index heads");
  p.num_tokens = query.dim(0);
  p.num_columns = p.logits_stride = std::max<std::int64_t>(1, problem.max_seq_len());
  p.logits = static_cast<float*>(
      op.output("logits", poisoned_tensor(Dtype::kF32, {p.num_tokens, p.num_columns})));
  op.add_step([&op, p] { op.ops().index_logits(p); });
}

void queue_index_topk(OpPipeline& op) {
  const Problem& problem = op.problem();
  const Tensor& logits = op.inputs().at("logits");
  attn::IndexTopkParams p{};
  p.logits = op.operand_of<float>("logits");
  p.logits_stride = logits.dim(1);
  p.query_start_loc = op.operand_of<int>("query_start_loc");
  p.seq_lens = op.operand_of<int>("seq_lens");
  p.num_requests = checked_int32(problem.num_requests(), "requests");
  p.num_tokens = logits.dim(0);
  p.topk = *problem.mla.sparse_topk;
  p.block_table = op.operand_of<int>("block_table");
  p.block_table_stride = op.inputs().at("block_table").dim(1);
  p.block_size = problem.kv_cache.block_size;
  p.slots = static_cast<int*>(
      op.output("topk_slots", poisoned_tensor(Dtype::kI32, {p.num_tokens, p.topk})));
  op.add_step([&op, p] { op.ops().index_topk(p); });
}

double index_traffic(const Problem& problem) {
  const auto tokens = static_cast<double>(problem.num_tokens());
  const auto source = static_cast<double>(dtype_size(problem.attention.dtype));
  constexpr double kFloat = sizeof(float);
  const SeenKeys seen = seen_keys(problem);
  switch (*problem.op.name) {
    case OpKind::kIndexKeyCache:
      return tokens * (attn::kIndexKey * source + attn::kIndexEntryBytes + sizeof(std::int64_t));
    case OpKind::kIndexLogits:
      return tokens * problem.mla.index_n_heads * (attn::kIndexKey + kFloat) +
             seen.of_requests * attn::kIndexEntryBytes + seen.of_tokens * kFloat;
    default:
      return seen.of_tokens * kFloat + tokens * problem.mla.sparse_topk.value_or(0) * kFloat;
  }
}

}  // namespace attnbench
