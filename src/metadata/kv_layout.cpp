// Shapes and strides of cache layouts. A layout is given once, by its logical shape and stride
// order; strides, offsets and views follow from these two, so they cannot disagree.
#include "metadata/kv_layout.h"

#include <utility>

#include "core/error.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

constexpr int kBlockSizeMultiple = 16;
// Elements that hold one float32 scale: 4 / sizeof(element), and the element has one byte.
constexpr int kScalePad = 4;

/// Logical positions of the dimensions, without a layer dimension.
struct DimIndex {
  size_t plane, block, slot, head;
};

DimIndex dim_index(CacheLayoutKind kind) {
  switch (kind) {
    case CacheLayoutKind::kFa:
      return {.plane = 0, .block = 1, .slot = 2, .head = 3};
    case CacheLayoutKind::kIx:
      return {.plane = 0, .block = 1, .slot = 3, .head = 2};
    case CacheLayoutKind::kTr:
      return {.plane = 1, .block = 0, .slot = 2, .head = 3};
  }
  fail(ErrorKind::kInternal, "unknown cache layout");
}

void check_extent(int64_t extent, const char* name) {
  if (extent < 1) fail(ErrorKind::kShape, "{}: expected at least 1, got {}", name, extent);
}

void check_per_token_head(CacheLayoutKind kind, int head_size) {
  if (kind != CacheLayoutKind::kTr) {
    fail(ErrorKind::kConfig, "per-token-head KV cache: expected the TRITON_ATTN layout");
  }
  if (head_size % kScalePad != 0) {
    fail(ErrorKind::kConfig, "per-token-head KV cache requires head_size % 4 == 0, got {}",
         head_size);
  }
}

KvLayout lay_out(CacheLayoutKind kind, HeadOrder order, std::vector<int64_t> shape,
                 bool with_layers, int head_size, bool per_token_head) {
  KvLayout layout;
  layout.logical_shape = std::move(shape);
  layout.stride_order = kv_cache_stride_order(kind, order, with_layers);
  const size_t rank = layout.logical_shape.size();
  layout.physical_shape.resize(rank);
  layout.logical_strides.resize(rank);
  int64_t stride = 1;
  for (size_t k = rank; k-- > 0;) {
    const auto dim = static_cast<size_t>(layout.stride_order[k]);
    layout.physical_shape[k] = layout.logical_shape[dim];
    layout.logical_strides[dim] = stride;
    stride = checked_mul(stride, layout.logical_shape[dim], "elements of the KV cache");
  }
  layout.total_elements = stride;
  const DimIndex dims = dim_index(kind);
  const size_t first = with_layers ? 1 : 0;
  layout.value_offset = layout.logical_strides[first + dims.plane];
  layout.layer_stride = with_layers ? layout.logical_strides[0] : 0;
  layout.block_stride = layout.logical_strides[first + dims.block];
  layout.slot_stride = layout.logical_strides[first + dims.slot];
  layout.head_stride = layout.logical_strides[first + dims.head];
  layout.padded_head_size = static_cast<int>(layout.logical_shape.back());
  if (per_token_head) layout.scale_offset = head_size;
  return layout;
}

/// §5.8: one plane of slots, [NB, 1, bs, Hk, slot] in either order of heads and slots.
KvLayout make_slot_layout(CacheLayoutKind kind, HeadOrder order, int64_t num_blocks, int block_size,
                          int num_kv_heads, int head_size, KvCacheDtype dtype) {
  if (kind != CacheLayoutKind::kTr) {
    fail(ErrorKind::kConfig, "{} KV cache: expected the TRITON_ATTN layout", to_string(dtype));
  }
  const int slot_bytes = 2 * stored_width(dtype, head_size);
  auto shape = kv_cache_shape(kind, num_blocks, block_size, num_kv_heads, slot_bytes);
  shape[dim_index(kind).plane] = 1;
  KvLayout layout = lay_out(kind, order, std::move(shape), false, slot_bytes, false);
  layout.value_offset = slot_key_bytes(dtype, head_size);
  layout.slot_bytes = slot_bytes;
  return layout;
}

}  // namespace

