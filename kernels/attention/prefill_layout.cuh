// Shared memory of the prefill kernel, known to host and device.
#pragma once

#include "kernels/common/platform.cuh"

namespace attn {

/// Byte offsets; every part starts on 16 bytes.
struct PrefillLayout {
  int query;  // [kTileM, pitch]
  int key;    // [kTileN, pitch]
  int value;  // [kTileN, value pitch]
  int rows;   // Row [kTileM]
  int bounds;  // TileBounds [1 + kWarps]
  int pages;    // int [kPageWindow]
  int offsets;  // i64 [kPageWindow]
  int key_codes;    // [kTileN, head size up to 16]; these three only for one-byte elements
  int value_codes;  // [kTileN, value head size up to 16]
  int scales;       // f32 [2, kTileN]: of keys, of values
  int total;
};

ATTN_FN constexpr PrefillLayout prefill_layout(int warps, int tile_m, int tile_n, int head_size,
                                               int v_head_size, int element_bytes) {
  const int pitch = (head_size + 15) / 16 * 32 + 16;
  const int value_pitch = (v_head_size + 15) / 16 * 32 + 16;
  PrefillLayout layout{};
  layout.key = layout.query + tile_m * pitch;
  layout.value = layout.key + tile_n * pitch;
  layout.rows = layout.value + tile_n * value_pitch;
  layout.bounds = layout.rows + tile_m * 16;
  layout.pages = layout.bounds + (1 + warps) * 16;
  layout.offsets = layout.pages + 128 * 4;
  layout.key_codes = layout.offsets + 128 * 8;
  const int codes = element_bytes == 1 ? tile_n : 0;
  layout.value_codes = layout.key_codes + codes * ((head_size + 15) / 16 * 16);
  layout.scales = layout.value_codes + codes * ((v_head_size + 15) / 16 * 16);
  layout.total = layout.scales + codes * 8;
  return layout;
}

}  // namespace attn
