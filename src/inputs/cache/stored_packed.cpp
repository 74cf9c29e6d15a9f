// Apart from the kernels and the CPU operations, which are judged by this: the signs come from the
// generator itself and not from the table, and only the rounding of a single value to e4m3 or e2m1
// is shared. The arithmetic is float32, one operation after the other in the order of §5.6 and
// §5.7; only the way back is float64, since what a cache means has no rounding of its own.
#include "inputs/cache/stored_packed.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>

#include "core/system/parallel.h"
#include "kernels/common/numeric.cuh"
#include "kernels/params.h"

namespace attnbench {
namespace {

constexpr std::int64_t kPackedRowsPerTask = 64;

/// torch.bernoulli(torch.full((d,), 0.5)) of a generator with the seed of upstream, as +1 and -1:
/// each draw is 24 bits of the Mersenne twister.
std::vector<float> rotation_signs(std::size_t size) {
  std::mt19937 random(0x9E3779B9u);
  std::vector<float> signs(size);
  for (float& sign : signs) {
    const double uniform = static_cast<double>(random() & 0xFFFFFFu) / 16777216.0;
    sign = uniform < 0.5 ? 1.0f : -1.0f;
  }
  return signs;
}

/// The product with the matrix of Hadamard in passes over columns 1, 2, 4, ... apart.
template <typename Number>
void transform(std::vector<Number>& x) {
  for (std::size_t apart = 1; apart < x.size(); apart *= 2) {
    for (std::size_t first = 0; first < x.size(); first += 2 * apart) {
      for (std::size_t i = first; i < first + apart; ++i) {
        const Number lower = x[i];
        const Number upper = x[i + apart];
        x[i] = lower + upper;
        x[i + apart] = lower - upper;
      }
    }
  }
}

void set_nibble(std::uint8_t* codes, std::size_t column, int code) {
  std::uint8_t& byte = codes[column / 2];
  byte = static_cast<std::uint8_t>(column % 2 == 0 ? (byte & 0xF0) | code
                                                   : (byte & 0x0F) | (code << 4));
}

/// Half away from zero, then into 0 to 15; NaN gives 0.
int nearest_of_16(float x) {
  if (!(x == x)) return 0;
  const float away = std::trunc(x >= 0.0f ? x + 0.5f : x - 0.5f);
  return static_cast<int>(std::clamp(away, 0.0f, 15.0f));
}

/// Codes of a rotated vector; returns the scale as it is stored.
float quantise_rotated(const std::vector<float>& rotated, std::uint8_t* codes) {
  float least = std::numeric_limits<float>::infinity();
  float most = -least;
  for (const float x : rotated) {
    if (x < least) least = x;
    if (x > most) most = x;
  }
  // Why a product: upstream's compiler multiplies by the rounded reciprocal of a constant (§5.5).
  const float scale = std::fmax((most - least) * (1.0f / 15.0f), 1e-6f);
  const int zero_point = nearest_of_16(-least / scale);
  const float inverse = 1.0f / scale;
  for (std::size_t d = 0; d < rotated.size(); ++d) {
    const float scaled = rotated[d] * inverse;
    set_nibble(codes, d, nearest_of_16(scaled + static_cast<float>(zero_point)));
  }
  std::uint32_t bits = 0;
  std::memcpy(&bits, &scale, sizeof bits);
  bits = (bits & ~15u) | static_cast<std::uint32_t>(zero_point);
  float stored = 0.0f;
  std::memcpy(&stored, &bits, sizeof stored);
  return stored;
}

/// What codes and a stored scale mean: rotated back.
void read_rotated(const std::uint8_t* codes, float stored, const std::vector<float>& signs,
                  float* destination) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &stored, sizeof bits);
  const int zero_point = static_cast<int>(bits & 15u);
  bits &= ~15u;
  float scale = 0.0f;
  std::memcpy(&scale, &bits, sizeof scale);
  std::vector<double> values(signs.size());
  for (std::size_t d = 0; d < values.size(); ++d) {
    const int code = d % 2 == 0 ? codes[d / 2] & 15 : codes[d / 2] >> 4;
    values[d] = static_cast<double>(scale) * (code - zero_point);
  }
  transform(values);
  for (std::size_t d = 0; d < values.size(); ++d) {
    destination[d] = static_cast<float>(values[d] * static_cast<double>(signs[d]) /
                                        static_cast<double>(values.size()));
  }
}

/// Codes of 16 columns times the reciprocal of k_scale; returns the code of their scale.
std::uint8_t quantise_block(const float* values, float scale, std::uint8_t* codes) {
  float largest = 0.0f;
  for (int i = 0; i < attn::kKvScaleBlock; ++i) {
    if (std::fabs(values[i]) > largest) largest = std::fabs(values[i]);
  }
  const float global = 1.0f / scale;
  const std::uint8_t scale_code = attn::e4m3_from_float(global * (largest / 6.0f));
  const float block_scale = attn::e4m3_to_float(scale_code);
  const float factor = block_scale == 0.0f ? 0.0f : 1.0f / (block_scale / global);
  for (int i = 0; i < attn::kKvScaleBlock; ++i) {
    const float scaled = values[i] == 0.0f ? values[i] : values[i] * factor;
    set_nibble(codes, static_cast<std::size_t>(i), attn::e2m1_from_float(scaled));
  }
  return scale_code;
}

