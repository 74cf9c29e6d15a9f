// Apart from the kernels and the CPU operations, which are judged by this: only the rounding of a
// single value to e4m3 and f16 is shared, and the centroids, which are part of the definition. The
// arithmetic of a write is float32, one operation after the other in the order of §5.8; the way
// back is float64, since what a cache means has no rounding of its own.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/numbers/kv_format.h"
#include "core/system/parallel.h"
#include "inputs/cache/stored_packed.h"
#include "kernels/common/numeric.cuh"

namespace attnbench {
namespace {

constexpr std::int64_t kSlotRowsPerTask = 64;

/// store(values, codes, read) for every position and head, on all cores: the elements as float32,
/// the bytes of the vector, and what they read as.
template <typename Store>
PackedVectors store_vectors(const Tensor& source, std::int64_t bytes, Store store) {
  const std::int64_t width = source.dim(2);
  const std::int64_t heads = source.dim(1);
  const auto element = static_cast<std::int64_t>(dtype_size(source.dtype()));
  PackedVectors stored{
      Tensor(Dtype::kU8, {source.dim(0), heads, bytes}), {}, Tensor(Dtype::kF32, source.shape())};
  for_each_chunk(source.dim(0), kSlotRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
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

/// The product with the matrix of Hadamard in passes over columns 1, 2, 4, ... apart.
template <typename Number>
void multiply_hadamard(std::vector<Number>& x) {
  for (std::size_t apart = 1; apart < x.size(); apart *= 2) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      if ((i & apart) != 0) continue;
      const Number a = x[i];
      const Number b = x[i + apart];
      x[i] = a + b;
      x[i + apart] = a - b;
    }
  }
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
  multiply_hadamard(key);
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
                         multiply_hadamard(rotated);
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
          if (x < least) least = x;
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