std::span<const EnumRow<CacheLayoutKind>> enum_rows(CacheLayoutKind) {
  using enum CacheLayoutKind;
  static constexpr auto kRows = every_value<EnumRow<CacheLayoutKind>>({
      {kFa, "FA", "[2, NB, bs, Hk, D] of FLASH_ATTN"},
      {kIx, "IX", "[P, NB, Hk, bs, D] of FLASH_ATTN_IX"},
      {kTr, "TR", "[NB, 2, bs, Hk, Dp] of TRITON_ATTN"},
  });
  return kRows;
}

HeadOrder head_order_from_name(std::string_view name) {
  if (name == "NHD") return HeadOrder::kNhd;
  if (name == "HND") return HeadOrder::kHnd;
  fail(ErrorKind::kConfig, "kv_cache layout: expected NHD or HND, got '{}'", name);
}

void check_block_size(int64_t block_size) {
  if (block_size < 1 || block_size % kBlockSizeMultiple != 0) {
    fail(ErrorKind::kConfig, "Block size must be a multiple of 16. block_size is {}", block_size);
  }
}

std::vector<int64_t> kv_cache_shape(CacheLayoutKind kind, int64_t num_blocks, int block_size,
                                    int num_kv_heads, int head_size, bool per_token_head,
                                    int64_t num_layers, int ix_planes) {
  check_block_size(block_size);
  check_extent(num_blocks, "num_blocks");
  check_extent(num_kv_heads, "num_kv_heads");
  check_extent(head_size, "head_size");
  if (num_layers < 0) fail(ErrorKind::kShape, "num_layers: expected >= 0, got {}", num_layers);
  if (per_token_head) check_per_token_head(kind, head_size);
  std::vector<int64_t> shape;
  if (num_layers > 0) shape.push_back(num_layers);
  const int64_t padded = head_size + (per_token_head ? kScalePad : 0);
  switch (kind) {
    case CacheLayoutKind::kFa:
      shape.insert(shape.end(), {2, num_blocks, block_size, num_kv_heads, padded});
      break;
    case CacheLayoutKind::kIx:
      if (ix_planes != 2 && ix_planes != 3) {
        fail(ErrorKind::kConfig, "ix_planes: expected 2 or 3, got {}", ix_planes);
      }
      shape.insert(shape.end(), {ix_planes, num_blocks, num_kv_heads, block_size, padded});
      break;
    case CacheLayoutKind::kTr:
      shape.insert(shape.end(), {num_blocks, 2, block_size, num_kv_heads, padded});
      break;
  }
  return shape;
}

std::vector<int> kv_cache_stride_order(CacheLayoutKind kind, HeadOrder order, bool with_layers) {
  const bool nhd = order == HeadOrder::kNhd;
  if (!with_layers) {
    // Why: IX is head-major in its logical shape already, so neither setting permutes it.
    if (nhd || kind == CacheLayoutKind::kIx) return {0, 1, 2, 3, 4};
    return {0, 1, 3, 2, 4};
  }
  if (kind == CacheLayoutKind::kTr) {
    return nhd ? std::vector<int>{1, 0, 2, 3, 4, 5} : std::vector<int>{1, 2, 4, 0, 3, 5};
  }
  return nhd ? std::vector<int>{2, 0, 1, 3, 4, 5} : std::vector<int>{2, 4, 0, 1, 3, 5};
}

KvLayout make_kv_layout(CacheLayoutKind kind, HeadOrder order, int64_t num_blocks, int block_size,
                        int num_kv_heads, int head_size, bool per_token_head, int ix_planes) {
  auto shape = kv_cache_shape(kind, num_blocks, block_size, num_kv_heads, head_size, per_token_head,
                              0, ix_planes);
  return lay_out(kind, order, std::move(shape), false, head_size, per_token_head);
}

