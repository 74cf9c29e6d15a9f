// Scatter of new keys and values into the paged cache (semantics §5.1, §5.2, §5.5 to §5.8). A token
// is the unit of work; two tokens must not have one slot. Divisions and products with a reciprocal
// are where the definition has them, because codes on a tie depend on it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/numbers/dtype.h"
#include "kernels/common/numeric.cuh"
#include "kernels/common/packed_codes.cuh"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/quantise/fp8_code.h"
#include "ops/cpu/quantise/slot_vectors.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

/// Values of CacheWriteParams::quantise.
enum Quantise { kCopy = 0, kPerTensor = 1, kPerTokenHead = 2, kInt4 = 3, kNvfp4 = 4, kSlots = 5 };

/// One of key and value with its destination.
struct Stream {
  const void* source;
  attn::i64 token_stride;
  void* cache;
  const float* scale;   // [Hk], per-tensor fp8 and nvfp4
  float* token_scales;  // per-token-head
  attn::u8* block_scales;
  int width;  // D or Dv
  bool is_value;
};

attn::u8 encode_fp8(attn::Element element, float value) {
  return element == attn::Element::kE5M2 ? attn::e5m2_from_float(value)
                                         : attn::e4m3_from_float(value);
}

/// Codes by a given scale: a division, as §5.1 demands.
void store_scaled(attn::Element element, const float* values, int width, float scale,
                  attn::u8* destination) {
  for (int d = 0; d < width; ++d) destination[d] = encode_fp8(element, values[d] / scale);
}

/// Code of a value that has been scaled; int8 is rounded half away from zero or cut off (§5.5).
attn::u8 encode_token_head(const attn::CacheWriteParams& params, float value) {
  if (params.cache_element == attn::Element::kI8) {
    return static_cast<attn::u8>(params.int8_truncate != 0 ? attn::i8_truncate(value)
                                                           : attn::i8_half_away(value));
  }
  return attn::e4m3_from_float(value);  // saturates at 448
}

/// Returns the scale of the vector, max|x| / QMAX with the least value 1e-6.
float store_token_head(const attn::CacheWriteParams& params, const float* values, int width,
                       attn::u8* destination) {
  const float max_code = params.cache_element == attn::Element::kI8 ? 127.0f : 448.0f;
  float largest = 0.0f;
  for (int d = 0; d < width; ++d) largest = std::max(largest, std::fabs(values[d]));
  const float scale = std::max(largest * (1.0f / max_code), 1e-6f);
  const float inverse = 1.0f / scale;
  for (int d = 0; d < width; ++d) destination[d] = encode_token_head(params, values[d] * inverse);
  return scale;
}

/// Codes of 4 bits of a vector, which is rotated in place; returns the scale with its zero point.
float store_int4(const attn::CacheWriteParams& params, float* values, int width,
                 attn::u8* destination) {
  rotate_head(values, width, false);
  const auto dtype = static_cast<Dtype>(params.source_element);
  float least = std::numeric_limits<float>::infinity();
  float most = -least;
  for (int d = 0; d < width; ++d) {
    values[d] = round_to(dtype, values[d]);
    least = std::fmin(least, values[d]);
    most = std::fmax(most, values[d]);
  }
  const float scale = std::fmax((most - least) * (1.0f / 15.0f), 1e-6f);
  const int zero_point = attn::int4_code(-least / scale);
  const float inverse = 1.0f / scale;
  const auto code_of = [&](float value) {
    const float scaled = value * inverse;
    return attn::int4_code(scaled + static_cast<float>(zero_point));
  };
  for (int d = 0; d < width; d += 2) {
    destination[d / 2] = static_cast<attn::u8>(code_of(values[d]) | code_of(values[d + 1]) << 4);
  }
  return attn::int4_stored_scale(scale, zero_point);
}

/// Codes and block scales of a vector of the cell; `scale` is that of the tensor.
void store_nvfp4(const attn::CacheWriteParams& params, const Stream& stream, attn::i64 block,
                 attn::i64 offset, int head, const float* values, attn::u8* codes) {
  const attn::BlockScales& at = params.block_scales;
  const int blocks = stream.width / attn::kKvScaleBlock;
  attn::u8* scales = stream.block_scales + block * at.block_stride + head * at.head_stride;
  const float global_scale = 1.0f / stream.scale[head];
  for (int b = 0; b < blocks; ++b) {
    const attn::u8 code =
        quantise_nvfp4_block(values + b * attn::kKvScaleBlock, global_scale, codes + b * 8);
    const auto slot = static_cast<int>(offset);
    const attn::SwizzledScale place = stream.is_value ? attn::swizzled_value_scale(slot, b, blocks)
                                                      : attn::SwizzledScale{slot, b};
    scales[place.slot * at.slot_stride + place.block] = code;
  }
}

/// Writes one head of one token to its cell: block, offset in the block, head.
void write_head(const attn::CacheWriteParams& params, const Stream& stream, attn::i64 token,
                attn::i64 slot, int head, float* values) {
  const attn::i64 block = slot / params.block_size;
  const attn::i64 offset = slot % params.block_size;
  const auto dtype = static_cast<Dtype>(params.source_element);
  const char* source = static_cast<const char*>(stream.source) +
                       (token * stream.token_stride + std::int64_t{head} * stream.width) *
                           element_size(params.source_element);
  const attn::i64 cell =
      block * params.block_stride + offset * params.slot_stride + head * params.head_stride;
  char* destination = static_cast<char*>(stream.cache) + cell * element_size(params.cache_element);
  if (params.quantise == kCopy) {
    std::memcpy(destination, source,
                static_cast<std::size_t>(stream.width * element_size(params.cache_element)));
    return;
  }
  load_floats(dtype, source, stream.width, values);
  auto* codes = reinterpret_cast<attn::u8*>(destination);
  if (params.quantise == kPerTensor) {
    store_scaled(params.cache_element, values, stream.width, stream.scale[head], codes);
  } else if (params.quantise == kNvfp4) {
    store_nvfp4(params, stream, block, offset, head, values, codes);
  } else if (params.quantise == kSlots && stream.is_value) {
    encode_slot_value(values, stream.width, attn::slot_value_bits(params.coding), codes);
  } else if (params.quantise == kSlots) {
    encode_slot_key(values, stream.width, attn::slot_key_bits(params.coding), params.centroids,
                    codes);
  } else {
    stream.token_scales[block * params.scale_block_stride + offset * params.scale_slot_stride +
                        head * params.scale_head_stride] =
        params.quantise == kInt4 ? store_int4(params, values, stream.width, codes)
                                 : store_token_head(params, values, stream.width, codes);
  }
}

}  // namespace

void write_cache(const attn::CacheWriteParams& params, Workers& workers) {
  const Stream streams[] = {
      {params.key, params.key_token_stride, params.key_cache, params.k_scale, params.key_scales,
       params.block_scales.key, params.head_size, false},
      {params.value, params.value_token_stride, params.value_cache, params.v_scale,
       params.value_scales, params.block_scales.value, params.v_head_size, true}};
  workers.pool.parallel_for(params.num_slots, [&](std::int64_t token, int thread) {
    const attn::i64 slot = params.slot_mapping[token];
    if (slot < 0) return;
    Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
    scratch.reserve(params.head_size, params.v_head_size, 0);
    for (int head = 0; head < params.num_kv_heads; ++head) {
      for (const Stream& stream : streams) {
        write_head(params, stream, token, slot, head, scratch.line.data());
      }
    }
  });
}

}  // namespace attnbench::cpu
