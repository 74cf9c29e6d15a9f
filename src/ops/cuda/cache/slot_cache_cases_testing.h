// Small cases of caches whose keys and values share slots (semantics §5.8): writes, and attention
// over slots of random bytes.
#pragma once

#include "core/numbers/kv_format.h"
#include "kernels/common/slot_codes.cuh"
#include "ops/cuda/testing/operation_cases_testing.h"

namespace attnbench::cuda {

struct SlotCase {
  attn::KvCoding coding;
  Dtype dtype = Dtype::kBF16;  // of sources, queries and outputs
  int head_size = 128;
  bool hnd = false;
  int source_padding = 0;  // elements between the tokens of the source
  bool splits = false;
};

/// Pages [NB, bs, Hk, slot] or [NB, Hk, bs, slot] of two KV heads.
struct SlotPages {
  static constexpr int kHeads = 2;
  static constexpr int kBlocks = 9;
  static constexpr int kBlockSize = 16;

  explicit SlotPages(const SlotCase& c)
      : codes{attn::slot_key_bits(c.coding), attn::slot_value_bits(c.coding)},
        key_bytes(attn::slot_key_bytes(codes.key_bits, c.head_size)),
        slot(attn::slot_bytes(codes.key_bits, codes.value_bits, c.head_size)),
        block_stride(attn::i64{kHeads} * kBlockSize * slot),
        slot_stride(c.hnd ? slot : attn::i64{kHeads} * slot),
        head_stride(c.hnd ? attn::i64{kBlockSize} * slot : slot) {}
  const float* centroids(CaseMemory& memory, int head_size) const {
    const std::vector<float> values = key_centroids(codes, head_size);
    return values.empty() ? nullptr : memory.upload(values);
  }