/// store(cell, values) for every position and head, on all cores, with the elements as float32.
template <typename Store>
void for_each_vector(const Tensor& source, Store store) {
  const std::int64_t width = source.dim(2);
  const auto element = static_cast<std::int64_t>(dtype_size(source.dtype()));
  for_each_chunk(source.dim(0), kPackedRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(width));
    for (std::int64_t cell = begin * source.dim(1); cell < end * source.dim(1); ++cell) {
      load_floats(source.dtype(), source.bytes() + cell * width * element, width, values.data());
      store(cell, values);
    }
  });
}

}  // namespace

PackedVectors store_int4(const Tensor& source) {
  const std::int64_t width = source.dim(2);
  PackedVectors stored{Tensor(Dtype::kU8, {source.dim(0), source.dim(1), width / 2}),
                       Tensor(Dtype::kF32, {source.dim(0), source.dim(1)}),
                       Tensor(Dtype::kF32, source.shape())};
  const std::vector<float> signs = rotation_signs(static_cast<std::size_t>(width));
  for_each_vector(source, [&](std::int64_t cell, std::vector<float>& values) {
    for (std::size_t d = 0; d < values.size(); ++d) values[d] *= signs[d];
    transform(values);
    for (float& value : values) value = round_to(source.dtype(), value);
    std::uint8_t* codes = stored.codes.data<std::uint8_t>() + cell * (width / 2);
    const float scale = quantise_rotated(values, codes);
    stored.scales.data<float>()[cell] = scale;
    read_rotated(codes, scale, signs, stored.dequantized.data<float>() + cell * width);
  });
  return stored;
}

Tensor read_rotated_query(const Tensor& query) {
  const auto width = static_cast<std::size_t>(query.dim(2));
  const std::vector<float> signs = rotation_signs(width);
  Tensor rounded(query.dtype(), query.shape());
  Tensor read(Dtype::kF32, query.shape());
  const std::int64_t heads = query.dim(1);
  for_each_chunk(query.dim(0), kPackedRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> rotated(width);
    std::vector<double> back(width);
    for (std::int64_t cell = begin * heads; cell < end * heads; ++cell) {
      const std::int64_t first = cell * static_cast<std::int64_t>(width);
      for (std::size_t d = 0; d < width; ++d) {
        rotated[d] = query.at(first + static_cast<std::int64_t>(d)) * signs[d];
      }
      transform(rotated);
      for (std::size_t d = 0; d < width; ++d) {
        const std::int64_t at = first + static_cast<std::int64_t>(d);
        rounded.set(at, rotated[d]);
        back[d] = static_cast<double>(rounded.at(at));
      }
      transform(back);
      for (std::size_t d = 0; d < width; ++d) {
        const double value = back[d] * static_cast<double>(signs[d]) / static_cast<double>(width);
        read.set(first + static_cast<std::int64_t>(d), static_cast<float>(value));
      }
    }
  });
  return read;
}

PackedVectors store_nvfp4(const Tensor& source, const std::vector<float>& scale) {
  const std::int64_t width = source.dim(2);
  const std::int64_t blocks = width / attn::kKvScaleBlock;
  PackedVectors stored{Tensor(Dtype::kU8, {source.dim(0), source.dim(1), width / 2}),
                       Tensor(Dtype::kE4M3, {source.dim(0), source.dim(1), blocks}),
                       Tensor(Dtype::kF32, source.shape())};
  for_each_vector(source, [&](std::int64_t cell, const std::vector<float>& values) {
    const auto head = static_cast<std::size_t>(cell % source.dim(1));
    const float of_head = scale.size() == 1 ? scale[0] : scale[head];
    std::uint8_t* codes = stored.codes.data<std::uint8_t>() + cell * (width / 2);
    float* read = stored.dequantized.data<float>() + cell * width;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t first = block * attn::kKvScaleBlock;
      const std::uint8_t code = quantise_block(values.data() + first, of_head, codes + first / 2);
      stored.scales.bytes()[cell * blocks + block] = std::byte{code};
      for (std::int64_t d = first; d < first + attn::kKvScaleBlock; ++d) {
        const int pair = codes[d / 2];
        const auto nibble = static_cast<std::uint8_t>(d % 2 == 0 ? pair & 15 : pair >> 4);
        read[d] = attn::e2m1_to_float(nibble) * attn::e4m3_to_float(code) * of_head;
      }
    }
  });
  return stored;
}

}  // namespace attnbench