KvLayout make_kv_layout(CacheLayoutKind kind, HeadOrder order, int64_t num_blocks, int block_size,
                        int num_kv_heads, int head_size, KvCacheDtype dtype, int ix_planes) {
  const std::string misfit = stored_size_misfit(dtype, head_size);
  if (!misfit.empty()) fail(ErrorKind::kConfig, "{}, got {}", misfit, head_size);
  if (shares_slots(dtype)) {
    return make_slot_layout(kind, order, num_blocks, block_size, num_kv_heads, head_size, dtype);
  }
  const KvFormat& format = kv_format(dtype);
  const int codes = head_size / format.columns_of_code;
  if (format.scales != KvScales::kBlocks) {
    return make_kv_layout(kind, order, num_blocks, block_size, num_kv_heads, codes,
                          is_per_token_head(dtype), ix_planes);
  }
  if (kind != CacheLayoutKind::kTr) {
    fail(ErrorKind::kConfig, "{} KV cache: expected the TRITON_ATTN layout", format.name);
  }
  KvLayout layout = make_kv_layout(kind, order, num_blocks, block_size, num_kv_heads,
                                   stored_width(dtype, head_size), false, ix_planes);
  const bool nhd = order == HeadOrder::kNhd;
  layout.block_scales = stored_width(dtype, head_size) - codes;
  layout.block_scale_offset = int64_t{block_size} * num_kv_heads * codes;
  const auto set_strides = [&](int64_t width, int64_t& slot, int64_t& head) {
    slot = nhd ? num_kv_heads * width : width;
    head = nhd ? width : block_size * width;
  };
  set_strides(codes, layout.slot_stride, layout.head_stride);
  set_strides(layout.block_scales, layout.block_scale_slot_stride, layout.block_scale_head_stride);
  return layout;
}

KvLayout make_layered_kv_layout(CacheLayoutKind kind, HeadOrder order, int64_t num_layers,
                                int64_t num_blocks, int block_size, int num_kv_heads, int head_size,
                                bool per_token_head) {
  check_extent(num_layers, "num_layers");
  auto shape = kv_cache_shape(kind, num_blocks, block_size, num_kv_heads, head_size, per_token_head,
                              num_layers);
  return lay_out(kind, order, std::move(shape), true, head_size, per_token_head);
}

ScaleView per_token_head_scale_view(const KvLayout& layout) {
  if (layout.scale_offset < 0) {
    fail(ErrorKind::kConfig, "scale view: expected a per-token-head layout");
  }
  constexpr int64_t kElementsPerScale = 4;
  // Why: every stride is a multiple of D + 4 and D % 4 == 0, so all divisions are exact.
  return {.key_offset = (layout.key_offset + layout.scale_offset) / kElementsPerScale,
          .value_offset = (layout.value_offset + layout.scale_offset) / kElementsPerScale,
          .block_stride = layout.block_stride / kElementsPerScale,
          .slot_stride = layout.slot_stride / kElementsPerScale,
          .head_stride = layout.head_stride / kElementsPerScale};
}

std::vector<int64_t> mla_cache_shape(int64_t num_blocks, int block_size, int kv_lora_rank,
                                     int qk_rope_head_dim, KvCacheDtype dtype, int64_t num_layers) {
  check_block_size(block_size);
  check_extent(num_blocks, "num_blocks");
  check_extent(kv_lora_rank, "kv_lora_rank");
  check_extent(qk_rope_head_dim, "qk_rope_head_dim");
  const std::optional<PackedEntry>& packed = kv_format(dtype).packed;
  if (packed &&
      (kv_lora_rank != packed->kv_lora_rank || qk_rope_head_dim != packed->qk_rope_head_dim)) {
    fail(ErrorKind::kShape, "{}: expected kv_lora_rank {} and qk_rope_head_dim {}, got {} and {}",
         to_string(dtype), packed->kv_lora_rank, packed->qk_rope_head_dim, kv_lora_rank,
         qk_rope_head_dim);
  }
  std::vector<int64_t> shape;
  if (num_layers > 0) shape.push_back(num_layers);
  const int64_t entry = packed ? packed->bytes : int64_t{kv_lora_rank} + qk_rope_head_dim;
  shape.insert(shape.end(), {num_blocks, block_size, entry});
  return shape;
}

}  // namespace attnbench
