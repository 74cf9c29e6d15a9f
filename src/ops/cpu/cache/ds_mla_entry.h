// The 656-byte cache entry "fp8_ds_mla" (semantics §8.4.3): 512 e4m3, 4 f32 tile scales, 64 bf16.
#pragma once

#include <cstdint>

#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// Fills the table that read_ds_mla_entry looks codes up in.
void fill_e4m3_codes(CodeTable& codes);

/// kv_c [512] as floats, k_pe [64] as bf16 bits. Tile scale s = max(amax / 448, 2^-126), code =
/// rn_e4m3(x / s).
void write_ds_mla_entry(const float* kv_c, const void* k_pe, std::uint8_t* entry);

/// values [576]: code * tile scale rounded to bf16, then k_pe.
void read_ds_mla_entry(const std::uint8_t* entry, const CodeTable& codes, float* values);

}  // namespace attnbench::cpu
