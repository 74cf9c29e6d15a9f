// Parameters are made from the problem and the layout of the case's cache, never from another
// pipeline's: an error that both share would otherwise show in neither.
#include "backends/op/cache_steps.h"

#include <algorithm>

#include "backends/kernel_params.h"
#include "inputs/cache/poison.h"
#include "metadata/kv_layout.h"

namespace attnbench {
namespace {

/// The cache as an output that keeps what it holds, and a write into the part of one rank.
class CacheWriter {
 public:
  explicit CacheWriter(OpPipeline& op)
      : op_(op), cache_(op.inputs().cache), ranks_(op.problem().dcp.world_size) {}

  /// The writes of all ranks; `memory` is the cache on the device.
  std::vector<attn::CacheWriteParams> writes(char* memory) {
    const Problem& problem = op_.problem();
    const auto* slots = op_.operand_of<attn::i64>("slot_mapping");
    const std::int64_t num_slots = cache_.slot_mapping.num_elements() / ranks_;
    std::vector<attn::CacheWriteParams> result;
    attn::CacheWriteParams first = layout_params();
    add_scales(problem, first);
    for (int rank = 0; rank < ranks_; ++rank) {
      attn::CacheWriteParams write = first;
      char* data = memory + std::int64_t{rank} * rank_bytes();
      place(data, write);
      write.slot_mapping = slots + rank * num_slots;
      write.num_slots = num_slots;
      result.push_back(write);
    }
    return result;
  }

 private:
  std::int64_t rank_bytes() const {
    return static_cast<std::int64_t>(cache_.data.size_bytes()) / ranks_;
  }

  attn::CacheWriteParams layout_params() const {
    const AttentionSpec& a = op_.problem().attention;
    attn::CacheWriteParams write{};
    write.source_element = element_of(a.dtype);
    write.cache_element = element_of(cache_.data.dtype());
    write.block_stride = cache_.layout.block_stride;
    write.slot_stride = cache_.layout.slot_stride;
    write.head_stride = cache_.layout.head_stride;
    write.block_size = op_.problem().kv_cache.block_size;
    write.num_kv_heads = a.num_kv_heads;
    write.head_size = a.head_size;
    write.v_head_size = a.v_head_size;
    return write;
  }

  void add_scales(const Problem& problem, attn::CacheWriteParams& write) {
    const KvCacheSpec& cache = problem.kv_cache;
    const int heads = problem.attention.num_kv_heads;
    write.quantise = cache_write_mode(cache.dtype);
    write.int8_truncate = cache.pth_int8_round == PthInt8Round::kTrunc ? 1 : 0;
    const std::vector<float> centroids = cache_centroids(cache.dtype, problem.attention.head_size);
    write.coding = kv_coding_of(cache.dtype);
    if (!centroids.empty()) write.centroids = op_.scale_operand("centroids", centroids);
    if (!reads_tensor_scales(cache.dtype)) return;
    write.k_scale = op_.scale_operand("k_scale", scale_of_heads(cache.k_scale, heads));
    write.v_scale = op_.scale_operand("v_scale", scale_of_heads(cache.v_scale, heads));
  }

  /// Pointers into the cache that begins at `data`.
  void place(char* data, attn::CacheWriteParams& write) const {
    const auto size = static_cast<std::int64_t>(dtype_size(cache_.data.dtype()));
    write.key_cache = data + cache_.layout.key_offset * size;
    write.value_cache = data + cache_.layout.value_offset * size;
    place_inner_scales(cache_.layout, data, write);
  }

