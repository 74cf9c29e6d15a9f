// The two products of a tile of attention between matrices in shared memory: on the tensor cores
// (16-bit or int8 operands) or by plain f32 multiplications. The output stays in registers. Both
// kinds have multiply_scores(), add_values(), add_values_slowly() and for_each(), which general.cuh
// calls with barriers between them, and both keep to general_layout.cuh.
//
// Config, beside general.cuh's: kScore and kProbability, the elements of the operands.
#pragma once

#include "kernels/attention/general_layout.cuh"
#include "kernels/attention/general_tiles.cuh"
#include "kernels/ptx/mma_sync.cuh"

namespace attn {

/// The layout that a Config says, the same as the host's.
template <class Config>
constexpr GeneralLayout kGeneralLayout = general_layout(Config::kRowBlocks * 16, Config::kKeys,
                                                        Config::kHeadSize, Config::kVHeadSize,
                                                        size_of(Config::kScore),
                                                        size_of(Config::kProbability),
                                                        Config::kValueInKey);

/// Warp w does blocks w, w + 8 and on: of S pairs of a row block and 8 keys, of O 8 columns of all
/// rows. Why S is dealt out by both: key blocks may be fewer than warps. S goes through shared
/// memory, since the warps that compute O need the P of all keys.
template <class Config>
struct TensorProducts {
  static constexpr GeneralLayout kLayout = kGeneralLayout<Config>;
  static constexpr int kRowBlocks = Config::kRowBlocks;
  static constexpr int kWarps = kGeneralThreads / 32;
  static constexpr int kColumnBlocks = (Config::kVHeadSize + 7) / 8;
  static constexpr int kOwnBlocks = (kColumnBlocks + kWarps - 1) / kWarps;
  static constexpr bool kIntegers = Config::kScore == Element::kI8;

  float o[kRowBlocks][kOwnBlocks][4];

  static __device__ __forceinline__ void add_product(float (&c)[4], const u32 (&a)[4], u32 b0,
                                                     u32 b1) {
    multiply_add<Config::kScore>(c, a, b0, b1);
  }
  static __device__ __forceinline__ void add_product(int (&c)[4], const u32 (&a)[4], u32 b0,
                                                     u32 b1) {
    multiply_add_int8(c, a, b0, b1);
  }

  /// S as f32 into its place. Steps of 64 bytes along a row are two steps of the product, 16 16-bit
  /// or 32 int8 elements each; what lies past the head size is 0 in both operands. Sum: int or
  /// float.
  template <class Sum>
  __device__ __forceinline__ void score_blocks(unsigned char* memory) const {
    constexpr int kDepthBytes = kLayout.key_pitch - 16;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const u32 query =
        shared_address(memory + kLayout.query) + lane % 16 * kLayout.key_pitch + lane / 16 * 16;
    const u32 key =
        shared_address(memory + kLayout.key) + lane % 8 * kLayout.key_pitch + lane / 8 * 16;
    for (int pair = threadIdx.x / 32; pair < kRowBlocks * Config::kKeys / 8; pair += kWarps) {
      const int m = pair % kRowBlocks;
      const int n = pair / kRowBlocks;
      const u32 left = query + m * 16 * kLayout.key_pitch;
      const u32 right = key + n * 8 * kLayout.key_pitch;
      Sum sums[4] = {};
#pragma unroll 2
      for (int k = 0; k < kDepthBytes; k += 64) {
        u32 a[4];
        u32 b[4];
        load_matrices(right + k, b);
        load_matrices(left + k, a);
        add_product(sums, a, b[0], b[1]);
        load_matrices(left + k + 32, a);
        add_product(sums, a, b[2], b[3]);
      }
      unsigned char* const to = memory + kLayout.scores +
                                (m * 16 + lane / 4) * kLayout.score_pitch +
                                (n * 8 + lane % 4 * 2) * 4;
      *reinterpret_cast<float2*>(to) =
          make_float2(static_cast<float>(sums[0]), static_cast<float>(sums[1]));
      *reinterpret_cast<float2*>(to + 8 * kLayout.score_pitch) =
          make_float2(static_cast<float>(sums[2]), static_cast<float>(sums[3]));
    }
  }

  /// S = Q @ K^T
  __device__ __forceinline__ void multiply_scores(unsigned char* memory) const {
    if constexpr (kIntegers) {
      score_blocks<int>(memory);
    } else {
      score_blocks<float>(memory);
    }
  }

