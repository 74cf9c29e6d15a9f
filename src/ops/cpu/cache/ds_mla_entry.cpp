// Scales and k_pe go through memcpy, because an entry of 656 bytes may begin anywhere. The loops
// over a tile are plain, so that they become vector code.
#include "ops/cpu/cache/ds_mla_entry.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/numbers/dtype.h"
#include "kernels/params_mla.h"
#include "ops/cpu/quantise/fp8_code.h"

namespace attnbench::cpu {
namespace {

constexpr int kNumTiles = attn::kDsMlaLatent / attn::kDsMlaTile;
constexpr int kScaleOffset = attn::kDsMlaLatent;
constexpr int kRopeOffset = kScaleOffset + kNumTiles * static_cast<int>(sizeof(float));

/// Of the 128 values of a tile.
float tile_scale(const float* values) {
  float largest = 0.0f;
  // fmax passes NaN over, as on the GPU.
  for (int i = 0; i < attn::kDsMlaTile; ++i) largest = std::fmax(largest, std::fabs(values[i]));
  return std::max(largest / 448.0f, std::numeric_limits<float>::min());
}

constexpr int kModel1Tiles = attn::kModel1Latent / attn::kModel1Tile;

/// The exponent that a ue8m0 code holds: that of x, and one more unless x is a power of two.
std::uint8_t ue8m0_at_least(float x) {
  return static_cast<std::uint8_t>((std::bit_cast<std::uint32_t>(x) + 0x7FFFFFu) >> 23);
}

}  // namespace

void fill_e4m3_codes(CodeTable& codes) {
  for (int code = 0; code < 256; ++code) {
    codes[static_cast<std::size_t>(code)] = attn::e4m3_to_float(static_cast<attn::u8>(code));
  }
}

void write_ds_mla_entry(const float* kv_c, const void* k_pe, std::uint8_t* entry) {
  float scales[kNumTiles];
  for (int tile = 0; tile < kNumTiles; ++tile) {
    const float* values = kv_c + tile * attn::kDsMlaTile;
    std::uint8_t* codes = entry + tile * attn::kDsMlaTile;
    scales[tile] = tile_scale(values);
    for (int i = 0; i < attn::kDsMlaTile; ++i) codes[i] = encode_e4m3(values[i] / scales[tile]);
  }
  std::memcpy(entry + kScaleOffset, scales, sizeof(scales));
  std::memcpy(entry + kRopeOffset, k_pe, attn::kDsMlaRope * sizeof(std::uint16_t));
}

void read_ds_mla_entry(const std::uint8_t* entry, const CodeTable& codes, float* values) {
  float scales[kNumTiles];
  std::memcpy(scales, entry + kScaleOffset, sizeof(scales));
  for (int tile = 0; tile < kNumTiles; ++tile) {
    const float scale = scales[tile];
    for (int i = 0; i < attn::kDsMlaTile; ++i) values[i] = codes[entry[i]] * scale;
    for (int i = 0; i < attn::kDsMlaTile; ++i) {
      values[i] = attn::bf16_to_float(attn::bf16_from_float(values[i]));
    }
    entry += attn::kDsMlaTile;
    values += attn::kDsMlaTile;
  }
  load_floats(Dtype::kBF16, entry + kNumTiles * sizeof(float), attn::kDsMlaRope, values);
}

void write_model1_entry(const float* kv_c, const void* k_pe, std::uint8_t* data,
                        std::uint8_t* scales) {
  for (int tile = 0; tile < kModel1Tiles; ++tile) {
    const float* values = kv_c + tile * attn::kModel1Tile;
    float largest = 0.0f;
    // fmax passes NaN over, as on the GPU.
    for (int i = 0; i < attn::kModel1Tile; ++i) largest = std::fmax(largest, std::fabs(values[i]));
    scales[tile] = ue8m0_at_least(std::max(largest, 1e-4f) / 448.0f);
    const float scale = attn::ue8m0_to_float(scales[tile]);
    for (int i = 0; i < attn::kModel1Tile; ++i) {
      data[tile * attn::kModel1Tile + i] = encode_e4m3(values[i] / scale);
    }
  }
  scales[kModel1Tiles] = 0;
  std::memcpy(data + attn::kModel1Latent, k_pe, attn::kModel1Rope * sizeof(std::uint16_t));
}

void read_model1_entry(const std::uint8_t* data, const std::uint8_t* scales, const CodeTable& codes,
                       float* values) {
  for (int i = 0; i < attn::kModel1Latent; ++i) {
    const float scale = attn::ue8m0_to_float(scales[i / attn::kModel1Tile]);
    values[i] = attn::bf16_to_float(attn::bf16_from_float(codes[data[i]] * scale));
  }
  load_floats(Dtype::kBF16, data + attn::kModel1Latent, attn::kModel1Rope,
              values + attn::kModel1Latent);
}

}  // namespace attnbench::cpu
