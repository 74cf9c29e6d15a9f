// The bytes that MLA's cache holds for given latents, and what reading them back yields (semantics
// §8.4.1, §8.4.3, §15.1), written independently of the operations that backends run.
//
// store_mla_cache gives a whole cache, token after token: the judge compares the pages that a
// backend wrote with its codes byte for byte, and the reference attends to its dequantised values,
// so that the error of quantisation is not held against the kernel. The functions below it are the
// packed fp8_ds_mla entry by itself.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/problem/problem.h"
#include "core/tensor.h"

namespace attnbench {

struct StoredMlaCache {
  /// [S, Lkv + R] of the inputs' dtype or e4m3; u8 [S, 656] for fp8_ds_mla, [S, 584] for
  /// fp8_model1_mla, the 8 bytes that lie behind the block last. Row = entry of a token.
  Tensor codes;
  /// What the reference reads, [S, Lkv] and [S, R], of the smallest type that has the values: f32,
  /// bf16 or f16. Where a cache copies, views of the inputs, which must live as long.
  Tensor kv_c_dequantized;
  Tensor k_pe_dequantized;
};

/// kv_c [S, Lkv] and k_pe [S, R], f16, bf16 or f32 alike.
/// auto, float16, bfloat16: bit copy (E-DTYPE when the inputs are of another type).
/// fp8, fp8_e4m3: rn_e4m3(x / k_scale), read back as code * k_scale in f32; E-VALUE for a bad
/// scale. fp8_ds_mla: 656-byte entries whose values read back as bf16; k_scale is ignored; Lkv =
/// 512, R = 64 and bf16 inputs, else E-SHAPE, E-DTYPE. fp8_model1_mla: the same with Lkv = 448.
/// Other cache types are E-CONFIG.
StoredMlaCache store_mla_cache(const Tensor& kv_c, const Tensor& k_pe, KvCacheDtype dtype,
                               float k_scale);

// The 656-byte cache entry "fp8_ds_mla" of DeepSeek's sparse MLA: write, read and gather
// (semantics §8.4.3).

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
/// [NB, bs, 656] bytes; a negative slot is skipped, an empty cache stays as it is. E-SHAPE, E-DTYPE
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

// The entry "fp8_model1_mla" of FlashMLA's MODEL1 (semantics §8.4.6).

inline constexpr int kModel1Latent = 448;  // Lkv, e4m3 in tiles of 64
inline constexpr int kModel1Tile = 64;
inline constexpr int kModel1Rope = 64;         // R, bf16
inline constexpr int kModel1EntryBytes = 584;  // 448 codes, 64 bf16, 7 ue8m0 scales, a 0

/// Entry of kv_c [448] and k_pe [64], both bf16 codes. Tile scale s = max(amax, 1e-4) / 448 rounded
/// up to a power of two, code = rn_e4m3(x / s).
void write_model1_entry(const std::uint16_t* kv_c, const std::uint16_t* k_pe, std::byte* entry);

/// bf16 codes [512]: code * tile scale rounded to bf16, then k_pe as it is.
void read_model1_entry(const std::byte* entry, std::uint16_t* latent_and_rope);

// The fp8 keys of the sparse indexer's cache (semantics §8.9).

inline constexpr int kIndexKeySize = 128;

struct IndexKey {
  std::array<std::uint8_t, kIndexKeySize> codes{};  // e4m3
  float scale = 0.0f;
};

/// s = max(amax, 1e-4) / 448, rounded up to a power of two with ue8m0; code = rn_e4m3(x / s).
IndexKey quantise_index_key(std::span<const float, kIndexKeySize> key, bool ue8m0);

}  // namespace attnbench
