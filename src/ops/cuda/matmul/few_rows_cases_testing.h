// Small cases of the query of MLA decodes, and of their values and codes.
#pragma once

#include "ops/cuda/testing/operation_cases_testing.h"

namespace attnbench::cuda {

struct LatentQueryCase {
  Dtype dtype;
  int tokens;
  int heads;
  int padded_heads;
  bool is_quantised;
  bool writes;
  attn::MlaEntry entry = attn::MlaEntry::kCopy;
  int nope = 128;
  int latent = 512;
  int rope = 64;
};

/// A call of make_latent_query() and its memory: [1, codes or query, cache].
struct LatentQueryCall {
  LatentQueryCall(Ops& ops, const LatentQueryCase& c) : memory(ops) {
    constexpr int kBlocks = 20;
    constexpr int kBlockSize = 16;
    const attn::i64 qk = c.nope + c.rope;
    const attn::i64 size = c.latent + c.rope;
    attn::MatmulParams& project = params.project;
    project.element = project.output_element = element_of(c.dtype);
    const char* const query =
        static_cast<const char*>(memory.upload(drawn(c.dtype, {c.tokens, c.heads, qk}, 61, false)));
    project.a = query;
    project.a_batch_stride = qk;
    project.a_row_stride = c.heads * qk;
    project.b = memory.upload(drawn(c.dtype, {c.heads, c.nope, c.latent}, 62, false));
    project.b_batch_stride = attn::i64{c.nope} * c.latent;
    project.b_row_stride = c.latent;
    project.c = memory.upload(poisoned(c.dtype, {c.tokens, c.heads, c.latent}));
    project.c_batch_stride = c.latent;
    project.c_row_stride = attn::i64{c.heads} * c.latent;
    project.num_batches = c.heads;
    project.m = c.tokens;
    project.n = c.latent;
    project.k = c.nope;
    attn::ConcatParams& join = params.join;
    join.element = project.element;
    join.first = project.c;
    join.first_token_stride = project.c_row_stride;
    join.first_head_stride = c.latent;
    join.second = query + c.nope * 2;
    join.second_token_stride = c.heads * qk;
    join.second_head_stride = qk;
    join.output_token_stride = c.padded_heads * size;
    join.output_head_stride = size;
    join.num_tokens = c.tokens;
    join.num_heads = c.heads;
    join.first_size = c.latent;
    join.second_size = c.rope;
    const std::vector<std::int64_t> shape{c.tokens + 1, c.padded_heads, size};
    if (c.is_quantised) {
      join.output = memory.upload(poisoned(c.dtype, shape));
      attn::StaticQuantiseParams& quantise = params.quantise;
      quantise.source_element = project.element;
      quantise.source = join.output;
      quantise.source_row_stride = quantise.code_row_stride = c.padded_heads * size;
      quantise.codes = static_cast<unsigned char*>(memory.result(poisoned(Dtype::kE4M3, shape)));
      quantise.scale = memory.upload(std::vector<float>{30.0f});
      quantise.num_rows = c.tokens;
      quantise.num_columns = c.heads * size;
    } else {
      join.output = memory.result(poisoned(c.dtype, shape));
    }
    attn::ConcatParams& pad = params.pad;
    pad.element = c.is_quantised ? attn::Element::kE4M3 : join.element;
    pad.output = c.is_quantised ? static_cast<void*>(params.quantise.codes + c.heads * size)
                                : static_cast<char*>(join.output) + c.heads * size * 2;
    pad.output_token_stride = c.padded_heads * size;
    pad.output_head_stride = size;
    pad.num_tokens = c.tokens;
    pad.num_heads = c.padded_heads - c.heads;
    pad.second_size = static_cast<int>(size);
    if (!c.writes) return;
    const bool is_packed = c.entry == attn::MlaEntry::kDsMla;
    const int entry = is_packed ? attn::kDsMlaEntryBytes : static_cast<int>(size);
    Dtype cache = c.dtype;
    if (c.entry != attn::MlaEntry::kCopy) cache = is_packed ? Dtype::kU8 : Dtype::kE4M3;
    // More new entries than tokens of decodes, backwards; every fifth goes nowhere.
    const int slots_of = c.tokens + 7;
    std::vector<attn::i64> slots;
    for (int t = 0; t < slots_of; ++t) {
      slots.push_back(t % 5 == 3 ? -1 : kBlocks * kBlockSize - 1 - t);
    }
    attn::MlaCacheWriteParams& write = params.write;
    write.format = c.entry;
    write.source_element = project.element;
    write.kv_c = memory.upload(drawn(c.dtype, {slots_of, c.latent}, 63, false));
    write.kv_c_token_stride = c.latent;
    write.k_pe = memory.upload(drawn(c.dtype, {slots_of, c.rope}, 64, false));
    write.k_pe_token_stride = c.rope;
    write.cache = memory.result(poisoned(cache, {kBlocks + 1, kBlockSize, entry}));
    write.block_stride = attn::i64{kBlockSize} * entry;
    write.slot_stride = entry;
    write.slot_mapping = memory.upload(slots);
    write.num_slots = slots_of;
    write.block_size = kBlockSize;
    write.kv_lora_rank = c.latent;
    write.rope_head_dim = c.rope;
    write.k_scale = memory.upload(std::vector<float>{4.0f});
  }

