// The two matrix products of attention for one warp, S = Q @ K^T and O += P @ V, and where their
// operands come from. The products are templates over Query, Keys and Values, whose load() gives
// the fragments of mma_sync.cuh for a step k of 16 along the contraction; so they do not know
// whether an operand is a 16-bit tile (here), codes that are decoded on the way (code_operands.cuh)
// or already in registers. Index m counts blocks of 16 rows, n blocks of 8 keys or value columns.
//
// P never leaves the registers: the accumulators of S, rounded to 16 bits, are the left operand of
// the second product as they are.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/common/lines.cuh"
#include "kernels/ptx/codes.cuh"

namespace attn {

ATTN_FN constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Bytes between rows of a 16-bit tile in shared memory. Why an odd number of 16-byte pieces: the
/// eight rows that ldmatrix reads at once then lie in different banks.
ATTN_FN constexpr int tile_pitch(int columns) { return round_up(columns, 16) * 2 + 16; }

/// Where byte `column` of row `row` lies in a tile. Where rows are whole lines of 128 bytes apart,
/// the 16-byte pieces of a line trade places, piece i of row r with i ^ r % 8: eight rows then lie
/// in different banks as well, and the halves of a sector of 32 bytes stay together.
template <int kPitch>
__device__ __forceinline__ u32 tile_offset(u32 row, u32 column) {
  return row * kPitch + (kPitch % kLineBytes == 0 ? column ^ row % 8 * 16 : column);
}
/// From tile_offset() of a row and column to that of `rows` rows below, a multiple of 8, and
/// `bytes` columns on, a multiple of 32; the column is less than 32, and the tile starts with a
/// line.
template <int kPitch>
__device__ __forceinline__ u32 tile_advance(u32 address, int rows, int bytes) {
  if constexpr (kPitch % kLineBytes != 0) return address + rows * kPitch + bytes;
  return (address ^ bytes % kLineBytes) + rows * kPitch + bytes / kLineBytes * kLineBytes;
}

/// Shared-memory address that this lane gives to load_matrices for a 16 x 16 block whose first two
/// matrices are rows 0-7 and 8-15 of columns 0-7: the order of a left operand, and of a right one
/// that is loaded transposed.
template <int kPitch>
__device__ __forceinline__ u32 rows_first_address(u32 tile) {
  const u32 lane = threadIdx.x % 32;
  return tile + tile_offset<kPitch>(lane % 16, lane / 16 * 16);
}
/// The same with the first two matrices being columns 0-7 and 8-15 of rows 0-7: two right operands,
/// rows 0-7 and rows 8-15, each with both halves of the contraction.
template <int kPitch>
__device__ __forceinline__ u32 columns_first_address(u32 tile) {
  const u32 lane = threadIdx.x % 32;
  return tile + tile_offset<kPitch>(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 16);
}

/// Left operands of S, row blocks m of columns [16 k, 16 k + 16): a 16-bit tile; lane address of
/// rows_first_address.
template <int kPitch>
struct TileQuery {
  u32 address;
  __device__ __forceinline__ void load(int k, int m, u32 (&a)[4]) const {
    load_matrices(tile_advance<kPitch>(address, m * 16, k * 32), a);
  }
};

/// The same, loaded once and held in registers over all tiles of keys: 4 registers for each row
/// block and step, so only for small heads.
template <int kRowBlocks, int kSteps>
struct HeldQuery {
  u32 held[kSteps][kRowBlocks][4];
  template <class Stored>
  __device__ __forceinline__ explicit HeldQuery(const Stored& stored) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) stored.load(k, m, held[k][m]);
    }
  }
  __device__ __forceinline__ void load(int k, int m, u32 (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = held[k][m][i];
  }
};

