// Keys and values differ in base, strides, scales and codes only; a Side holds these, and
// everything below it is written once.
#include "ops/cpu/attention/kv_tile.h"

#include <algorithm>
#include <span>

#include "core/numbers/dtype.h"
#include "kernels/common/packed_codes.cuh"
#include "ops/cpu/attention/tile_scores.h"
#include "ops/cpu/quantise/slot_vectors.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

/// One of K and V of one request and head, with what it takes to find a position.
struct Side {
  const attn::KvParams& kv;
  attn::Element element;
  const int* block_table;  // of paged ones
  attn::i64 block_stride;
  const char* base;
  attn::i64 token_stride;
  attn::i64 head_offset;
  const float* scales;  // per-token-head, or null
  const CodeTable& codes;
  int width;                     // D or Dv, from vector to vector of what is decoded
  int columns;                   // of them that lie at `base`: all but a rope part of keys
  bool whole_numbers;            // int8 whose scale is applied elsewhere
  const attn::u8* block_scales;  // of nvfp4
  const float* tensor_scale;     // [Hk] of nvfp4, or null: 1
  bool is_value;
};

/// Why not the code table: a conversion vectorises, a look-up does not.
void decode_i8(const char* source, int count, float* destination) {
  for (int d = 0; d < count; ++d) {
    destination[d] = static_cast<float>(static_cast<signed char>(source[d]));
  }
}

/// Decodes `count` consecutive slots, `first` being an element index.
void decode_slots(const Side& side, attn::i64 first, int count, const float* scale,
                  float* destination) {
  const attn::i64 size = element_size(side.element);
  for (int i = 0; i < count; ++i) {
    const char* source = side.base + (first + i * side.token_stride) * size;
    if (side.whole_numbers) {
      decode_i8(source, side.columns, destination);
    } else {
      decode_row(side.element, source, side.columns, side.codes, destination);
    }
    if (scale != nullptr) {
      const float factor = scale[i * side.kv.scale_slot_stride];
      for (int d = 0; d < side.columns; ++d) destination[d] *= factor;
    }
    destination += side.width;
  }
}

/// A vector of codes of 4 bits, rotated as they are stored.
void decode_int4(const char* source, int width, float stored_scale, float* destination) {
  const float scale = attn::int4_scale(stored_scale);
  const int zero_point = attn::int4_zero_point(stored_scale);
  for (int d = 0; d < width; ++d) {
    const int pair = static_cast<unsigned char>(source[d / 2]);
    const int code = d % 2 == 0 ? pair & 15 : pair >> 4;
    destination[d] = scale * static_cast<float>(code - zero_point);
  }
}

void decode_nvfp4(const Side& side, const char* source, attn::i64 block, int slot, int kv_head,
                  float* destination) {
  const attn::BlockScales& at = side.kv.block_scales;
  const int blocks = side.width / attn::kKvScaleBlock;
  const attn::u8* scales = side.block_scales + block * at.block_stride + kv_head * at.head_stride;
  const float tensor_scale = side.tensor_scale == nullptr ? 1.0f : side.tensor_scale[kv_head];
  for (int b = 0; b < blocks; ++b) {
    const attn::SwizzledScale place =
        side.is_value ? attn::swizzled_value_scale(slot, b, blocks) : attn::SwizzledScale{slot, b};
    const float scale = attn::e4m3_to_float(scales[place.slot * at.slot_stride + place.block]);
    for (int d = b * attn::kKvScaleBlock; d < (b + 1) * attn::kKvScaleBlock; ++d) {
      const int pair = static_cast<unsigned char>(source[d / 2]);
      const auto code = static_cast<attn::u8>(d % 2 == 0 ? pair & 15 : pair >> 4);
      destination[d] = attn::e2m1_to_float(code) * scale * tensor_scale;
    }
  }
}

/// One of the two parts of a slot that a key and its value share.
void decode_slot(const Side& side, const attn::u8* source, float* destination) {
  const attn::KvCoding coding = side.kv.coding;
  if (side.is_value) {
    decode_slot_value(source, side.width, attn::slot_value_bits(coding), destination);
  } else {
    decode_slot_key(source, side.width, attn::slot_key_bits(coding), side.kv.centroids,
                    destination);
  }
}

/// `count` slots of a page, from `slot` on, of packed codes.
void decode_packed(const Side& side, attn::i64 block, attn::i64 slot, int count, int kv_head,
                   const float* scale, float* destination) {
  for (int i = 0; i < count; ++i) {
    const char* source =
        side.base + block * side.block_stride + (slot + i) * side.token_stride + side.head_offset;
    if (attn::shares_slots(side.kv.coding)) {
      decode_slot(side, reinterpret_cast<const attn::u8*>(source), destination);
    } else if (side.kv.coding == attn::KvCoding::kInt4) {
      decode_int4(source, side.width, *(scale + i * side.kv.scale_slot_stride), destination);
    } else {
      decode_nvfp4(side, source, block, static_cast<int>(slot) + i, kv_head, destination);
    }
    destination += side.width;
  }
}

