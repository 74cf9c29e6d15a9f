// The 656-byte cache entry "fp8_ds_mla" of DeepSeek's sparse MLA (semantics §8.4.3):
//
//   bytes [0, 512)    e4m3 codes of the latent kv_c, in 4 tiles of 128
//   bytes [512, 528)  f32 scale of each tile
//   bytes [528, 656)  k_pe, 64 bf16, as it came
//
// Written by write_mla_cache(), read by upconvert_ds_mla() and by sparse attention. The format is
// fixed: caches captured elsewhere are read by the same bytes. The cache's global k_scale has no
// part in it.
#pragma once

#include <cstdint>

#include "kernels/params_mla.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// Fills the table that read_ds_mla_entry() looks codes up in: the values of e4m3 without a scale.
void fill_e4m3_codes(CodeTable& codes);

/// kv_c [512] as floats, k_pe [64] as bf16 bits. Tile scale s = max(amax / 448, 2^-126), code =
/// rn_e4m3(x / s). Why the least scale: a tile of zeros would divide by 0.
void write_ds_mla_entry(const float* kv_c, const void* k_pe, std::uint8_t* entry);

/// values [576]: code * tile scale rounded to bf16, then k_pe.
void read_ds_mla_entry(const std::uint8_t* entry, const CodeTable& codes, float* values);

// The entry "fp8_model1_mla", FlashMLA's MODEL1_FP8Sparse (semantics §8.4.6), has two parts:
//
//   576 bytes, one slot behind the other   448 e4m3 codes of the latent in 7 tiles of 64, then
//   k_pe,
//                                          64 bf16, as it came
//   8 bytes, behind all slots of a block   ue8m0 scale of each tile, and a 0

/// Byte of the scales of slot `offset` from the start of its block.
inline attn::i64 model1_scales_at(int block_size, attn::i64 offset) {
  return attn::i64{block_size} * attn::kModel1DataBytes + offset * attn::kModel1ScaleBytes;
}

/// kv_c [448] as floats, k_pe [64] as bf16 bits. Tile scale s = max(amax, 1e-4) / 448 rounded up to
/// a power of two, code = rn_e4m3(x / s).
void write_model1_entry(const float* kv_c, const void* k_pe, std::uint8_t* data,
                        std::uint8_t* scales);

/// values [512]: code * tile scale rounded to bf16, then k_pe. `codes` are those of
/// fill_e4m3_codes().
void read_model1_entry(const std::uint8_t* data, const std::uint8_t* scales, const CodeTable& codes,
                       float* values);

}  // namespace attnbench::cpu
