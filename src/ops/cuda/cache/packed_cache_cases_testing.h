// Small cases of caches with codes of 4 bits: their writes, attention over them, and the rotation
// of queries and outputs that goes with one of them.
#pragma once

#include "kernels/params_rope.h"
#include "ops/cuda/testing/operation_cases_testing.h"

namespace attnbench::cuda {

struct PackedCase {
  attn::KvCoding coding;
  Dtype dtype = Dtype::kBF16;  // of sources, queries and outputs
  int head_size = 128;
  bool hnd = false;
  int source_padding = 0;  // elements between the tokens of the source
  bool segments = false;
};

/// Pages [NB, 2, ...] of two KV heads, as §5.6 and §5.7 have them.
struct PackedPages {
  static constexpr int kHeads = 2;
  static constexpr int kBlocks = 9;
  static constexpr int kBlockSize = 16;

  explicit PackedPages(const PackedCase& c)
      : is_int4(c.coding == attn::KvCoding::kInt4),
        codes(c.head_size / 2),
        scales(is_int4 ? 4 : c.head_size / attn::kKvScaleBlock),
        plane(kHeads * kBlockSize * (codes + scales)) {
    const int cell = is_int4 ? codes + scales : codes;
    slot_stride = c.hnd ? cell : kHeads * cell;
    head_stride = c.hnd ? kBlockSize * cell : cell;
    scale_slot = c.hnd ? scales : kHeads * scales;
    scale_head = c.hnd ? kBlockSize * scales : scales;
  }
  attn::i64 block_stride() const { return 2 * plane; }
  attn::BlockScales block_scales(unsigned char* cache) const {
    if (is_int4) return {};
    unsigned char* first = cache + kHeads * kBlockSize * codes;
    return {first, first + plane, block_stride(), scale_slot, scale_head};
  }

  bool is_int4;
  int codes;   // bytes of the codes of a vector
  int scales;  // of its scales
  attn::i64 plane;
  attn::i64 slot_stride, head_stride, scale_slot, scale_head;
};

inline std::vector<Tensor> run_packed_write(Ops& ops, const PackedCase& c) {
  constexpr int kTokens = 83;
  CaseMemory memory(ops);
  const PackedPages pages(c);
  std::vector<attn::i64> slots;
  for (int t = 0; t < kTokens; ++t) {
    slots.push_back(t % 5 == 3 ? -1 : pages.kBlocks * pages.kBlockSize - 1 - t);
  }
  const attn::i64 row = attn::i64{pages.kHeads} * c.head_size + c.source_padding;
  attn::CacheWriteParams p{};
  p.source_element = element_of(c.dtype);
  p.cache_element = attn::Element::kU8;
  p.key = memory.upload(drawn(c.dtype, {kTokens + 1, row}, 1, false));
  p.value = memory.upload(drawn(c.dtype, {kTokens + 1, row}, 2, false));
  p.key_token_stride = p.value_token_stride = row;
  auto* cache = static_cast<unsigned char*>(
      memory.result(poisoned(Dtype::kU8, {pages.kBlocks, pages.block_stride()})));
  p.key_cache = cache;
  p.value_cache = cache + pages.plane;
  p.block_stride = pages.block_stride();
  p.slot_stride = pages.slot_stride;
  p.head_stride = pages.head_stride;
  p.slot_mapping = memory.upload(slots);
  p.num_slots = kTokens;
  p.block_size = pages.kBlockSize;
  p.num_kv_heads = pages.kHeads;
  p.head_size = p.v_head_size = c.head_size;
  p.quantise = pages.is_int4 ? 3 : 4;
  p.k_scale = memory.upload(std::vector<float>{0.03f, 1.0f});
  p.v_scale = memory.upload(std::vector<float>{0.5f, 1e-3f});
  p.block_scales = pages.block_scales(cache);
  if (pages.is_int4) {
    p.key_scales = reinterpret_cast<float*>(cache + pages.codes);
    p.value_scales = reinterpret_cast<float*>(cache + pages.plane + pages.codes);
    p.scale_block_stride = p.block_stride / 4;
    p.scale_slot_stride = p.slot_stride / 4;
    p.scale_head_stride = p.head_stride / 4;
  }
  ops.write_cache(p);
  return memory.results();
}

/// Random codes; scales from 1/8 to 1, whatever lies in their low bits.
inline Tensor drawn_pages(const PackedPages& pages) {
  Tensor tensor(Dtype::kU8, {pages.kBlocks, pages.block_stride()});
  std::mt19937 random(3);
  auto* bytes = tensor.data<unsigned char>();
  for (attn::i64 i = 0; i < tensor.num_elements(); ++i) {
    bytes[i] = static_cast<unsigned char>(random());
  }
  for (attn::i64 plane = 0; plane < 2 * pages.kBlocks; ++plane) {
    unsigned char* first = bytes + plane * pages.plane;
    if (!pages.is_int4) {
      for (attn::i64 i = pages.kHeads * pages.kBlockSize * pages.codes; i < pages.plane; ++i) {
        first[i] = static_cast<unsigned char>(0x20 + random() % 24);
      }
      continue;
    }
    for (attn::i64 cell = 0; cell < pages.kHeads * pages.kBlockSize; ++cell) {
      const float scale = 0.125f * static_cast<float>(1 + random() % 8);
      attn::u32 bits = 0;
      std::memcpy(&bits, &scale, sizeof bits);
      bits |= static_cast<attn::u32>(random() & 15u);
      std::memcpy(first + cell * (pages.codes + 4) + pages.codes, &bits, sizeof bits);
    }
  }
  return tensor;
}

inline std::vector<Tensor> run_packed_attend(Ops& ops, const PackedCase& c) {
  constexpr int kHeads = 6;
  CaseMemory memory(ops);
  const PackedPages pages(c);
  const std::vector<int> query_lens = c.segments ? std::vector<int>{1, 1} : std::vector<int>{1, 20};
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
  p.score.softmax_scale = 0.02f;
  p.score.window_left = -1;
  attn::KvParams& kv = p.kv;
  auto* cache = static_cast<unsigned char*>(memory.upload(drawn_pages(pages)));
  kv.element = attn::Element::kU8;
  kv.coding = c.coding;
  kv.key = cache;
  kv.value = cache + pages.plane;
  kv.block_stride = pages.block_stride();
  kv.token_stride_key = kv.token_stride_value = pages.slot_stride;
  kv.head_stride_key = kv.head_stride_value = pages.head_stride;
  kv.block_table = memory.upload(std::vector<int>{5, 1, 8, -1, 2, 7, 0, 3});
  kv.block_table_stride = 4;
  kv.block_size = pages.kBlockSize;
  kv.block_scales = pages.block_scales(cache);
  if (pages.is_int4) {
    kv.key_scales = reinterpret_cast<const float*>(cache + pages.codes);
    kv.value_scales = reinterpret_cast<const float*>(cache + pages.plane + pages.codes);
    kv.scale_block_stride = kv.block_stride / 4;
    kv.scale_slot_stride = pages.slot_stride / 4;
    kv.scale_head_stride = pages.head_stride / 4;
  } else {
    kv.k_scale = memory.upload(std::vector<float>{0.7f, 1.3f});
    kv.v_scale = memory.upload(std::vector<float>{1.1f, 0.6f});
  }
  if (!c.segments) {
    ops.attend(p);
    return memory.results();
  }
  constexpr int kSegments = 4;
  const attn::i64 rows = tokens * kHeads * kSegments;
  const attn::SegmentParams segments{
      kSegments, 16, static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows, c.head_size}))),
      static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows}))),
      static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows})))};
  ops.attend_segments(p, segments);
  ops.reduce_segments(p, segments);
  return memory.results();
}