  SlotCodes codes;
  int key_bytes;
  int slot;
  attn::i64 block_stride, slot_stride, head_stride;
};

inline std::vector<Tensor> run_slot_write(Ops& ops, const SlotCase& c) {
  constexpr int kTokens = 83;
  CaseMemory memory(ops);
  const SlotPages pages(c);
  std::vector<attn::i64> slots;
  for (int t = 0; t < kTokens; ++t) {
    slots.push_back(t % 5 == 3 ? -1 : pages.kBlocks * pages.kBlockSize - 1 - t);
  }
  const attn::i64 row = attn::i64{pages.kHeads} * c.head_size + c.source_padding;
  attn::CacheWriteParams p{};
  p.source_element = element_of(c.dtype);
  p.cache_element = attn::Element::kU8;
  p.key = memory.upload(drawn(c.dtype, {kTokens + 1, row}, 1, false));
  Tensor values = drawn(c.dtype, {kTokens + 1, row}, 2, false);
  // A least value that is a zero: among zeros of both signs it is the negative one.
  for (int d = 0; d < c.head_size; ++d) values.set(d, static_cast<float>(d % 7));
  values.set(c.head_size / 2 / 7 * 7, -0.0f);
  p.value = memory.upload(values);
  p.key_token_stride = p.value_token_stride = row;
  auto* cache = static_cast<unsigned char*>(
      memory.result(poisoned(Dtype::kU8, {pages.kBlocks, pages.block_stride})));
  p.key_cache = cache;
  p.value_cache = cache + pages.key_bytes;
  p.block_stride = pages.block_stride;
  p.slot_stride = pages.slot_stride;
  p.head_stride = pages.head_stride;
  p.slot_mapping = memory.upload(slots);
  p.num_slots = kTokens;
  p.block_size = pages.kBlockSize;
  p.num_kv_heads = pages.kHeads;
  p.head_size = p.v_head_size = c.head_size;
  p.quantise = 5;
  p.coding = c.coding;
  p.centroids = pages.centroids(memory, c.head_size);
  ops.write_cache(p);
  return memory.results();
}

/// Random codes; norms and steps from 1/8 to 1, least values from -1 to -1/8.
inline Tensor drawn_slots(const SlotPages& pages, int head_size) {
  Tensor tensor(Dtype::kU8, {pages.kBlocks, pages.block_stride});
  std::mt19937 random(3);
  auto* bytes = tensor.data<unsigned char>();
  // The exponents of e4m3 below 8, so that no key is NaN.
  for (attn::i64 i = 0; i < tensor.num_elements(); ++i) {
    bytes[i] = static_cast<unsigned char>(random() & 0xBFu);
  }
  const auto number = [&] { return 0.125f * static_cast<float>(1 + random() % 8); };
  const int values = pages.key_bytes + attn::code_bytes(pages.codes.value_bits, head_size);
  for (attn::i64 first = 0; first < tensor.num_elements(); first += pages.slot) {
    unsigned char* const slot = bytes + first;
    if (pages.codes.key_bits < 8) attn::store_f16_bytes(number(), slot + pages.key_bytes - 2);
    attn::store_f16_bytes(number(), slot + values);
    attn::store_f16_bytes(-number(), slot + values + 2);
  }
  return tensor;
}

inline std::vector<Tensor> run_slot_attend(Ops& ops, const SlotCase& c) {
  constexpr int kHeads = 6;
  CaseMemory memory(ops);
  const SlotPages pages(c);
  const std::vector<int> query_lens = c.splits ? std::vector<int>{1, 1} : std::vector<int>{1, 20};
  const attn::i64 tokens = query_lens[0] + query_lens[1];
  const attn::i64 row = attn::i64{kHeads} * c.head_size;
  attn::AttendParams p{};
  p.query_element = p.output_element = element_of(c.dtype);
  p.query = memory.upload(drawn(c.dtype, {tokens, row}, 4, false));
  p.output = memory.result(poisoned(c.dtype, {tokens + 1, row}));
  p.query_token_stride = p.output_token_stride = row;
  p.query_head_stride = p.output_head_stride = c.head_size;
  p.lse = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {kHeads, tokens})));
  p.lse_stride = tokens;
  p.query_start_loc =
      memory.upload(std::vector<int>{0, query_lens[0], query_lens[0] + query_lens[1]});
  p.seq_lens = memory.upload(std::vector<int>{41, 53});
  p.num_requests = 2;
  p.max_query_len = query_lens[1];
  p.num_heads = kHeads;
  p.num_kv_heads = pages.kHeads;
  p.head_size = p.v_head_size = c.head_size;
  // Norms are below 1 where keys are rotated, and columns of e4m3 keys are around 1.
  p.score.softmax_scale = pages.codes.key_bits == 8 ? 0.02f : 1.0f;
  p.score.window_left = -1;
  attn::KvParams& kv = p.kv;
  auto* cache = static_cast<unsigned char*>(memory.upload(drawn_slots(pages, c.head_size)));
  kv.element = attn::Element::kU8;
  kv.coding = c.coding;
  kv.key = cache;
  kv.value = cache + pages.key_bytes;
  kv.block_stride = pages.block_stride;
  kv.token_stride_key = kv.token_stride_value = pages.slot_stride;
  kv.head_stride_key = kv.head_stride_value = pages.head_stride;
  kv.block_table = memory.upload(std::vector<int>{5, 1, 8, -1, 2, 7, 0, 3});
  kv.block_table_stride = 4;
  kv.block_size = pages.kBlockSize;
  kv.centroids = pages.centroids(memory, c.head_size);
  if (!c.splits) {
    ops.attend(p);
    return memory.results();
  }
  constexpr int kSplits = 3;
  const attn::i64 rows = kSplits * tokens * kHeads;
  attn::SplitParams split{};
  split.num_splits = kSplits;
  split.num_tokens = tokens;
  split.partial_output =
      static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows, c.head_size})));
  split.partial_lse = static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows})));
  ops.attend_splits(p, split);
  ops.combine_splits(p, split);
  return memory.results();
}

inline void add_slot_cases(std::vector<OperationCase>& cases) {
  using enum Dtype;
  using enum attn::KvCoding;
  const auto name = [](const SlotCase& c) {
    return " slots k" + std::to_string(attn::slot_key_bits(c.coding)) + "v" +
           std::to_string(attn::slot_value_bits(c.coding)) + " " +
           std::string(dtype_name(c.dtype)) + " d" + std::to_string(c.head_size) +
           (c.hnd ? " HND" : "") + (c.source_padding > 0 ? " padded" : "") +
           (c.splits ? " splits" : "");
  };
  for (const SlotCase& c : std::vector<SlotCase>{{kSlotK8V4},
                                                 {kSlotK8V4, kF16, 80, true},
                                                 {kSlotK4V4},
                                                 {kSlotK4V4, kF16, 64, true},
                                                 {kSlotK3V4, kF32, 32, false, 3},
                                                 {kSlotK3V3, kBF16, 512, true},
                                                 {kSlotK3V3}}) {
    cases.push_back({"write_cache" + name(c), 0, [c](Ops& o) { return run_slot_write(o, c); }});
  }
  for (const SlotCase& c : std::vector<SlotCase>{{kSlotK8V4},
                                                 {kSlotK8V4, kF16, 80, true},
                                                 {kSlotK4V4},
                                                 {kSlotK4V4, kF16, 256, true, 0, true},
                                                 {kSlotK3V4, kF16, 64},
                                                 {kSlotK3V3, kBF16, 128, true, 0, true}}) {
    cases.push_back(
        {"attend" + name(c), 1e-2, [c](Ops& o) { return run_slot_attend(o, c); }, 2e-2});
  }
}

}  // namespace attnbench::cuda