/// What all heads share of ragged keys, behind the columns of each, `first` being a row of the
/// batch.
void decode_ropes(const Side& side, attn::i64 first, int count, float* destination) {
  const attn::KvParams& kv = side.kv;
  const attn::i64 size = element_size(side.element);
  for (int i = 0; i < count; ++i) {
    const char* source =
        static_cast<const char*>(kv.rope) + (first + i) * kv.rope_token_stride * size;
    decode_row(side.element, source, kv.rope_size, side.codes, destination + side.columns);
    destination += side.width;
  }
}

/// Goes from page to page: within one the slots of a head are token_stride apart.
void gather(const Side& side, int request, int kv_head, std::int64_t begin, std::int64_t end,
            float* destination) {
  const attn::KvParams& kv = side.kv;
  if (side.block_table == nullptr) {
    const attn::i64 first = kv.kv_start_loc[request] + begin;
    const auto count = static_cast<int>(end - begin);
    decode_slots(side, first * side.token_stride + side.head_offset, count, nullptr, destination);
    if (side.columns < side.width) decode_ropes(side, first, count, destination);
    return;
  }
  const int* blocks = side.block_table + request * kv.block_table_stride;
  for (std::int64_t j = begin; j < end;) {
    const attn::i64 block = blocks[j / kv.block_size];
    const attn::i64 slot = j % kv.block_size;
    const auto count = static_cast<int>(std::min<std::int64_t>(kv.block_size - slot, end - j));
    const float* scale = side.scales == nullptr
                             ? nullptr
                             : side.scales + block * kv.scale_block_stride +
                                   slot * kv.scale_slot_stride + kv_head * kv.scale_head_stride;
    if (kv.coding != attn::KvCoding::kElements) {
      decode_packed(side, block, slot, count, kv_head, scale, destination);
    } else {
      decode_slots(side, block * side.block_stride + slot * side.token_stride + side.head_offset,
                   count, scale, destination);
    }
    destination += static_cast<std::int64_t>(count) * side.width;
    j += count;
  }
}

/// The value of each of the 256 codes, by a multiplication in f32 and, where the pipeline
/// dequantises to the query's type before it multiplies, one rounding (semantics §4.4).
void fill_codes(const attn::AttendParams& params, const float* scale, int kv_head,
                CodeTable& codes) {
  const auto dtype = static_cast<Dtype>(params.kv.element);
  if (dtype_size(dtype) != 1) return;
  const float factor = scale == nullptr ? 1.0f : scale[kv_head];
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    float value = load_float(dtype, &byte, 0) * factor;
    if (params.kv.round_dequantized != 0) {
      value = round_to(static_cast<Dtype>(params.query_element), value);
    }
    codes[static_cast<std::size_t>(code)] = value;
  }
}

}  // namespace

void prepare_codes(const attn::AttendParams& params, int kv_head, Scratch& scratch) {
  if (is_int8(params)) return;
  fill_codes(params, params.kv.k_scale, kv_head, scratch.key_codes);
  fill_codes(params, params.kv.v_scale, kv_head, scratch.value_codes);
}

void gather_keys(const attn::AttendParams& params, int request, int kv_head, std::int64_t begin,
                 std::int64_t end, Scratch& scratch) {
  const attn::KvParams& kv = params.kv;
  const Side side{kv,
                  kv.element,
                  kv.block_table,
                  kv.block_stride,
                  static_cast<const char*>(kv.key),
                  kv.token_stride_key,
                  kv_head * kv.head_stride_key,
                  is_int8(params) ? nullptr : kv.key_scales,  // int8: scales follow the product
                  scratch.key_codes,
                  params.head_size,
                  params.head_size - (kv.rope == nullptr ? 0 : kv.rope_size),
                  is_int8(params),
                  kv.block_scales.key,
                  kv.k_scale,
                  false};
  gather(side, request, kv_head, begin, end, scratch.key.data());
}

void gather_values(const attn::AttendParams& params, int request, int kv_head, std::int64_t begin,
                   std::int64_t end, Scratch& scratch) {
  const attn::KvParams& kv = params.kv;
  const bool is_apart = kv.value_block_table != nullptr;
  const attn::Element element = is_int8(params) ? params.int8.value_element : kv.element;
  const Side side{kv,
                  is_apart ? attn::Element::kF16 : element,
                  is_apart ? kv.value_block_table : kv.block_table,
                  is_apart ? kv.value_block_stride : kv.block_stride,
                  static_cast<const char*>(kv.value),
                  kv.token_stride_value,
                  kv_head * kv.head_stride_value,
                  kv.value_scales,
                  scratch.value_codes,
                  params.v_head_size,
                  params.v_head_size,
                  is_int8(params) && params.int8.value_element == attn::Element::kI8,
                  kv.block_scales.value,
                  kv.v_scale,
                  true};
  float* const values = scratch.value.data();
  gather(side, request, kv_head, begin, end, values);
  if (!is_apart || kv.v_scale == nullptr) return;
  // Of codes the table has it.
  for (float& value : std::span(values, static_cast<std::size_t>((end - begin) * side.width))) {
    value *= kv.v_scale[kv_head];
  }
}

}  // namespace attnbench::cpu
