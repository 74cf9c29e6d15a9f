// Quantising cache write with a scale of its own for every token and head (semantics §5.5). A cell
// of the cache is the codes of a head and behind them, in 4 more bytes, their f32 scale. The scale
// is max|x| times the f32 nearest to 1 / 127 or 1 / 448, at least 1e-6, and codes are x * (1 /
// scale) rounded; both must be the same bytes on every device and on the CPU, so the operations are
// rounded one by one (__fmul_rn, __fdiv_rn) and in upstream's order.
//
// kLanes neighbouring threads hold a head between them in registers: it is read once, its maximum
// is found by shuffles, and the codes follow from the same registers.
#pragma once

#include "kernels/cache/write_cache.cuh"
#include "kernels/common/platform.cuh"

namespace attn {

/// A whole number for cvt.pack's saturation, as i8_half_away() or i8_truncate() have it:
/// __float2int_rz makes 0 of NaN.
template <bool kTruncate>
__device__ __forceinline__ int int8_number(float value) {
  return __float2int_rz(kTruncate ? value : value + copysignf(0.5f, value));
}

/// Four of them, saturated, the first in the low byte.
__device__ __forceinline__ u32 pack_int8(int a, int b, int c, int d) {
  u32 codes;
  asm("{.reg .b32 t; cvt.pack.sat.s8.s32.b32 t, %4, %3, 0; cvt.pack.sat.s8.s32.b32 %0, %2, %1, t;}"
      : "=r"(codes)
      : "r"(a), "r"(b), "r"(c), "r"(d));
  return codes;
}

/// Codes of values * inverse: fp8, or int8 rounded half away from zero or towards it.
template <Element kCache, bool kTruncate, int kCount>
__device__ __forceinline__ ElementVector<kCache, kCount> token_head_codes(
    const float (&values)[kCount], float inverse) {
  float scaled[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) scaled[i] = __fmul_rn(values[i], inverse);
  if constexpr (kCache == Element::kI8) {
    int numbers[(kCount + 3) / 4 * 4] = {};
#pragma unroll
    for (int i = 0; i < kCount; ++i) numbers[i] = int8_number<kTruncate>(scaled[i]);
    ElementVector<kCache, kCount> codes;
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      codes.words[i / 4] = pack_int8(numbers[i], numbers[i + 1], numbers[i + 2], numbers[i + 3]);
    }
    return codes;
  } else {
    return encode_vector<kCache>(scaled);
  }
}

/// Cells of a CTA's rows as they lie in the cache, on their way there. Why: D + 4 bytes put cells
/// on multiples of 4 only, so that a thread could store no more than a word at a time. Where the
/// heads of a token lie side by side, their cells together start on a multiple of 16 bytes and are
/// a multiple of 16 long; they are put together in shared memory and leave by 16 bytes a thread.
template <class Config>
struct StagedCells {
  static constexpr int kCell = Config::kWidth + 4;
  static constexpr int kRowsOfCta = Config::kRows * Config::kThreads / Config::kLanes;
  static constexpr int kTokens = kRowsOfCta / Config::kHeads;
  static constexpr int kTokenPieces = Config::kHeads * kCell / 16;
  static_assert(kTokens * Config::kHeads == kRowsOfCta && Config::kHeads * kCell % 16 == 0);
  uint4 pieces[kTokens * kTokenPieces];  // [kTokens, kHeads, kCell] bytes
  char* cells_of_token[kTokens];         // in the cache; or null

  __device__ __forceinline__ char* cell(int row) {
    return reinterpret_cast<char*>(pieces) + row * kCell;
  }
  /// All threads: looks up where the tokens from `first_token` on go.
  __device__ __forceinline__ void find_slots(const CacheWriteParams& p, char* cache,
                                             i64 first_token) {
    for (int i = static_cast<int>(threadIdx.x); i < kTokens; i += Config::kThreads) {
      const i64 slot = first_token + i < p.num_slots ? p.slot_mapping[first_token + i] : -1;
      const SlotPlace place = place_of_slot(slot < 0 ? 0 : slot, p.block_size);
      cells_of_token[i] =
          slot < 0 ? nullptr : cache + place.block * p.block_stride + place.offset * p.slot_stride;
    }
  }
  /// All threads: stores what was staged. The barrier is for the cells and for cells_of_token.
  __device__ __forceinline__ void store() const {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kTokens * kTokenPieces; i += Config::kThreads) {
      const int token = i / kTokenPieces;
      char* const cells = cells_of_token[token];
      if (cells != nullptr) reinterpret_cast<uint4*>(cells)[i - token * kTokenPieces] = pieces[i];
    }
  }
};

