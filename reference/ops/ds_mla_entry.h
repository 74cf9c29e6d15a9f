// The 656-byte cache entry "fp8_ds_mla" of DeepSeek's sparse MLA: write, read and gather
// (semantics §8.4.3).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace attnbench {

inline constexpr int kDsMlaLatent = 512;  // Lkv, e4m3 in tiles of 128
inline constexpr int kDsMlaTile = 128;
inline constexpr int kDsMlaRope = 64;         // R, bf16
inline constexpr int kDsMlaEntryBytes = 656;  // 512 codes, 4 f32 scales, 64 bf16

/// Entry of kv_c [512] and k_pe [64], both bf16 codes. Tile scale s = max(amax / 448, 2^-126), code
/// = rn_e4m3(x / s).
void write_ds_mla_entry(const std::uint16_t* kv_c, const std::uint16_t* k_pe, std::byte* entry);

/// bf16 codes [576]: code * tile scale rounded to bf16, then k_pe as it is.
void read_ds_mla_entry(const std::byte* entry, std::uint16_t* latent_and_rope);

/// Writes the entries of kv_c [>= slots, 512] and k_pe [>= slots, 64 or 1, 64] into cache
/// [NB, bs, 656] bytes; a negative slot is skipped, an empty cache left alone. E-SHAPE, E-DTYPE
/// (bf16 only), E-VALUE for a slot beyond the cache.
void concat_and_cache_ds_mla(const Tensor& kv_c, const Tensor& k_pe,
                             std::span<const std::int64_t> slot_mapping, Tensor& cache);

struct DsMlaGather {
  const Tensor* cache = nullptr;                   // [NB, bs, 656] bytes
  std::span<const std::int32_t> block_table;       // [B, block_table_columns]
  std::int64_t block_table_columns = 0;            // MB
  std::span<const std::int32_t> seq_lens;          // [B] tokens to gather, from position 0
  std::span<const std::int32_t> workspace_starts;  // [B] ascending; first row of each request
};
/// cp_gather_and_upconvert_fp8_kv_cache: rows workspace_starts[b] + [0, seq_lens[b]) of destination
/// (bf16 [rows, 576]); other rows are not written. E-SHAPE, E-DTYPE, E-VALUE.
void gather_and_upconvert_ds_mla(const DsMlaGather& gather, Tensor& destination);

// The fp8 keys of the sparse indexer's cache (semantics §8.9).

inline constexpr int kIndexKeySize = 128;

struct IndexKey {
  std::array<std::uint8_t, kIndexKeySize> codes{};  // e4m3
  float scale = 0.0f;
};

/// s = max(amax, 1e-4) / 448, rounded up to a power of two with ue8m0; code = rn_e4m3(x / s).
IndexKey quantise_index_key(std::span<const float, kIndexKeySize> key, bool ue8m0);

}  // namespace attnbench
