// Checks that every batch passes before anything is launched (semantics §0.6, §1.1).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace attnbench {

/// A cumulative int32 array: first element 0, non-decreasing, last = total. E-VALUE, or E-SHAPE
/// when empty; messages start with `name`.
void check_cumulative(std::span<const int32_t> values, int64_t total, std::string_view name);

/// The first ceil(seq_lens[b] / block_size) entries of row b of block_table [B, columns] lie in
/// [0, num_blocks); later entries are not looked at. E-VALUE; a wrong extent or a row with too few
/// columns is E-SHAPE. Under DCP a column serves block_size * W tokens: pass that product.
void check_block_table(std::span<const int32_t> block_table, int64_t columns,
                       std::span<const int32_t> seq_lens, int64_t block_size, int64_t num_blocks);

/// Slots are negative (padding) or distinct values in [0, num_blocks * block_size). E-VALUE.
void check_slot_mapping(std::span<const int64_t> slot_mapping, int64_t num_blocks,
                        int64_t block_size);

/// A dividing scale is finite and > 0, else E-VALUE.
void check_scale(float scale, std::string_view name);

/// [B] differences of a cumulative array [B+1], which is checked; messages call it `name`.
std::vector<int32_t> query_lens_of(std::span<const int32_t> query_start_loc,
                                   std::string_view name = "query_start_loc");

/// [B] seq_len - query_len, each >= 0 (decoder self-attention), else E-VALUE.
std::vector<int32_t> context_lens_of(std::span<const int32_t> query_start_loc,
                                     std::span<const int32_t> seq_lens);

/// [B+1] exclusive cumulative sum of lengths (key_start_loc of ixformer when given seq_lens).
/// A negative length is E-VALUE, a sum beyond int32 is E-CAPACITY.
std::vector<int32_t> cumulative(std::span<const int32_t> lengths);

/// A given key_start_loc equals cumulative(seq_lens), else E-VALUE.
void check_key_start_loc(std::span<const int32_t> key_start_loc, std::span<const int32_t> seq_lens);

}  // namespace attnbench
