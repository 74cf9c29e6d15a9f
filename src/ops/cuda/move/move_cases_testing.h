// Small cases of the operations that move elements.
#pragma once

#include "kernels/common/numeric.cuh"
#include "ops/cuda/testing/operation_cases_testing.h"

namespace attnbench::cuda {

struct CopyCase {
  Dtype from;
  Dtype to;
  int width;
  int padding;  // elements between rows of the source
};

/// Heads and tokens change places.
inline std::vector<Tensor> run_copy(Ops& ops, const CopyCase& c) {
  constexpr int kTokens = 7;
  constexpr int kHeads = 3;
  CaseMemory memory(ops);
  const attn::i64 row = c.width + c.padding;
  attn::CopyParams p{};
  p.source_element = element_of(c.from);
  p.output_element = element_of(c.to);
  p.source = memory.upload(drawn(c.from, {2, kTokens, kHeads, row}, 21, c.from == Dtype::kF32));
  p.output = memory.result(poisoned(c.to, {2, kHeads, kTokens + 1, c.width}));
  p.source_strides[0] = kTokens * kHeads * row;
  p.source_strides[1] = kHeads * row;
  p.source_strides[2] = row;
  p.output_strides[0] = attn::i64{kHeads} * (kTokens + 1) * c.width;
  p.output_strides[1] = c.width;
  p.output_strides[2] = attn::i64{kTokens + 1} * c.width;
  p.extents[0] = 2;
  p.extents[1] = kTokens;
  p.extents[2] = kHeads;
  p.width = c.width;
  ops.copy(p);
  return memory.results();
}

struct ConcatCase {
  Dtype dtype;
  int first_size;
  int second_size;
  bool shared_second;  // one second part for all heads
  bool zeros = false;
};

inline std::vector<Tensor> run_concat(Ops& ops, const ConcatCase& c) {
  constexpr int kTokens = 9;
  constexpr int kHeads = 5;
  CaseMemory memory(ops);
  const attn::i64 width = c.first_size + c.second_size;
  attn::ConcatParams p{};
  p.element = element_of(c.dtype);
  p.first = memory.upload(drawn(c.dtype, {kTokens, kHeads, c.first_size + 8}, 22));
  p.first_token_stride = kHeads * (c.first_size + attn::i64{8});
  p.first_head_stride = c.first_size + 8;
  if (!c.zeros) {
    p.second = memory.upload(drawn(c.dtype, {kTokens, kHeads, c.second_size}, 23));
    p.second_token_stride = attn::i64{kHeads} * c.second_size;
    p.second_head_stride = c.shared_second ? 0 : c.second_size;
  }
  p.output = memory.result(poisoned(c.dtype, {kTokens + 1, kHeads, width}));
  p.output_token_stride = kHeads * width;
  p.output_head_stride = width;
  p.num_tokens = kTokens;
  p.num_heads = kHeads;
  p.first_size = c.first_size;
  p.second_size = c.second_size;
  ops.concat(p);
  return memory.results();
}

inline std::vector<Tensor> run_gather_rows(Ops& ops, Dtype dtype, int width) {
  CaseMemory memory(ops);
  attn::GatherRowsParams p{};
  p.element = element_of(dtype);
  p.source = memory.upload(drawn(dtype, {6, width}, 24));
  p.source_row_stride = p.output_row_stride = p.width = width;
  p.rows = memory.upload(std::vector<attn::i64>{5, 0, 0, 3});
  p.num_rows = 4;
  p.output = memory.result(poisoned(dtype, {5, width}));
  ops.gather_rows(p);
  return memory.results();
}

struct MlaWriteCase {
  attn::MlaEntry format;
  Dtype source;
  int latent = 512;
  int rope = 64;
  int padding = 0;  // elements between rows of the source
  bool rotates = false;
  int first_byte = 0;  // of the cache: what it is aligned to
};

inline std::vector<Tensor> run_mla_write(Ops& ops, const MlaWriteCase& c) {
  constexpr int kTokens = 75;
  constexpr int kBlocks = 10;
  constexpr int kBlockSize = 8;
  constexpr int kPositions = 32;
  CaseMemory memory(ops);
  const bool is_model1 = c.format == attn::MlaEntry::kModel1;
  const bool is_packed = is_model1 || c.format == attn::MlaEntry::kDsMla;
  int entry = c.latent + c.rope;
  if (is_packed) entry = is_model1 ? attn::kModel1EntryBytes : attn::kDsMlaEntryBytes;
  Dtype cache = c.source;
  if (is_packed) cache = Dtype::kU8;
  if (c.format == attn::MlaEntry::kE4M3) cache = Dtype::kE4M3;
  std::vector<attn::i64> slots;
  std::vector<attn::i64> positions;
  for (int t = 0; t < kTokens; ++t) {
    slots.push_back(t % 6 == 4 ? -1 : kBlocks * kBlockSize - 1 - t);
    positions.push_back(t * 5 % kPositions);
  }
  attn::MlaCacheWriteParams p{};
  p.format = c.format;
  p.source_element = element_of(c.source);
  p.kv_c = memory.upload(drawn(c.source, {kTokens, c.latent + c.padding}, 25, !is_packed));
  p.kv_c_token_stride = c.latent + c.padding;
  void* k_pe = memory.result(drawn(c.source, {kTokens, c.rope + c.padding}, 26, false));
  p.k_pe = k_pe;
  p.k_pe_token_stride = c.rope + c.padding;
  p.cache = static_cast<char*>(memory.result(poisoned(cache, {kBlocks + 1, kBlockSize, entry}))) +
            c.first_byte;
  p.block_stride = attn::i64{kBlockSize} * entry;
  p.slot_stride = is_model1 ? attn::kModel1DataBytes : entry;
  p.slot_mapping = memory.upload(slots);
  p.num_slots = kTokens;
  p.block_size = kBlockSize;
  p.kv_lora_rank = c.latent;
  p.rope_head_dim = c.rope;
  p.k_scale = memory.upload(std::vector<float>{0.07f});
  if (!c.rotates) {
    ops.write_mla_cache(p);
    return memory.results();
  }
  attn::RopeParams rope{};
  rope.element = p.source_element;
  rope.cache_element = attn::Element::kF32;
  rope.positions = memory.upload(positions);
  rope.cos_sin_cache = memory.upload(drawn(Dtype::kF32, {kPositions, c.rope}, 27, false));
  rope.query = memory.result(drawn(c.source, {kTokens, 3, c.rope}, 28, false));
  rope.query_token_stride = attn::i64{3} * c.rope;
  rope.query_head_stride = c.rope;
  rope.key = k_pe;
  rope.key_token_stride = p.k_pe_token_stride;
  rope.key_head_stride = c.rope;
  rope.num_tokens = kTokens;
  rope.num_heads = 3;
  rope.num_kv_heads = 1;
  rope.rotary_dim = c.rope;
  ops.rope_and_write_mla_cache(rope, p);
  return memory.results();
}

/// "fp8_ds_mla" entries of drawn codes, scales and k_pe.
inline Tensor drawn_ds_mla(int entries, unsigned seed) {
  Tensor tensor(Dtype::kU8, {entries, attn::kDsMlaEntryBytes});
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int e = 0; e < entries; ++e) {
    std::byte* entry = tensor.bytes() + e * attn::kDsMlaEntryBytes;
    // Codes below 0x70 in magnitude: no NaN.
    for (int i = 0; i < attn::kDsMlaLatent; ++i) {
      entry[i] = static_cast<std::byte>(random() % 0x60 | (random() % 2) << 7);
    }
    for (int i = 0; i < 4; ++i) {
      // Some far below the others of the entry.
      const float unit = random() % 5 == 0 ? 1e-5f : 0.01f;
      const float scale = unit * (1.0f + static_cast<float>(random() % 7));
      std::memcpy(entry + attn::kDsMlaLatent + 4 * i, &scale, sizeof scale);
    }
    for (int i = 0; i < attn::kDsMlaRope; ++i) {
      const attn::u16 code = attn::bf16_from_float(normal(random));
      std::memcpy(entry + attn::kDsMlaLatent + 16 + 2 * i, &code, sizeof code);
    }
  }
  return tensor;
}

