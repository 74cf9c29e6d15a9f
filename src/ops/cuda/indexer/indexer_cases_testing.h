// Small cases of the sparse indexer's operations: keys of three types into pages, logits through
// a block table with requests of several lengths, and choices with many equal logits.
#pragma once

#include "ops/cuda/testing/operation_cases_testing.h"

namespace attnbench::cuda {

constexpr int kIndexBlockSize = 16;
constexpr int kIndexBlocks = 24;
constexpr attn::i64 kIndexBlockBytes = attn::i64{kIndexBlockSize} * attn::kIndexEntryBytes;

/// A batch of four requests, one without tokens.
struct IndexBatch {
  std::vector<int> query_start_loc{0, 3, 3, 4, 21};
  std::vector<int> seq_lens{70, 5, 33, 17};
  std::vector<int> table{5, 1, 8, 2, 3, 11, -1, -1, -1, -1, 7, 0, 13, -1, -1, 9, 4, -1, -1, -1};
  static constexpr int kColumns = 5;
  int num_requests() const { return static_cast<int>(seq_lens.size()); }
  int num_tokens() const { return query_start_loc.back(); }
};

inline std::vector<Tensor> run_index_cache(Ops& ops, Dtype source, bool ue8m0, int padding) {
  constexpr int kKeys = 41;
  CaseMemory memory(ops);
  std::vector<attn::i64> slots;
  for (int i = 0; i < kKeys; ++i) {
    slots.push_back(i % 7 == 4 ? -1 : kIndexBlocks * kIndexBlockSize - 1 - 3 * i);
  }
  attn::IndexCacheWriteParams p{};
  p.source_element = element_of(source);
  p.key = memory.upload(drawn(source, {kKeys + 1, attn::kIndexKey + padding}, 71, false));
  p.key_token_stride = attn::kIndexKey + padding;
  p.cache = static_cast<unsigned char*>(
      memory.result(poisoned(Dtype::kU8, {kIndexBlocks, kIndexBlockBytes})));
  p.block_stride = kIndexBlockBytes;
  p.slot_mapping = memory.upload(slots);
  p.num_slots = kKeys;
  p.block_size = kIndexBlockSize;
  p.ue8m0 = ue8m0 ? 1 : 0;
  ops.write_index_cache(p);
  return memory.results();
}

/// Codes without NaN, scales between 1/8 and 2.
inline Tensor drawn_index_cache() {
  Tensor cache(Dtype::kU8, {kIndexBlocks, kIndexBlockBytes});
  std::mt19937 random(72);
  for (std::int64_t b = 0; b < kIndexBlocks; ++b) {
    unsigned char* block = cache.data<unsigned char>() + b * kIndexBlockBytes;
    for (int i = 0; i < kIndexBlockSize * attn::kIndexKey; ++i) {
      block[i] = static_cast<unsigned char>((random() % 2 == 0 ? 0x80 : 0) | random() % 0x50);
    }
    for (int i = 0; i < kIndexBlockSize; ++i) {
      const float scale = 0.125f * static_cast<float>(1 + random() % 16);
      std::memcpy(block + attn::index_scale_at(kIndexBlockSize, i), &scale, sizeof scale);
    }
  }
  return cache;
}

/// Eighths from -2 to 2: sums of them lose nothing that a wrong element would hide in.
inline Tensor drawn_eighths(Dtype dtype, std::vector<std::int64_t> shape, unsigned seed) {
  Tensor tensor(dtype, std::move(shape));
  std::mt19937 random(seed);
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    tensor.set(i, 0.125f * (static_cast<float>(random() % 33) - 16.0f));
  }
  return tensor;
}