  CaseMemory memory;
  attn::LatentQueryParams params{};
};

inline std::vector<LatentQueryCase> latent_query_cases() {
  using enum Dtype;
  using attn::MlaEntry;
  return {{kBF16, 1, 16, 16, false, false},
          {kBF16, 37, 16, 16, true, true, MlaEntry::kE4M3},
          {kF16, 20, 5, 8, false, true, MlaEntry::kCopy},
          {kBF16, 70, 3, 4, true, true, MlaEntry::kDsMla},
          {kBF16, 100, 128, 128, false, true, MlaEntry::kCopy},
          {kF16, 9, 4, 4, true, false, MlaEntry::kCopy, 64, 160, 32},
          // By the operations one after the other: rows that lie nowhere near 16 bytes.
          {kBF16, 6, 3, 5, true, true, MlaEntry::kE4M3, 20, 36, 12}};
}

inline OperationCase latent_query_case(const LatentQueryCase& c) {
  // Codes are half a step apart where sums differ in their last bits.
  const double tolerance = c.is_quantised ? 0.13 : (c.dtype == Dtype::kBF16 ? 1e-2 : 2e-3);
  return {"make_latent_query " + std::string(dtype_name(c.dtype)) + " of " +
              std::to_string(c.tokens) + " tokens, " + std::to_string(c.heads) + " heads",
          tolerance,
          [c](Ops& ops) {
            LatentQueryCall call(ops, c);
            ops.make_latent_query(call.params);
            return call.memory.results();
          },
          c.is_quantised ? 0.05 : tolerance};
}

inline void add_latent_query_cases(std::vector<OperationCase>& cases) {
  for (const LatentQueryCase& c : latent_query_cases()) cases.push_back(latent_query_case(c));
}

struct ValueOutputCase {
  Dtype dtype;
  int tokens;
  int heads;
  attn::OutputCodes codes;
  int group = 128;  // of kGroups
  bool swizzled = false;
  int latent = 512;
  int width = 128;
};

/// A call of project_values() and its memory: [output, codes, scales], the latter two if there are
/// codes, the last if it is made.
struct ValueOutputCall {
  ValueOutputCall(Ops& ops, const ValueOutputCase& c) : memory(ops) {
    const attn::i64 row = attn::i64{c.heads} * c.width;
    attn::MatmulParams& project = params.project;
    project.element = project.output_element = element_of(c.dtype);
    project.a = memory.upload(drawn(c.dtype, {c.tokens, c.heads, c.latent}, 71, false));
    project.a_batch_stride = c.latent;
    project.a_row_stride = attn::i64{c.heads} * c.latent;
    project.b = memory.upload(drawn(c.dtype, {c.heads, c.latent, c.width}, 72, false));
    project.b_batch_stride = attn::i64{c.latent} * c.width;
    project.b_row_stride = c.width;
    project.c = memory.result(poisoned(c.dtype, {c.tokens + 1, row}));
    project.c_batch_stride = c.width;
    project.c_row_stride = row;
    project.num_batches = c.heads;
    project.m = c.tokens;
    project.n = c.width;
    project.k = c.latent;
    switch (c.codes) {
      case attn::OutputCodes::kNone:
        return;
      case attn::OutputCodes::kScale:
        fill(params.by_scale, row);
        params.by_scale.codes = codes({c.tokens + 1, row});
        params.by_scale.code_row_stride = row;
        params.by_scale.scale = memory.upload(std::vector<float>{0.3f});
        return;
      case attn::OutputCodes::kGroups: {
        fill(params.by_groups, row);
        const attn::i64 groups = row / c.group;
        params.by_groups.codes = codes({c.tokens + 1, row});
        params.by_groups.code_row_stride = row;
        params.by_groups.scales =
            static_cast<float*>(memory.result(poisoned(Dtype::kF32, {groups, c.tokens + 1})));
        // By rows, or by columns.
        params.by_groups.scale_row_stride = c.swizzled ? 1 : groups;
        params.by_groups.scale_group_stride = c.swizzled ? c.tokens + 1 : 1;
        params.by_groups.group_size = c.group;
        params.by_groups.ue8m0 = c.swizzled ? 1 : 0;
        return;
      }
      case attn::OutputCodes::kBlocks: {
        fill(params.by_blocks, row);
        const attn::i64 blocks = row / attn::kNvfp4Block;
        const attn::i64 rows = (c.tokens + 127) / 128 * 128;
        params.by_blocks.packed = codes({c.tokens + 1, row / 2});
        params.by_blocks.packed_row_stride = row / 2;
        params.by_blocks.scales =
            static_cast<unsigned char*>(memory.result(poisoned(Dtype::kU8, {rows + 1, blocks})));
        params.by_blocks.swizzled = c.swizzled ? 1 : 0;
        params.by_blocks.global_scale = memory.upload(std::vector<float>{40.0f});
        if (!c.swizzled) return;
        params.clear.element = attn::Element::kU8;
        params.clear.output = params.by_blocks.scales;
        params.clear.output_token_stride = blocks;
        params.clear.num_tokens = rows;
        params.clear.num_heads = 1;
        params.clear.second_size = static_cast<int>(blocks);
        return;
      }
    }
  }

