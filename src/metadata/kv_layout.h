// Shapes, stride orders and strides of the KV cache layouts (semantics §2, §5.5).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/enum_names.h"
#include "core/numbers/kv_format.h"

namespace attnbench {

/// Logical order of the dimensions, without a layer dimension:
///   kFa  [2, NB, bs, Hk, D]   FLASH_ATTN, §2.1
///   kIx  [P, NB, Hk, bs, D]   FLASH_ATTN_IX, §2.2; P = 2 planes, 3 at int8 level 2
///   kTr  [NB, 2, bs, Hk, Dp]  TRITON_ATTN, §2.3; Dp = D, or D + 4 for per-token-head caches
enum class CacheLayoutKind { kFa, kIx, kTr };
std::span<const EnumRow<CacheLayoutKind>> enum_rows(CacheLayoutKind);

/// The user's layout setting: token-major or head-major inside a block. kIx without layers is
/// head-major under both settings.
enum class HeadOrder { kNhd, kHnd };

/// "NHD" or "HND"; anything else is E-CONFIG.
HeadOrder head_order_from_name(std::string_view name);

/// Where every cell of a KV cache lies. Strides and offsets are in elements of the cache's element
/// type and serve K and V alike; the vector of a head is contiguous:
///   index of (block, slot, head, d) =
///     {key,value}_offset + block * block_stride + slot * slot_stride + head * head_stride + d
struct KvLayout {
  std::vector<int64_t> logical_shape;
  std::vector<int64_t> physical_shape;   // physical_shape[k] = logical_shape[stride_order[k]]
  std::vector<int> stride_order;         // physical dimension k = logical dimension stride_order[k]
  std::vector<int64_t> logical_strides;  // per logical dimension
  int64_t total_elements = 0;
  int64_t key_offset = 0;    // first element of the K plane of block 0 (and layer 0)
  int64_t value_offset = 0;  // likewise of V
  int64_t layer_stride = 0;  // 0 without a layer dimension
  int64_t block_stride = 0;
  int64_t slot_stride = 0;
  int64_t head_stride = 0;
  int padded_head_size = 0;  // D, or D + 4 for per-token-head
  /// Per-token-head only: byte offset (= D) of a cell's little-endian float32 scale from the cell's
  /// first byte; -1 otherwise. Own-cell form under both head orders (§5.5 [D]).
  int64_t scale_offset = -1;
  /// Scales of blocks of columns only (§5.7), in bytes: where those of a plane begin, behind all of
  /// its codes, 0 without; the strides between the scales of slots and of heads; how many a vector
  /// has. slot_stride and head_stride are then those of the codes alone.
  int64_t block_scale_offset = 0;
  int64_t block_scale_slot_stride = 0;
  int64_t block_scale_head_stride = 0;
  int block_scales = 0;
  /// Slots that a key and its value share only (§5.8): the bytes of a slot, which keys and values
  /// have the same strides in; value_offset is then where the value's part of a slot begins. There
  /// is one plane, so extent P of logical_shape is 1. Else 0.
  int slot_bytes = 0;
};

/// Logical shape [(L,) ...] as listed at CacheLayoutKind; num_layers = 0 means no layer dimension.
/// ix_planes (2 or 3) is used by kIx only. A block size that is no positive multiple of 16,
/// per-token-head on another layout than kTr or with D % 4 != 0 is E-CONFIG; a non-positive extent
/// is E-SHAPE.
std::vector<int64_t> kv_cache_shape(CacheLayoutKind kind, int64_t num_blocks, int block_size,
                                    int num_kv_heads, int head_size, bool per_token_head = false,
                                    int64_t num_layers = 0, int ix_planes = 2);

/// Permutation o with physical dimension k = logical dimension o[k].
std::vector<int> kv_cache_stride_order(CacheLayoutKind kind, HeadOrder order, bool with_layers);

KvLayout make_kv_layout(CacheLayoutKind kind, HeadOrder order, int64_t num_blocks, int block_size,
                        int num_kv_heads, int head_size, bool per_token_head = false,
                        int ix_planes = 2);

/// Of a cache of this type: packed codes are narrower than D, and their scales may stand behind all
/// codes of a plane (§5.5 to §5.7), or keys and values share slots (§5.8). E-CONFIG for a head size
/// that the type cannot store, and for scales inside of another layout than kTr.
KvLayout make_kv_layout(CacheLayoutKind kind, HeadOrder order, int64_t num_blocks, int block_size,
                        int num_kv_heads, int head_size, KvCacheDtype dtype, int ix_planes = 2);

/// The same with a leading logical layer dimension, num_layers >= 1.
KvLayout make_layered_kv_layout(CacheLayoutKind kind, HeadOrder order, int64_t num_layers,
                                int64_t num_blocks, int block_size, int num_kv_heads, int head_size,
                                bool per_token_head = false);

/// float32 view [NB, bs, Hk] of the scales inside a per-token-head cache, in float32 elements from
/// the start of the cache (§5.5).
struct ScaleView {
  int64_t key_offset = 0;
  int64_t value_offset = 0;
  int64_t block_stride = 0;
  int64_t slot_stride = 0;
  int64_t head_stride = 0;
};

/// A layout that is not per-token-head is E-CONFIG.
ScaleView per_token_head_scale_view(const KvLayout& layout);

/// [(L,) NB, bs, Lkv + R]; of packed entries [(L,) NB, bs, bytes of one], which have room for
/// their own Lkv and R only (E-SHAPE). The stride order is the identity, with layers too (§2.4).
std::vector<int64_t> mla_cache_shape(int64_t num_blocks, int block_size, int kv_lora_rank,
                                     int qk_rope_head_dim, KvCacheDtype dtype = KvCacheDtype::kAuto,
                                     int64_t num_layers = 0);

/// "Block size must be a multiple of 16." as E-CONFIG unless it is, and positive (§2.5).
void check_block_size(int64_t block_size);

}  // namespace attnbench