inline std::vector<Tensor> run_rotation(Ops& ops, Dtype dtype, int head_size, int padding,
                                        bool inverse) {
  constexpr int kTokens = 37;
  constexpr int kHeads = 3;
  CaseMemory memory(ops);
  attn::RotateHeadsParams p{};
  p.element = element_of(dtype);
  p.source = memory.upload(drawn(dtype, {kTokens, kHeads, head_size + padding}, 5, false));
  p.source_head_stride = head_size + padding;
  p.source_token_stride = kHeads * p.source_head_stride;
  p.output = memory.result(poisoned(dtype, {kTokens + 1, kHeads, head_size}));
  p.output_head_stride = head_size;
  p.output_token_stride = attn::i64{kHeads} * head_size;
  p.num_tokens = kTokens;
  p.num_heads = kHeads;
  p.head_size = head_size;
  p.inverse = inverse ? 1 : 0;
  ops.rotate_heads(p);
  return memory.results();
}

inline void add_packed_cases(std::vector<OperationCase>& cases) {
  using enum Dtype;
  using attn::KvCoding;
  const auto name = [](const PackedCase& c) {
    return std::string(c.coding == KvCoding::kInt4 ? " int4 " : " nvfp4 ") +
           std::string(dtype_name(c.dtype)) + " d" + std::to_string(c.head_size) +
           (c.hnd ? " HND" : "") + (c.source_padding > 0 ? " padded" : "") +
           (c.segments ? " segments" : "");
  };
  for (const PackedCase& c : std::vector<PackedCase>{{KvCoding::kInt4},
                                                     {KvCoding::kInt4, kF16, 64, true},
                                                     {KvCoding::kInt4, kF32, 32},
                                                     {KvCoding::kInt4, kBF16, 512, false, 3},
                                                     {KvCoding::kNvfp4},
                                                     {KvCoding::kNvfp4, kF16, 64, true},
                                                     {KvCoding::kNvfp4, kF32, 192},
                                                     {KvCoding::kNvfp4, kBF16, 256, false, 1}}) {
    cases.push_back({"write_cache" + name(c), 0, [c](Ops& o) { return run_packed_write(o, c); }});
  }
  for (const PackedCase& c :
       std::vector<PackedCase>{{KvCoding::kInt4},
                               {KvCoding::kInt4, kF32, 64, true},
                               {KvCoding::kInt4, kF16, 256, false, 0, true},
                               {KvCoding::kNvfp4},
                               {KvCoding::kNvfp4, kF32, 64, true},
                               {KvCoding::kNvfp4, kF16, 256, false, 0, true}}) {
    cases.push_back(
        {"attend" + name(c), 1e-2, [c](Ops& o) { return run_packed_attend(o, c); }, 2e-2});
  }
  for (const bool inverse : {false, true}) {
    cases.push_back({inverse ? "rotate_heads back" : "rotate_heads", 0,
                     [inverse](Ops& o) { return run_rotation(o, kBF16, 128, 0, inverse); }});
  }
  cases.push_back({"rotate_heads f32 d512 padded", 0,
                   [](Ops& o) { return run_rotation(o, kF32, 512, 1, false); }});
  cases.push_back(
      {"rotate_heads f16 d8", 0, [](Ops& o) { return run_rotation(o, kF16, 8, 0, true); }});
}

}  // namespace attnbench::cuda
