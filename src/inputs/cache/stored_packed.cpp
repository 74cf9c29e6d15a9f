// Apart from the kernels and the CPU operations, which are judged by this: the signs come from the
// generator itself and not from the table, and only the rounding of a single value to e4m3, e2m1
// or f16 and the centroids are shared. The arithmetic is float32, one operation after the other in
// the order of §5.6 to §5.8; only the way back is float64, since what a cache means has no rounding
// of its own.
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

/// store(values, codes, read) for every position and head, on all cores: the elements as float32,
/// the bytes of the vector, and what they read as.
template <typename Store>
PackedVectors store_vectors(const Tensor& source, std::int64_t bytes, Store store) {
  const std::int64_t width = source.dim(2);
  const std::int64_t heads = source.dim(1);
  const auto element = static_cast<std::int64_t>(dtype_size(source.dtype()));
  PackedVectors stored{
      Tensor(Dtype::kU8, {source.dim(0), heads, bytes}), {}, Tensor(Dtype::kF32, source.shape())};
  for_each_chunk(source.dim(0), kPackedRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(width));
    for (std::int64_t cell = begin * heads; cell < end * heads; ++cell) {
      load_floats(source.dtype(), source.bytes() + cell * width * element, width, values.data());
      store(values, stored.codes.data<std::uint8_t>() + cell * bytes,
            stored.dequantized.data<float>() + cell * width);
    }
  });
  return stored;
}

/// Codes one behind the other, bit by bit from the lowest one of the first byte on.
void pack_bits(const std::vector<int>& codes, int bits, std::uint8_t* bytes) {
  const std::size_t total = codes.size() * static_cast<std::size_t>(bits);
  std::fill_n(bytes, total / 8, std::uint8_t{0});
  for (std::size_t at = 0; at < total; ++at) {
    const std::size_t per_code = static_cast<std::size_t>(bits);
    const int bit = codes[at / per_code] >> (at % per_code) & 1;
    bytes[at / 8] = static_cast<std::uint8_t>(bytes[at / 8] | bit << (at % 8));
  }
}

/// Little-endian f16; returns what it reads as.
double put_f16(float x, std::uint8_t* bytes) {
  const std::uint16_t code = attn::f16_from_float(x);
  bytes[0] = static_cast<std::uint8_t>(code & 0xFF);
  bytes[1] = static_cast<std::uint8_t>(code >> 8);
  return static_cast<double>(attn::f16_to_float(code));
}

/// Root of the sum of squares, which is one of pairs 1, 2, 4, ... apart.
float norm_of(const std::vector<float>& x) {
  std::vector<float> sums(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) sums[i] = x[i] * x[i];
  for (std::size_t apart = 1; apart < sums.size(); apart *= 2) {
    for (std::size_t i = 0; i + apart < sums.size(); i += 2 * apart) sums[i] += sums[i + apart];
  }
  return std::sqrt(sums[0]);
}

/// Of the centroid that y is nearest to; midway between two it is the upper one. NaN gives 0.
int nearest_centroid(const std::vector<float>& centroids, float y) {
  int index = 0;
  for (std::size_t i = 1; i < centroids.size(); ++i) {
    const float midway = (centroids[i - 1] + centroids[i]) / 2.0f;
    if (y >= midway) index = static_cast<int>(i);
  }
  return index;
}

/// What indices and a norm mean: the centroids as a vector of length 1, rotated back.
void read_rotated_key(const std::vector<float>& centroids, const std::vector<int>& indices,
                      double norm, float* read) {
  std::vector<double> key(indices.size());
  double squares = 0;
  for (std::size_t d = 0; d < key.size(); ++d) {
    key[d] = static_cast<double>(centroids[static_cast<std::size_t>(indices[d])]);
    squares += key[d] * key[d];
  }
  transform(key);
  const double factor =
      norm / std::sqrt(squares + 1e-16) / std::sqrt(static_cast<double>(key.size()));
  for (std::size_t d = 0; d < key.size(); ++d) read[d] = static_cast<float>(key[d] * factor);
}

PackedVectors store_e4m3_keys(const Tensor& source) {
  return store_vectors(source, source.dim(2),
                       [](const std::vector<float>& values, std::uint8_t* codes, float* read) {
                         for (std::size_t d = 0; d < values.size(); ++d) {
                           codes[d] = attn::e4m3_from_float(values[d]);  // saturates at 448
                           read[d] = attn::e4m3_to_float(codes[d]);
                         }
                       });
}

PackedVectors store_rotated_keys(const Tensor& source, const SlotCodes& slot) {
  const std::int64_t code_bytes = source.dim(2) * slot.key_bits / 8;
  const std::vector<float> centroids = key_centroids(slot, static_cast<int>(source.dim(2)));
  return store_vectors(source, code_bytes + 2,
                       [&](const std::vector<float>& values, std::uint8_t* codes, float* read) {
                         const float norm = norm_of(values);
                         std::vector<float> rotated(values.size());
                         for (std::size_t d = 0; d < values.size(); ++d)
                           rotated[d] = values[d] / (norm + 1e-8f);
                         transform(rotated);
                         const float unit = 1.0f / std::sqrt(static_cast<float>(values.size()));
                         std::vector<int> indices(values.size());
                         for (std::size_t d = 0; d < values.size(); ++d) {
                           indices[d] = nearest_centroid(centroids, rotated[d] * unit);
                         }
                         pack_bits(indices, slot.key_bits, codes);
                         read_rotated_key(centroids, indices, put_f16(norm, codes + code_bytes),
                                          read);
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

PackedVectors store_slot_keys(const Tensor& source, const SlotCodes& slot) {
  return slot.key_bits == 8 ? store_e4m3_keys(source) : store_rotated_keys(source, slot);
}

PackedVectors store_slot_values(const Tensor& source, const SlotCodes& slot) {
  const int last = (1 << slot.value_bits) - 1;
  const std::int64_t code_bytes = source.dim(2) * slot.value_bits / 8;
  return store_vectors(
      source, code_bytes + 4,
      [&](const std::vector<float>& values, std::uint8_t* codes, float* read) {
        float least = std::numeric_limits<float>::infinity();
        float most = -least;
        for (const float x : values) {
          if (x < least || (x == least && std::signbit(x))) least = x;  // -0 before 0, as upstream
          if (x > most) most = x;
        }
        // Why a product: upstream's compiler multiplies by the rounded reciprocal (§5.5).
        const float exact_step = (most - least) * (1.0f / static_cast<float>(last));
        const float step = exact_step > 1e-8f ? exact_step : 1e-8f;
        std::vector<int> steps(values.size());
        for (std::size_t d = 0; d < values.size(); ++d) {
          const float distance = (values[d] - least) / step + 0.5f;
          const float nearest = std::clamp(std::floor(distance), 0.0f, static_cast<float>(last));
          steps[d] = distance == distance ? static_cast<int>(nearest) : 0;
        }
        pack_bits(steps, slot.value_bits, codes);
        const double stored_step = put_f16(step, codes + code_bytes);
        const double stored_least = put_f16(least, codes + code_bytes + 2);
        for (std::size_t d = 0; d < values.size(); ++d) {
          read[d] = static_cast<float>(steps[d] * stored_step + stored_least);
        }
      });
}

}  // namespace attnbench