/// Blocks of "fp8_model1_mla" of drawn codes, k_pe and scales.
inline Tensor drawn_model1(int blocks, int block_size, unsigned seed) {
  Tensor tensor(Dtype::kU8, {blocks, block_size, attn::kModel1EntryBytes});
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int block = 0; block < blocks; ++block) {
    std::byte* first = tensor.bytes() + block * block_size * attn::kModel1EntryBytes;
    for (int slot = 0; slot < block_size; ++slot) {
      std::byte* data = first + slot * attn::kModel1DataBytes;
      for (int i = 0; i < attn::kModel1Latent; ++i) {
        data[i] = static_cast<std::byte>(random() % 0x60 | (random() % 2) << 7);
      }
      for (int i = 0; i < attn::kModel1Rope; ++i) {
        const attn::u16 code = attn::bf16_from_float(normal(random));
        std::memcpy(data + attn::kModel1Latent + 2 * i, &code, sizeof code);
      }
      std::byte* scales = first + block_size * attn::kModel1DataBytes + slot * 8;
      for (int i = 0; i < 8; ++i) {
        scales[i] = static_cast<std::byte>(i == 7 ? 0 : 118 + random() % 5);
      }
    }
  }
  return tensor;
}

inline std::vector<Tensor> run_model1_upconvert(Ops& ops) {
  constexpr int kBlockSize = 4;
  CaseMemory memory(ops);
  attn::DsMlaUpconvertParams p{};
  p.is_model1 = 1;
  p.entries.element = attn::Element::kU8;
  p.entries.cache = memory.upload(drawn_model1(8, kBlockSize, 30));
  p.entries.slot_stride = attn::kModel1DataBytes;
  p.entries.entry_size = attn::kModel1EntryBytes;
  p.entries.block_stride = kBlockSize * attn::i64{attn::kModel1EntryBytes};
  p.entries.block_table = memory.upload(std::vector<int>{6, 1, 2, 7, 3, 0});
  p.entries.block_table_stride = 2;
  p.entries.block_size = kBlockSize;
  p.seq_lens = memory.upload(std::vector<int>{4, 0, 7});
  p.workspace_starts = memory.upload(std::vector<int>{1, 6, 6});
  p.num_requests = 3;
  p.num_rows = 14;
  p.output = memory.result(poisoned(Dtype::kBF16, {14, 512}));
  p.output_token_stride = 512;
  ops.upconvert_ds_mla(p);
  return memory.results();
}