  OpPipeline& op_;
  const PagedCache& cache_;
  int ranks_;
};

/// Codes and key scales as an int8 level has them (§11.6).
void queue_int8_write(OpPipeline& op) {
  const PagedCache& cache = op.inputs().cache;
  const Tensor& key = op.inputs().at("new_key_codes");
  auto* data = static_cast<char*>(op.output("kv_cache", cache.data));
  attn::Int8CacheWriteParams write{};
  write.key = op.operand_of<signed char>("new_key_codes");
  write.value = op.operand("new_value_codes");
  write.value_element = element_of(op.inputs().at("new_value_codes").dtype());
  write.key_token_stride = write.value_token_stride = key.dim(1) * key.dim(2);
  write.key_head_stride = write.value_head_stride = key.dim(2);
  write.key_scale = op.operand_of<float>("new_key_scales");
  write.key_scale_token_stride = key.dim(1);
  write.key_scale_head_stride = 1;
  write.key_cache = reinterpret_cast<signed char*>(data) + cache.layout.key_offset;
  write.value_cache = data + cache.layout.value_offset;
  write.block_stride = cache.layout.block_stride;
  write.slot_stride = cache.layout.slot_stride;
  write.head_stride = cache.layout.head_stride;
  write.key_scale_cache = static_cast<float*>(op.output("key_scale_cache", cache.key_scale_cache));
  write.scale_block_stride = cache.key_scale_cache.dim(1) * cache.key_scale_cache.dim(2);
  write.scale_head_stride = cache.key_scale_cache.dim(2);
  write.scale_slot_stride = 1;
  write.num_tokens = key.dim(0);
  write.block_size = op.problem().kv_cache.block_size;
  write.num_kv_heads = static_cast<int>(key.dim(1));
  write.head_size = static_cast<int>(key.dim(2));
  write.slot_mapping = op.operand_of<attn::i64>("slot_mapping");
  op.add_step([&op, write] { op.ops().write_cache_int8(write); });
}

const float* upload_k_scale(OpPipeline& op) {
  return op.scale_operand("k_scale", {static_cast<float>(op.problem().kv_cache.k_scale.at(0))});
}

/// Everything but kv_c and k_pe.
attn::MlaCacheWriteParams mla_write(OpPipeline& op, void* memory) {
  const Problem& problem = op.problem();
  const Tensor& data = op.inputs().mla_cache.data;
  attn::MlaCacheWriteParams write{};
  write.format = mla_entry_of(problem.kv_cache.dtype);
  write.source_element = element_of(problem.attention.dtype);
  write.cache = memory;
  write.slot_stride = data.dim(2) - footer_bytes(problem.kv_cache.dtype);
  write.block_stride = data.dim(1) * data.dim(2);
  write.slot_mapping = op.operand_of<attn::i64>("slot_mapping");
  write.num_slots = op.inputs().at("slot_mapping").num_elements();
  write.block_size = problem.kv_cache.block_size;
  write.kv_lora_rank = problem.mla.kv_lora_rank;
  write.rope_head_dim = problem.mla.qk_rope_head_dim;
  write.kv_c_token_stride = write.kv_lora_rank;
  write.k_pe_token_stride = write.rope_head_dim;
  write.k_scale = upload_k_scale(op);
  return write;
}

/// Everything but the rows.
attn::RopeParams rope_params(OpPipeline& op) {
  const Problem& problem = op.problem();
  const Tensor& positions = op.inputs().at("positions");
  attn::RopeParams rope{};
  rope.element = element_of(problem.attention.dtype);
  rope.cache_element = element_of(op.inputs().at("cos_sin_cache").dtype());
  rope.positions = op.operand_of<attn::i64>("positions");
  rope.cos_sin_cache = op.operand("cos_sin_cache");
  rope.num_tokens = positions.num_elements();
  rope.num_heads = problem.attention.num_heads;
  rope.num_kv_heads = problem.attention.num_kv_heads;
  rope.rotary_dim = *problem.op.rotary_dim;
  rope.is_neox = problem.op.rope_style == RopePairs::kNeox ? 1 : 0;
  return rope;
}

/// The rotation works in place: what it works on is an output, filled again before every rotation.
void* queue_restore(OpPipeline& op, const std::string& name, const std::string& operand) {
  const Tensor& source = op.inputs().at(operand);
  void* target = op.output(name, poisoned_tensor(source.dtype(), source.shape()));
  attn::CopyParams copy{};
  copy.source_element = copy.output_element = element_of(source.dtype());
  copy.source = op.operand(operand);
  copy.output = target;
  copy.extents[0] = source.dim(0);
  copy.extents[1] = copy.extents[2] = 1;
  copy.width = source.dim(0) == 0 ? 0 : source.num_elements() / source.dim(0);
  copy.source_strides[0] = copy.output_strides[0] = copy.width;
  op.add_step(side_step("copy_" + operand, [&op, copy] { op.ops().copy(copy); }));
  return target;
}

attn::MlaEntries entries_of(OpPipeline& op) {
  const MlaCache& cache = op.inputs().mla_cache;
  attn::MlaEntries entries{};
  entries.element = element_of(cache.data.dtype());
  entries.cache = nullptr;
  entries.slot_stride = cache.data.dim(2) - footer_bytes(op.problem().kv_cache.dtype);
  entries.block_stride = cache.data.dim(1) * cache.data.dim(2);
  entries.block_table = op.operand_of<int>("block_table");
  entries.block_table_stride = cache.block_table.dim(1);
  entries.block_size = op.problem().kv_cache.block_size;
  entries.entry_size = static_cast<int>(cache.data.dim(2));
  return entries;
}

void queue_upconvert(OpPipeline& op, const attn::MlaEntries& entries) {
  const Problem& problem = op.problem();
  const std::int64_t rows = problem.num_tokens();
  const int width = problem.mla.kv_lora_rank + problem.mla.qk_rope_head_dim;
  attn::DsMlaUpconvertParams params{};
  params.entries = entries;
  params.output = op.output("output", poisoned_tensor(Dtype::kBF16, {rows, width}));
  params.output_token_stride = width;
  params.seq_lens = op.operand_of<int>("seq_lens");
  params.workspace_starts = op.operand_of<int>("cu_seq_lens");
  params.num_requests = static_cast<int>(problem.num_requests());
  params.num_rows = rows;
  params.is_model1 = mla_entry_of(problem.kv_cache.dtype) == attn::MlaEntry::kModel1 ? 1 : 0;
  op.add_step([&op, params] { op.ops().upconvert_ds_mla(params); });
}

void queue_raw_gather(OpPipeline& op, const attn::MlaEntries& entries) {
  const Problem& problem = op.problem();
  attn::CpGatherParams params{};
  params.entries = entries;
  params.output = op.output("output", poisoned_tensor(op.inputs().mla_cache.data.dtype(),
                                                      {problem.num_tokens(), entries.entry_size}));
  params.output_token_stride = entries.entry_size;
  params.cu_seq_lens = op.operand_of<int>("cu_seq_lens");
  params.seq_starts = op.operand_of<int>("seq_starts");
  params.num_requests = static_cast<int>(problem.num_requests());
  params.num_tokens = problem.num_tokens();
  op.add_step([&op, params] { op.ops().cp_gather(params); });
}

void queue_dequantising_gather(OpPipeline& op, const attn::MlaEntries& entries) {
  const Problem& problem = op.problem();
  const std::int64_t rows = op.inputs().at("token_to_seq").num_elements();
  attn::MlaGatherParams params{};
  params.entries = entries;
  params.output_element = element_of(problem.attention.dtype);
  params.output =
      op.output("output", poisoned_tensor(problem.attention.dtype, {rows, entries.entry_size}));
  params.output_token_stride = entries.entry_size;
  params.cu_seq_lens = op.operand_of<int>("cu_seq_lens");
  params.token_to_seq = op.operand_of<int>("token_to_seq");
  params.seq_starts = op.operand_of<int>("seq_starts");
  params.num_tokens = rows;
  params.k_scale = upload_k_scale(op);
  op.add_step([&op, params] { op.ops().gather_mla(params); });
}

}  // namespace

std::vector<float> scale_of_heads(const std::vector<double>& scale, int num_kv_heads) {
  std::vector<float> result(scale.begin(), scale.end());
  if (result.size() == 1) result.resize(static_cast<std::size_t>(num_kv_heads), result[0]);
  return result;
}

void queue_cache_write(OpPipeline& op) {
  if (op.problem().kv_cache.int8_level > 0) return queue_int8_write(op);
  auto* memory = static_cast<char*>(op.output("kv_cache", op.inputs().cache.data));
  std::vector<attn::CacheWriteParams> writes = CacheWriter(op).writes(memory);
  const void* key = op.operand("new_key");
  const void* value = op.operand("new_value");
  for (attn::CacheWriteParams& write : writes) {
    write.key = key;
    write.value = value;
    write.key_token_stride = std::int64_t{write.num_kv_heads} * write.head_size;
    write.value_token_stride = std::int64_t{write.num_kv_heads} * write.v_head_size;
  }
  op.add_step([&op, writes] {
    for (const attn::CacheWriteParams& write : writes) op.ops().write_cache(write);
  });
}

void queue_mla_cache_write(OpPipeline& op) {
  attn::MlaCacheWriteParams write =
      mla_write(op, op.output("kv_cache", op.inputs().mla_cache.data));
  write.kv_c = op.operand("new_kv_c");
  write.k_pe = op.operand("new_k_pe");
  op.add_step([&op, write] { op.ops().write_mla_cache(write); });
}

void queue_rope(OpPipeline& op, bool writes) {
  const Tensor& rows = op.inputs().at("projection");
  auto* memory = static_cast<char*>(queue_restore(op, "output", "projection"));
  attn::RopeParams rope = rope_params(op);
  const std::int64_t size = static_cast<std::int64_t>(dtype_size(rows.dtype()));
  const std::int64_t width = rows.dim(2);
  rope.query = memory;
  rope.key = memory + rope.num_heads * width * size;
  rope.query_token_stride = rope.key_token_stride = rows.dim(1) * width;
  rope.query_head_stride = rope.key_head_stride = width;
  if (!writes) return op.add_step([&op, rope] { op.ops().rope(rope); });
  auto* cache = static_cast<char*>(op.output("kv_cache", op.inputs().cache.data));
  attn::CacheWriteParams write = CacheWriter(op).writes(cache).front();
  write.key = rope.key;
  write.value = memory + (rope.num_heads + rope.num_kv_heads) * width * size;
  write.key_token_stride = write.value_token_stride = rope.key_token_stride;
  op.add_step([&op, rope, write] { op.ops().rope_and_write_cache(rope, write); });
}

void queue_mla_rope(OpPipeline& op, bool writes) {
  const Tensor& query = op.inputs().at("query");
  const std::int64_t size = static_cast<std::int64_t>(dtype_size(query.dtype()));
  attn::RopeParams rope = rope_params(op);
  rope.query = static_cast<char*>(queue_restore(op, "output", "query")) +
               op.problem().mla.qk_nope_head_dim * size;
  rope.query_head_stride = query.dim(2);
  rope.query_token_stride = query.dim(1) * query.dim(2);
  rope.key = queue_restore(op, "key_output", "k_pe");
  rope.num_kv_heads = 1;
  rope.key_head_stride = rope.key_token_stride = op.problem().mla.qk_rope_head_dim;
  if (!writes) return op.add_step([&op, rope] { op.ops().rope(rope); });
  attn::MlaCacheWriteParams write =
      mla_write(op, op.output("kv_cache", op.inputs().mla_cache.data));
  write.kv_c = op.operand("new_kv_c");
  write.k_pe = rope.key;
  op.add_step([&op, rope, write] { op.ops().rope_and_write_mla_cache(rope, write); });
}

void queue_gather(OpPipeline& op) {
  attn::MlaEntries entries = entries_of(op);
  entries.cache = op.operand("kv_cache", op.inputs().mla_cache.data);
  const bool packed = is_packed(op.problem().kv_cache.dtype);
  if (op.problem().op.raw) return queue_raw_gather(op, entries);
  packed ? queue_upconvert(op, entries) : queue_dequantising_gather(op, entries);
}

}  // namespace attnbench