inline std::vector<Tensor> run_index_logits(Ops& ops, int num_heads) {
  const IndexBatch batch;
  CaseMemory memory(ops);
  attn::IndexLogitsParams p{};
  const attn::i64 tokens = batch.num_tokens();
  p.query = static_cast<const unsigned char*>(
      memory.upload(drawn_eighths(Dtype::kE4M3, {tokens, num_heads, attn::kIndexKey}, 73)));
  p.query_token_stride = attn::i64{num_heads} * attn::kIndexKey;
  p.query_head_stride = attn::kIndexKey;
  p.weights =
      static_cast<const float*>(memory.upload(drawn_eighths(Dtype::kF32, {tokens, num_heads}, 74)));
  p.weights_token_stride = num_heads;
  p.cache = static_cast<const unsigned char*>(memory.upload(drawn_index_cache()));
  p.block_stride = kIndexBlockBytes;
  p.block_size = kIndexBlockSize;
  p.block_table = memory.upload(batch.table);
  p.block_table_stride = IndexBatch::kColumns;
  p.query_start_loc = memory.upload(batch.query_start_loc);
  p.seq_lens = memory.upload(batch.seq_lens);
  p.num_requests = batch.num_requests();
  p.num_heads = num_heads;
  p.num_tokens = tokens;
  p.num_columns = 70;
  p.logits_stride = 75;
  p.logits =
      static_cast<float*>(memory.result(poisoned(Dtype::kF32, {tokens + 1, p.logits_stride})));
  ops.index_logits(p);
  return memory.results();
}

/// Logits of a few different values, -0 and infinities among them; behind what a token sees NaN.
inline std::vector<Tensor> run_index_topk(Ops& ops, int topk, bool in_workspace) {
  const IndexBatch batch;
  CaseMemory memory(ops);
  const attn::i64 tokens = batch.num_tokens();
  constexpr attn::i64 kStride = 72;
  Tensor logits = poisoned(Dtype::kF32, {tokens, kStride});
  std::mt19937 random(75);
  for (int b = 0; b < batch.num_requests(); ++b) {
    const auto r = static_cast<std::size_t>(b);
    for (int t = batch.query_start_loc[r]; t < batch.query_start_loc[r + 1]; ++t) {
      const int seen = batch.seq_lens[r] - (batch.query_start_loc[r + 1] - t) + 1;
      for (int j = 0; j < seen; ++j) {
        const auto kind = random() % 19;
        float value = 0.25f * (static_cast<float>(random() % 17) - 8.0f);
        if (kind == 0) value = -0.0f;
        if (kind == 1) value = -std::numeric_limits<float>::infinity();
        if (kind == 2) value = std::numeric_limits<float>::infinity();
        logits.set(t * kStride + j, value);
      }
    }
  }
  attn::IndexTopkParams p{};
  p.logits = static_cast<const float*>(memory.upload(logits));
  p.logits_stride = kStride;
  p.query_start_loc = memory.upload(batch.query_start_loc);
  p.seq_lens = memory.upload(batch.seq_lens);
  p.num_requests = batch.num_requests();
  p.num_tokens = tokens;
  p.topk = topk;
  p.block_table = memory.upload(batch.table);
  p.block_table_stride = IndexBatch::kColumns;
  p.block_size = kIndexBlockSize;
  if (in_workspace) p.workspace_starts = memory.upload(std::vector<int>{-1, -1, 0, 33});
  p.indices = static_cast<int*>(memory.result(poisoned(Dtype::kI32, {tokens + 1, topk})));
  p.slots = static_cast<int*>(memory.result(poisoned(Dtype::kI32, {tokens + 1, topk})));
  ops.index_topk(p);
  return memory.results();
}

inline void add_indexer_cases(std::vector<OperationCase>& cases) {
  using enum Dtype;
  for (const Dtype source : {kBF16, kF16, kF32}) {
    for (const bool ue8m0 : {false, true}) {
      const int padding = source == kF16 ? 1 : 0;
      cases.push_back({"write_index_cache " + std::string(dtype_name(source)) +
                           (ue8m0 ? " ue8m0" : "") + (padding > 0 ? " padded" : ""),
                       0, [=](Ops& o) { return run_index_cache(o, source, ue8m0, padding); }});
    }
  }
  for (const int heads : {1, 16, 37}) {
    cases.push_back({"index_logits of " + std::to_string(heads), 1e-5,
                     [=](Ops& o) { return run_index_logits(o, heads); }, 1e-2});
  }
  for (const int topk : {1, 12, 128}) {
    cases.push_back({"index_topk " + std::to_string(topk), 0,
                     [=](Ops& o) { return run_index_topk(o, topk, false); }});
  }
  cases.push_back(
      {"index_topk in a workspace", 0, [](Ops& o) { return run_index_topk(o, 20, true); }});
}

}  // namespace attnbench::cuda