/// `first_byte` of the cache: what its entries are aligned to.
inline std::vector<Tensor> run_upconvert(Ops& ops, int first_byte) {
  constexpr int kBlockSize = 4;
  CaseMemory memory(ops);
  attn::DsMlaUpconvertParams p{};
  p.entries.element = attn::Element::kU8;
  const Tensor entries = drawn_ds_mla(8 * kBlockSize, 29);
  std::vector<std::byte> bytes(static_cast<std::size_t>(first_byte) + entries.size_bytes());
  std::copy_n(entries.bytes(), entries.size_bytes(), bytes.begin() + first_byte);
  p.entries.cache = memory.upload(bytes) + first_byte;
  p.entries.slot_stride = p.entries.entry_size = attn::kDsMlaEntryBytes;
  p.entries.block_stride = kBlockSize * attn::i64{attn::kDsMlaEntryBytes};
  p.entries.block_table = memory.upload(std::vector<int>{6, 1, 2, 7, 3, 0});
  p.entries.block_table_stride = 2;
  p.entries.block_size = kBlockSize;
  // Row 5 belongs to nobody, as does row 0.
  p.seq_lens = memory.upload(std::vector<int>{4, 0, 7});
  p.workspace_starts = memory.upload(std::vector<int>{1, 6, 6});
  p.num_requests = 3;
  p.num_rows = 14;
  p.output = memory.result(poisoned(Dtype::kBF16, {14, 576}));
  p.output_token_stride = 576;
  ops.upconvert_ds_mla(p);
  return memory.results();
}

inline void add_move_cases(std::vector<OperationCase>& cases) {
  using enum Dtype;
  for (const CopyCase& c : std::vector<CopyCase>{{kBF16, kBF16, 128, 0},
                                                 {kF32, kBF16, 64, 0},
                                                 {kBF16, kF32, 33, 1},
                                                 {kI32, kI32, 8, 0},
                                                 {kU8, kU8, 48, 5}}) {
    cases.push_back({title("copy", c.from, c.to), 1e-30, [c](Ops& o) { return run_copy(o, c); }});
  }
  for (const ConcatCase& c : std::vector<ConcatCase>{{kBF16, 128, 64, true},
                                                     {kBF16, 512, 64, false},
                                                     {kE4M3, 16, 48, false, true},
                                                     {kF32, 5, 3, false}}) {
    cases.push_back({title("concat", c.dtype, c.dtype) + std::to_string(c.first_size), 0,
                     [c](Ops& o) { return run_concat(o, c); }});
  }
  cases.push_back({"gather_rows", 0, [](Ops& o) { return run_gather_rows(o, kBF16, 576); }});
  cases.push_back({"gather_rows f32", 0, [](Ops& o) { return run_gather_rows(o, kF32, 7); }});
  using attn::MlaEntry;
  for (const MlaWriteCase& c :
       std::vector<MlaWriteCase>{{MlaEntry::kCopy, kBF16},
                                 {MlaEntry::kE4M3, kBF16},
                                 {MlaEntry::kE4M3, kF32, 40, 12, 3},
                                 {MlaEntry::kDsMla, kBF16},
                                 {MlaEntry::kDsMla, kBF16, 512, 64, 1},
                                 {MlaEntry::kDsMla, kBF16, 512, 64, 0, false, 4},
                                 {MlaEntry::kModel1, kBF16, 448},
                                 {MlaEntry::kModel1, kBF16, 448, 64, 1, true},
                                 {MlaEntry::kCopy, kF16, 512, 64, 0, true},
                                 {MlaEntry::kE4M3, kF16, 512, 64, 0, true}}) {
    cases.push_back({title("write_mla_cache", c.source, kU8) + " format " +
                         std::to_string(static_cast<int>(c.format)) + " pad " +
                         std::to_string(c.padding) + " at " + std::to_string(c.first_byte),
                     0, [c](Ops& o) { return run_mla_write(o, c); }});
  }
  cases.push_back({"upconvert_model1", 0, [](Ops& o) { return run_model1_upconvert(o); }});
  for (const int first_byte : {0, 4}) {
    cases.push_back({"upconvert_ds_mla at " + std::to_string(first_byte), 0,
                     [first_byte](Ops& o) { return run_upconvert(o, first_byte); }});
  }
}

}  // namespace attnbench::cuda