/// Right operands of S, key blocks n and n + 1: a 16-bit tile; lane address of
/// columns_first_address.
template <int kPitch>
struct TileKeys {
  u32 address;
  __device__ __forceinline__ void load(int k, int n, u32 (&b)[2][2]) const {
    u32 matrices[4];
    load_matrices(tile_advance<kPitch>(address, n * 8, k * 32), matrices);
    b[0][0] = matrices[0];
    b[0][1] = matrices[1];
    b[1][0] = matrices[2];
    b[1][1] = matrices[3];
  }
};

/// Right operands of the output, value blocks n to n + kBlocks - 1 of keys [16 k, 16 k + 16): a
/// 16-bit tile; lane address of rows_first_address.
template <int kPitch>
struct TileValues {
  static constexpr int kBlocks = 2;
  u32 address;
  __device__ __forceinline__ void load(int k, int n, u32 (&b)[2][2]) const {
    u32 matrices[4];
    load_matrices_transposed(tile_advance<kPitch>(address, k * 16, n * 16), matrices);
    b[0][0] = matrices[0];
    b[0][1] = matrices[1];
    b[1][0] = matrices[2];
    b[1][1] = matrices[3];
  }
};

/// S = Q @ K^T over kSteps * 16 columns, those past the head size being zeros in both operands. A
/// fragment of keys serves all row blocks, one of queries all keys.
template <Element kElement, int kSteps, class Query, class Keys, int kRowBlocks, int kKeyBlocks>
__device__ __forceinline__ void multiply_scores(const Query& query, const Keys& keys,
                                                float (&s)[kRowBlocks][kKeyBlocks][4]) {
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][n][i] = 0.0f;
    }
  }
  // Why not unrolled all the way for large heads: operands fetched far ahead would not fit.
  constexpr int kUnroll = kSteps > 12 ? 4 : kSteps;
#pragma unroll kUnroll
  for (int k = 0; k < kSteps; ++k) {
    u32 a[kRowBlocks][4];
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) query.load(k, m, a[m]);
#pragma unroll
    for (int n = 0; n < kKeyBlocks; n += 2) {
      u32 b[2][2];
      keys.load(k, n, b);
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        multiply_add<kElement>(s[m][n], a[m], b[0][0], b[0][1]);
        multiply_add<kElement>(s[m][n + 1], a[m], b[1][0], b[1][1]);
      }
    }
  }
}

/// The same of int8 codes over kSteps * 32 columns: exact integers, as f32. Rows of codes lie as
/// rows of half as many 16-bit elements do, so that Query and Keys are those of 16-bit tiles.
template <int kSteps, class Query, class Keys, int kRowBlocks, int kKeyBlocks>
__device__ __forceinline__ void multiply_int8_scores(const Query& query, const Keys& keys,
                                                     float (&s)[kRowBlocks][kKeyBlocks][4]) {
  int products[kRowBlocks][kKeyBlocks][4] = {};
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    u32 a[kRowBlocks][4];
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) query.load(k, m, a[m]);
#pragma unroll
    for (int n = 0; n < kKeyBlocks; n += 2) {
      u32 b[2][2];
      keys.load(k, n, b);
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        multiply_add_int8(products[m][n], a[m], b[0][0], b[0][1]);
        multiply_add_int8(products[m][n + 1], a[m], b[1][0], b[1][1]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][n][i] = static_cast<float>(products[m][n][i]);
    }
  }
}

/// P of 16 keys as the left operand of the second product: registers 0 and 1 are rows g and g + 8
/// of the first eight keys, 2 and 3 of the others, which is how the accumulators of two key blocks
/// lie.
template <Element kElement, int kKeyBlocks>
__device__ __forceinline__ void pack_weights(const float (&p)[kKeyBlocks][4], int step,
                                             u32 (&a)[4]) {
  a[0] = pack<kElement>(p[2 * step][0], p[2 * step][1]);
  a[1] = pack<kElement>(p[2 * step][2], p[2 * step][3]);
  a[2] = pack<kElement>(p[2 * step + 1][0], p[2 * step + 1][1]);
  a[3] = pack<kElement>(p[2 * step + 1][2], p[2 * step + 1][3]);
}