  /// O += P @ V, 32 keys at a time: a lane's row address serves the four 8 x 8 matrices of 32 keys.
  __device__ __forceinline__ void add_values(const unsigned char* memory) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32);
    const u32 weights = shared_address(memory + kLayout.probabilities) +
                        lane % 16 * kLayout.probability_pitch + lane / 16 * 16;
    const u32 value = shared_address(memory + kLayout.value) + lane * kLayout.value_pitch;
#pragma unroll 1
    for (int k = 0; k < Config::kKeys; k += 32) {
      u32 p[kRowBlocks][2][4];
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        const u32 at = weights + m * 16 * kLayout.probability_pitch + k * 2;
        load_matrices(at, p[m][0]);
        load_matrices(at + 32, p[m][1]);
      }
#pragma unroll
      for (int i = 0; i < kOwnBlocks; ++i) {
        const int block = warp + i * kWarps;
        if (block >= kColumnBlocks) break;
        u32 v[4];
        load_matrices_transposed(value + k * kLayout.value_pitch + block * 16, v);
#pragma unroll
        for (int m = 0; m < kRowBlocks; ++m) {
          multiply_add<Config::kProbability>(o[m][i], p[m][0], v[0], v[1]);
          multiply_add<Config::kProbability>(o[m][i], p[m][1], v[2], v[3]);
        }
      }
    }
  }

  /// The same where a weight of 0 must not meet NaN or infinity: tiles with masked keys and such
  /// values, which are rare. Why volatile: numbers that are kept for the next element would be
  /// registers that the output needs.
  __device__ __forceinline__ void add_values_slowly(const unsigned char* memory) {
#pragma unroll 1
    for (int key = 0; key < Config::kKeys; ++key) {
      const unsigned char* const p = memory + kLayout.probabilities + key * 2;
      const unsigned char* const v = memory + kLayout.value + key * kLayout.value_pitch;
      for_each([&](int row, int column, float& sum) {
        const float weight = decode_element<Config::kProbability>(
            *reinterpret_cast<const volatile u16*>(p + row * kLayout.probability_pitch));
        const float value = decode_element<Config::kProbability>(
            *reinterpret_cast<const volatile u16*>(v + column * 2));
        sum += weight == 0.0f ? 0.0f : weight * value;
      });
    }
  }

  /// function(row, column, float& output) for everything that this thread holds.
  template <class Function>
  __device__ __forceinline__ void for_each(Function function) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int b = 0; b < kOwnBlocks; ++b) {
        const int column = (warp + b * kWarps) * 8 + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (column + i % 2 >= Config::kVHeadSize) continue;
          function(m * 16 + i / 2 * 8 + lane / 4, column + i % 2, o[m][b][i]);
        }
      }
    }
  }
};

/// f32. Warp w holds rows w, w + 8 and on, its lanes columns 32 apart.
template <class Config>
struct PlainProducts {
  static constexpr GeneralLayout kLayout = kGeneralLayout<Config>;
  static constexpr int kRows = Config::kRowBlocks * 16;
  static constexpr int kWarps = kGeneralThreads / 32;
  static constexpr int kOwnRows = kRows / kWarps;
  static constexpr int kOwnColumns = (Config::kVHeadSize + 31) / 32;

  float o[kOwnRows][kOwnColumns];

  /// S = Q @ K^T: a thread has one key and every kRowStep-th row.
  __device__ __forceinline__ void multiply_scores(unsigned char* memory) const {
    constexpr int kRowStep = kGeneralThreads / Config::kKeys;
    constexpr int kNumRows = kRows / kRowStep;
    const int key = static_cast<int>(threadIdx.x) % Config::kKeys;
    const int first_row = static_cast<int>(threadIdx.x) / Config::kKeys;
    const unsigned char* const k = memory + kLayout.key + key * kLayout.key_pitch;
    const unsigned char* const q = memory + kLayout.query + first_row * kLayout.key_pitch;
    float sums[kNumRows] = {};
#pragma unroll 2
    for (int d = 0; d < kLayout.key_pitch - 16; d += 16) {
      const float4 b = *reinterpret_cast<const float4*>(k + d);
#pragma unroll
      for (int r = 0; r < kNumRows; ++r) {
        const float4 a = *reinterpret_cast<const float4*>(q + r * kRowStep * kLayout.key_pitch + d);
        sums[r] = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sums[r]))));
      }
    }
#pragma unroll
    for (int r = 0; r < kNumRows; ++r) {
      *reinterpret_cast<float*>(memory + kLayout.scores +
                                (first_row + r * kRowStep) * kLayout.score_pitch + key * 4) =
          sums[r];
    }
  }

  /// O += P @ V. A weight of 0 adds 0, whatever the value: nothing else is needed for masked keys.
  __device__ __forceinline__ void add_values(const unsigned char* memory) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32);
    const unsigned char* const p =
        memory + kLayout.probabilities + warp * kLayout.probability_pitch;
    const unsigned char* const v = memory + kLayout.value + lane * 4;
#pragma unroll 1
    for (int key = 0; key < Config::kKeys; ++key) {
      float weights[kOwnRows];
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) {
        weights[r] =
            *reinterpret_cast<const float*>(p + r * kWarps * kLayout.probability_pitch + key * 4);
      }
#pragma unroll
      for (int c = 0; c < kOwnColumns; ++c) {
        if (c * 32 + lane >= Config::kVHeadSize) break;
        const float value =
            *reinterpret_cast<const float*>(v + key * kLayout.value_pitch + c * 128);
#pragma unroll
        for (int r = 0; r < kOwnRows; ++r) {
          o[r][c] += weights[r] == 0.0f ? 0.0f : weights[r] * value;
        }
      }
    }
  }
  __device__ __forceinline__ void add_values_slowly(const unsigned char* memory) {
    add_values(memory);
  }

  template <class Function>
  __device__ __forceinline__ void for_each(Function function) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
#pragma unroll
      for (int c = 0; c < kOwnColumns; ++c) {
        if (c * 32 + lane < Config::kVHeadSize) function(warp + r * kWarps, c * 32 + lane, o[r][c]);
      }
    }
  }
};

}  // namespace attn