/// Config: Element kSource, kCache; int kWidth (elements of a head), kVector (of a thread's load),
/// kLanes (threads of a head, a power of two up to 32), kRows (heads of a thread), kThreads; bool
/// kTruncate (int8 towards zero), kStaged (a CTA has whole tokens, and StagedCells stores them);
/// int kHeads (of a token when staged, else 0).
/// Grid: (cdiv(tokens * heads, kRows * kThreads / kLanes), 1 or 2): sides from `first_side` on.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    write_cache_per_token_head(const __grid_constant__ CacheWriteParams p,
                               const __grid_constant__ int first_side) {
  constexpr int kVector = Config::kVector;
  constexpr int kRows = Config::kRows;
  constexpr int kLanes = Config::kLanes;
  constexpr int kHeadVectors = Config::kWidth / kVector;
  constexpr int kParts = (kHeadVectors + kLanes - 1) / kLanes;
  constexpr int kRowsAtOnce = Config::kThreads / kLanes;
  constexpr float kMostCode = Config::kCache == Element::kI8 ? 127.0f : 448.0f;
  const bool is_value = static_cast<int>(blockIdx.y) + first_side == 1;
  const WriteSide side = write_side(p, is_value);
  float* const scales = is_value ? p.value_scales : p.key_scales;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int row_of_cta = static_cast<int>(threadIdx.x) / kLanes;
  const i64 first_row = static_cast<i64>(blockIdx.x) * (kRows * kRowsAtOnce);

  const int num_heads = Config::kStaged ? Config::kHeads : p.num_kv_heads;
  const i64 first_token = quotient(first_row, num_heads);
  // A char where cells are not staged: a variable of some type must be there.
  __shared__ Choose<Config::kStaged, StagedCells<Config>, char> staged;
  if constexpr (Config::kStaged) staged.find_slots(p, side.cache, first_token);
  const unsigned first_head = static_cast<unsigned>(first_row - first_token * num_heads);

  // Rows (token, head) of this thread: r * kRowsAtOnce + row_of_cta of the CTA's. All lanes of a
  // row have the same slot, so that they skip it together, after the shuffles.
  i64 tokens[kRows];
  int heads[kRows];
  i64 slots[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const unsigned row = first_head + r * kRowsAtOnce + row_of_cta;
    tokens[r] = first_token + row / static_cast<unsigned>(num_heads);
    heads[r] = static_cast<int>(row % static_cast<unsigned>(num_heads));
    slots[r] = tokens[r] < p.num_slots ? p.slot_mapping[tokens[r]] : -1;
  }
  ElementVector<Config::kSource, kVector> loaded[kRows][kParts];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int vector = part * kLanes + lane;
      loaded[r][part] = {};
      if (slots[r] < 0 || vector >= kHeadVectors) continue;
      const i64 element = tokens[r] * side.token_stride +
                          static_cast<i64>(heads[r]) * Config::kWidth + vector * kVector;
      loaded[r][part] =
          load_vector<Config::kSource, kVector>(side.source + element * size_of(Config::kSource));
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float values[kParts][kVector];
    float largest = 0.0f;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      decode_vector(loaded[r][part], values[part]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) largest = fmaxf(largest, fabsf(values[part][i]));
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
    }
    if (slots[r] < 0) continue;
    // Why a product: upstream's compiler makes one of the division by a constant (§5.5).
    const float scale = fmaxf(__fmul_rn(largest, 1.0f / kMostCode), 1e-6f);
    const float inverse = __fdiv_rn(1.0f, scale);
    char* cell;
    float* cell_scale;
    if constexpr (Config::kStaged) {
      cell = staged.cell(r * kRowsAtOnce + row_of_cta);
      cell_scale = reinterpret_cast<float*>(cell + Config::kWidth);
    } else {
      const SlotPlace place = place_of_slot(slots[r], p.block_size);
      cell = side.cache + (place.block * p.block_stride + place.offset * p.slot_stride +
                           heads[r] * p.head_stride);
      cell_scale = scales + (place.block * p.scale_block_stride +
                             place.offset * p.scale_slot_stride + heads[r] * p.scale_head_stride);
    }
    if (lane == 0) *cell_scale = scale;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int vector = part * kLanes + lane;
      if (vector >= kHeadVectors) continue;
      store_parts<4>(cell + vector * kVector,
                     token_head_codes<Config::kCache, Config::kTruncate>(values[part], inverse));
    }
  }
  if constexpr (Config::kStaged) staged.store();
}

}  // namespace attn