  template <typename Params>
  void fill(Params& codes, attn::i64 columns) const {
    codes.source_element = params.project.element;
    codes.source = params.project.c;
    codes.source_row_stride = codes.num_columns = columns;
    codes.num_rows = params.project.m;
  }
  unsigned char* codes(const std::vector<std::int64_t>& shape) {
    return static_cast<unsigned char*>(memory.result(poisoned(Dtype::kU8, shape)));
  }

  CaseMemory memory;
  attn::ValueOutputParams params{};
};

inline std::vector<ValueOutputCase> value_output_cases() {
  using enum Dtype;
  using enum attn::OutputCodes;
  return {{kBF16, 64, 128, kNone},
          {kBF16, 64, 16, kScale},
          {kBF16, 100, 128, kGroups, 128},
          {kBF16, 37, 16, kGroups, 64, true},
          {kF16, 1, 16, kBlocks, 16, true},
          {kBF16, 70, 5, kBlocks, 16, true},
          {kF16, 9, 3, kBlocks, 16, false, 160, 64},
          {kF16, 20, 3, kGroups, 64, false, 128, 192},
          {kF16, 33, 2, kScale, 128, false, 72, 48},
          // By the operations one after the other: heads of half a piece.
          {kBF16, 6, 4, kScale, 128, false, 64, 24}};
}

inline OperationCase value_output_case(const ValueOutputCase& c) {
  const double tolerance = c.dtype == Dtype::kBF16 ? 1e-2 : 2e-3;
  return {"project_values " + std::string(dtype_name(c.dtype)) + " of " + std::to_string(c.tokens) +
              " tokens, " + std::to_string(c.heads) + " heads",
          tolerance,
          [c](Ops& ops) {
            ValueOutputCall call(ops, c);
            ops.project_values(call.params);
            // Codes and scales hang on the last bit of a sum; they have a test of their own.
            return std::vector<Tensor>{call.memory.results().front()};
          },
          tolerance};
}

inline void add_value_output_cases(std::vector<OperationCase>& cases) {
  for (const ValueOutputCase& c : value_output_cases()) cases.push_back(value_output_case(c));
}

}  // namespace attnbench::cuda