/// O += P @ V over kKeyBlocks * 8 keys. V must be free of NaN and infinity at keys that some row
/// may not see: see accumulate_nonfinite().
template <Element kElement, class Values, int kRowBlocks, int kKeyBlocks, int kValueBlocks>
__device__ __forceinline__ void accumulate_values(const float (&p)[kRowBlocks][kKeyBlocks][4],
                                                  const Values& values,
                                                  float (&o)[kRowBlocks][kValueBlocks][4]) {
#pragma unroll
  for (int k = 0; k < kKeyBlocks / 2; ++k) {
    u32 a[kRowBlocks][4];
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) pack_weights<kElement>(p[m], k, a[m]);
#pragma unroll
    for (int n = 0; n < kValueBlocks; n += Values::kBlocks) {
      u32 b[Values::kBlocks][2];
      values.load(k, n, b);
#pragma unroll
      for (int j = 0; j < Values::kBlocks; ++j) {
#pragma unroll
        for (int m = 0; m < kRowBlocks; ++m) {
          multiply_add<kElement>(o[m][n + j], a[m], b[j][0], b[j][1]);
        }
      }
    }
  }
}

/// 1 for a key that the row sees, else 0, in the layout of pack_weights: left operands that sum up
/// what a row sees instead of weighing it.
template <Element kElement>
__device__ __forceinline__ u32 visibility_pair(KeyInterval keys, int key) {
  return pack<kElement>(key >= keys.begin && key < keys.end ? 1.0f : 0.0f,
                        key + 1 >= keys.begin && key + 1 < keys.end ? 1.0f : 0.0f);
}
template <Element kElement>
__device__ __forceinline__ void visibility_weights(const Row* rows, int first_key, u32 (&a)[4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const KeyInterval upper = rows[lane / 4].keys;
  const KeyInterval lower = rows[lane / 4 + 8].keys;
  const int key = first_key + lane % 4 * 2;
  a[0] = visibility_pair<kElement>(upper, key);
  a[1] = visibility_pair<kElement>(lower, key);
  a[2] = visibility_pair<kElement>(upper, key + 8);
  a[3] = visibility_pair<kElement>(lower, key + 8);
}

/// Codes of non-finite numbers whose sums over at most 127 keys tell them apart: +inf 1, -inf 128,
/// NaN 16384; finite numbers 0. All are exact in 16 bits, and so are their sums in f32: at most 127
/// times 1 stays below 128, and 127 times 128 below 16384.
template <Element kElement>
__device__ __forceinline__ u32 nonfinite_codes(u32 packed) {
  constexpr bool kIsBf16 = kElement == Element::kBF16;
  constexpr u32 kInfinity = kIsBf16 ? 0x7F80u : 0x7C00u;
  constexpr u32 kOne = kIsBf16 ? 0x3F80u : 0x3C00u;
  constexpr u32 k128 = kIsBf16 ? 0x4300u : 0x5800u;
  constexpr u32 k16384 = kIsBf16 ? 0x4680u : 0x7400u;
  u32 codes = 0;
#pragma unroll
  for (int shift = 0; shift < 32; shift += 16) {
    const u32 half = (packed >> shift) & 0xFFFFu;
    const u32 infinity = (half & 0x8000u) != 0 ? k128 : kOne;
    const u32 code = (half & 0x7FFFu) > kInfinity ? k16384 : infinity;
    codes |= ((half & kInfinity) == kInfinity ? code : 0u) << shift;
  }
  return codes;
}

/// What a sum of codes says about the sum of the numbers.
__device__ __forceinline__ float nonfinite_sum(float codes) {
  const int sum = static_cast<int>(codes);
  // Both infinities make NaN too.
  const bool is_nan = sum >= 16384 || (sum >= 128 && sum % 128 != 0);
  const float infinity = sum >= 128 ? kNegInf : -kNegInf;
  const float value = is_nan ? float_from_bits(0x7FC00000u) : infinity;
  return sum == 0 ? 0.0f : value;
}

/// Adds the NaN and infinities of a value tile to the rows that see their key. Why apart: in the
/// product a weight of 0 times NaN is NaN, and a masked key must not contribute (semantics §0.6.6),
/// while a visible NaN must. So codes of them are summed up over the visible keys by the tensor
/// cores, and the sums are translated back. Afterwards clear_nonfinite() makes the tile fit for
/// accumulate_values. All of this is for tiles with masked keys only; in others the plain product
/// does what is wanted. A visible infinity of weight 0 (underflow) counts as infinity here.
template <Element kElement, int kKeyBlocks, class Values, int kRowBlocks, int kValueBlocks>
__device__ __forceinline__ void accumulate_nonfinite(const Row* rows, int first_key,
                                                     const Values& values,
                                                     float (&o)[kRowBlocks][kValueBlocks][4]) {
  static_assert(kKeyBlocks * 8 < 128, "sums of codes must stay apart");
#pragma unroll
  for (int n = 0; n < kValueBlocks; n += Values::kBlocks) {
    float codes[kRowBlocks][Values::kBlocks][4] = {};
#pragma unroll 1
    for (int k = 0; k < kKeyBlocks / 2; ++k) {
      u32 b[Values::kBlocks][2];
      values.load(k, n, b);
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        u32 a[4];
        visibility_weights<kElement>(rows + m * 16, first_key + k * 16, a);
#pragma unroll
        for (int j = 0; j < Values::kBlocks; ++j) {
          multiply_add<kElement>(codes[m][j], a, nonfinite_codes<kElement>(b[j][0]),
                                 nonfinite_codes<kElement>(b[j][1]));
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int j = 0; j < Values::kBlocks; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[m][n + j][i] += nonfinite_sum(codes[m][j][i]);
      }
    }
  }
}

/// The NaN and infinities of a word of two 16-bit numbers or, for one-byte elements, four codes, as
/// a mask of ones: `word & ~mask` has zeros in their place.
template <Element kElement>
__device__ __forceinline__ u32 nonfinite_mask(u32 word) {
  if constexpr (kElement == Element::kBF16 || kElement == Element::kF16) {
    return nonfinite_halves<kElement>(word);
  } else {
    return nonfinite_codes_mask<kElement>(word);
  }
}

/// Where rows start in a tile: on its pitch.
struct NoShift {
  __device__ __forceinline__ u32 of(int) const { return 0; }
};

/// Whether a tile of `rows` rows of kBytes holds NaN or infinity; `thread` of `threads` looks at
/// every threads-th word. Row r starts `shift.of(r)` bytes behind its pitch.
template <Element kElement, int kBytes, int kPitch, class Shift = NoShift>
__device__ __forceinline__ bool find_nonfinite(const unsigned char* tile, int rows, int thread,
                                               int threads, const Shift& shift = {}) {
  constexpr int kWords = kBytes / 4;
  u32 found = 0;
  for (int i = thread; i < rows * kWords; i += threads) {
    const int row = i / kWords;
    found |= nonfinite_mask<kElement>(
        *(reinterpret_cast<const u32*>(tile + row * kPitch + shift.of(row)) + i % kWords));
  }
  return found != 0;
}

/// NaN and infinity become 0; threads share the work as in find_nonfinite.
template <Element kElement, int kBytes, int kPitch, class Shift = NoShift>
__device__ __forceinline__ void clear_nonfinite(unsigned char* tile, int rows, int thread,
                                                int threads, const Shift& shift = {}) {
  constexpr int kWords = kBytes / 4;
  for (int i = thread; i < rows * kWords; i += threads) {
    const int row = i / kWords;
    u32* word = reinterpret_cast<u32*>(tile + row * kPitch + shift.of(row)) + i % kWords;
    *word &= ~nonfinite_mask<kElement>(*word);
  }
}

}  // namespace attn
