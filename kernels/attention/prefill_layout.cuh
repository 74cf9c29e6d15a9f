// Shared memory of the prefill kernel, known to host and device: the host chooses tiles that leave
// room for the CTAs it wants on a multiprocessor and requests `total` bytes at the launch.
#pragma once

#include "kernels/common/lines.cuh"
#include "kernels/common/platform.cuh"

namespace attn {

/// Tiles of K and V in shared memory: one is computed with while the next is on its way. Codes need
/// one, since they arrive in a place of their own.
ATTN_FN constexpr int prefill_stages(int element_bytes) { return element_bytes == 1 ? 1 : 2; }

/// Bytes between rows of a tile of keys or values; tile_offset() says where the columns are. Why
/// whole lines where the columns fill them: the L2 sends a sector of 32 bytes twice if its halves
/// go to different 32 bytes of shared memory. Tiles made from codes are written from registers, so
/// for them, as for other widths, a pitch of an odd number of 16 bytes serves against bank
/// conflicts.
ATTN_FN constexpr int prefill_pitch(int columns, int element_bytes) {
  const bool lines = element_bytes == 2 && columns * 2 % kLineBytes == 0;
  return lines ? columns * 2 : (columns + 15) / 16 * 32 + 16;
}

/// Byte offsets; every part starts on 16 bytes, keys and values on lines.
struct PrefillLayout {
  int query;        // [kTileM, query pitch]
  int key;          // [kTileN, pitch], per stage
  int value;        // [kTileN, value pitch], per stage
  int rows;         // Row [kTileM]
  int bounds;       // TileBounds [1 + kWarps]
  int pages;        // int [kPageWindow]
  int offsets;      // i64 [kPageWindow]
  int factors;      // f32 [kTileM] of the query rows; these four only for one-byte elements
  int key_codes;    // [kTileN, head size up to 16]
  int value_codes;  // [kTileN, value head size up to 16]
  int scales;       // f32 [2, kTileN] of keys and of values, twice
  int total;
};

/// `tile_m` query rows and `tile_n` keys of a tile; `element_bytes` of a stored key: 2, or 1 for
/// codes. The 128 of pages and offsets is kPageWindow of prefill.cuh, the 16 bytes are a Row or
/// TileBounds.
ATTN_FN constexpr PrefillLayout prefill_layout(int warps, int tile_m, int tile_n, int head_size,
                                               int v_head_size, int element_bytes) {
  const int query_pitch = (head_size + 15) / 16 * 32 + 16;
  const int pitch = prefill_pitch(head_size, element_bytes);
  const int value_pitch = prefill_pitch(v_head_size, element_bytes);
  PrefillLayout layout{};
  layout.key = layout.query + tile_m * query_pitch;
  const int stages = prefill_stages(element_bytes);
  layout.value = layout.key + stages * tile_n * pitch;
  layout.rows = layout.value + stages * tile_n * value_pitch;
  layout.bounds = layout.rows + tile_m * 16;
  layout.pages = layout.bounds + (1 + warps) * 16;
  layout.offsets = layout.pages + 128 * 4;
  layout.factors = layout.offsets + 128 * 8;
  layout.key_codes = layout.factors + (element_bytes == 1 ? tile_m * 4 : 0);
  const int codes = element_bytes == 1 ? tile_n : 0;
  layout.value_codes = layout.key_codes + codes * ((head_size + 15) / 16 * 16);
  layout.scales = layout.value_codes + codes * ((v_head_size + 15) / 16 * 16);
  layout.total = layout.scales + codes * 16;
  return layout;
}

}  // namespace attn
