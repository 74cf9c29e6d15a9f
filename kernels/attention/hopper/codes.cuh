// Keys and values of one byte on their way into the products of the Hopper prefill kernel: warps of
// the producers' warpgroup turn a tile of e4m3 codes, as the copy engine brought it, into the stage
// that the consumers multiply with.
//
// e4m3 products take both operands K-major, so values are transposed: a line of a stage has keys of
// one column. ldmatrix transposes pairs of codes, two columns of a key; byte permutes part the two,
// and stmatrix stores rows of 16 keys. What comes out is in an order of its own, of keys
// (code_place(), that of the weights) and of columns (code_row(), undone where outputs are stored),
// by which no lane exchanges anything with another. Beside 16-bit queries codes become 16-bit
// numbers where they are, since products do not mix types.
#pragma once

#include "kernels/attention/hopper/producer.cuh"
#include "kernels/ptx/codes.cuh"
#include "kernels/ptx/mma_sync.cuh"

namespace attn {

/// Two matrices of pairs of codes, keys 0 to 7 and 8 to 15 of 16 columns, as
/// load_matrices_transposed() gives them -> rows of 16 keys: of the even columns and of the odd
/// ones.
__device__ __forceinline__ void part_columns(u32 first_keys, u32 last_keys, u32& even, u32& odd) {
  even = __byte_perm(first_keys, last_keys, 0x6420);
  odd = __byte_perm(first_keys, last_keys, 0x7531);
}

/// One of kValueWorkers warps that transpose values.
template <class Config>
struct HopperTransposer {
  using Shape = HopperShape<Config>;
  static constexpr OperandLayout kFrom = Shape::kStoredValueLayout;
  static constexpr OperandLayout kTo = Shape::kValueLayout;
  static constexpr int kColumnGroups = Shape::kVColumns / 32;
  static constexpr int kKeyGroups = Config::kTileN / 16 / 2;  // of 16, that this warp has
  /// Units of 16 keys and 32 columns whose loads are under way together: one after another they
  /// would take longer than the products. Beside three consumers there are no registers for that,
  /// but a tile takes those longer.
  static constexpr int kBatch = Config::kConsumers == 3 ? 1
                                : kKeyGroups % 4 == 0   ? 4
                                : kKeyGroups % 3 == 0   ? 3
                                : kKeyGroups % 2 == 0   ? 2
                                : Config::kSums > 0     ? 3  // and what is left
                                                        : 1;

  const Shape& shape;
  int worker;
  int lane;
  Ring<kCodeStages> codes{0, 0};
  Ring<Config::kStages> values{0, 1};

  /// Offsets of a lane, to which those of units of 32 bytes within a span are added by xor.
  /// From: row lane % 8 of matrix lane / 8, which are keys 0-7 and 8-15 of columns 0-15, then of
  /// 16-31. To: rows `lane` of 32, the half of 32 bytes that this worker's keys fill.
  __device__ __forceinline__ u32 offset_from() const {
    const int matrix = lane / 8;
    return swizzled<kFrom.span>(static_cast<u32>(lane % 8 * kFrom.span + matrix / 2 * 16)) +
           static_cast<u32>((matrix % 2 + worker * 2) * kFrom.group_stride);
  }
  __device__ __forceinline__ u32 offset_to() const {
    return swizzled<kTo.span>(static_cast<u32>(lane * kTo.span + worker * 16));
  }

  __device__ __forceinline__ void transpose(u32 from, u32 to) const {
    const u32 lane_from = offset_from();
    const u32 lane_to = offset_to();
#pragma unroll
    for (int c = 0; c < kColumnGroups; ++c) {
      const u32 column = from + c * 32 / kFrom.span * kFrom.chunk_stride +
                         (lane_from ^ static_cast<u32>(c * 32 % kFrom.span));
#pragma unroll
      for (int first = 0; first < kKeyGroups; first += kBatch) {
        u32 pairs[kBatch][4];
#pragma unroll
        for (int i = 0; i < kBatch && first + i < kKeyGroups; ++i) {
          load_matrices_transposed(column + (first + i) * 4 * kFrom.group_stride, pairs[i]);
        }
#pragma unroll
        for (int i = 0; i < kBatch && first + i < kKeyGroups; ++i) {
          u32 rows[4];
          part_columns(pairs[i][0], pairs[i][1], rows[0], rows[1]);
          part_columns(pairs[i][2], pairs[i][3], rows[2], rows[3]);
          const int bytes = (first + i) * 32;  // of keys before those of both workers
          store_matrices(to + c * 32 * kTo.span + bytes / kTo.span * kTo.chunk_stride +
                             (lane_to ^ static_cast<u32>(bytes % kTo.span)),
                         rows);
        }
      }
    }
  }

  __device__ void run() {
    shape.for_each_item([&](const HopperItem& item) {
#pragma unroll 1
      for (int n = item.keys.first; n < item.keys.end; ++n) {
        await(shape.code_barrier(2, codes.stage), codes.parity);
        await(shape.value_empty(values.stage), values.parity);
        transpose(shape.code_value(codes.stage), shape.value(values.stage));
        publish_shared_writes();
        __syncwarp();
        if (lane == 0) {
          arrive(shape.code_barrier(3, codes.stage));
          arrive(shape.value_full(values.stage));
        }
        codes.advance();
        values.advance();
      }
    });
  }
};

/// A warp of those that make 16-bit numbers of the codes of keys, or of values.
template <class Config, bool kIsKey>
struct HopperConverter {
  using Shape = HopperShape<Config>;
  static constexpr OperandLayout kFrom =
      kIsKey ? Shape::kStoredKeyLayout : Shape::kStoredValueLayout;
  static constexpr OperandLayout kTo = kIsKey ? Shape::kKeyLayout : Shape::kValueLayout;
  static constexpr int kPieces = (kIsKey ? Shape::kColumns : Shape::kVColumns) / 16;  // of a row
  static constexpr int kWorkers = kIsKey ? Shape::kKeyWorkers : Shape::kValueWorkers;
  static constexpr Element kCode = Shape::kInt8 ? Element::kI8 : Element::kE4M3;
  static constexpr Element kNumber = kIsKey ? Config::kQuery : Shape::kProbability;

  /// Rows that the lanes of all workers have at a time, so that a lane keeps its column and its
  /// place in a group of 8 rows, and its addresses only advance: whole groups, for which some lanes
  /// may have nothing to do, or half of one.
  static constexpr int kLanes = 32 * kWorkers;
  static constexpr int kStepRows = kLanes / kPieces >= 8   ? kLanes / kPieces / 8 * 8
                                   : kLanes / kPieces >= 4 ? 4
                                                           : 0;
  static constexpr bool kCanKeep = kStepRows > 0 &&
                                   Config::kTileN % (kStepRows > 8 ? kStepRows : 8) == 0 &&
                                   (kStepRows != 4 || (kFrom.span == 128 && kTo.span == 128));
  static constexpr bool kKeepsColumns = kCanKeep && requires { Config::kKeepColumns; };

  /// Where keys are converted too, all four warps of the producers convert: the first of keys and
  /// the first of values bring the codes as well, each tile when those of two before are converted.
  /// Why: a warp that only brings has little to do, and one warp that converts all keys, and one
  /// all values, were what the products waited for.
  static constexpr bool kBrings = Shape::kConverts;

  const Shape& shape;
  const TensorMap& map;
  int worker;
  int lane;
  Ring<kCodeStages> codes{0, 0};
  Ring<Config::kStages> numbers{0, 1};
  HopperProducer<Config, kIsKey> bringer{shape, map, lane};

  template <bool kScaled>
  __device__ __forceinline__ static void convert_piece(const unsigned char* from,
                                                       unsigned char* first, unsigned char* second,
                                                       float scale) {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    const Four16 a = decode_codes<kCode, kNumber, kScaled>(four.x, scale);
    const Four16 b = decode_codes<kCode, kNumber, kScaled>(four.y, scale);
    const Four16 c = decode_codes<kCode, kNumber, kScaled>(four.z, scale);
    const Four16 d = decode_codes<kCode, kNumber, kScaled>(four.w, scale);
    *reinterpret_cast<uint4*>(first) = uint4{a.low, a.high, b.low, b.high};
    *reinterpret_cast<uint4*>(second) = uint4{c.low, c.high, d.low, d.high};
  }

  template <bool kScaled>
  __device__ __forceinline__ void convert_columns(const unsigned char* from, unsigned char* to,
                                                  float scale) const {
    // The row four further on in a group has bit 2 of its number turned over, and with it bit 6 of
    // the swizzled place in its line.
    constexpr bool kHalves = kStepRows == 4;
    constexpr int kGroups = kHalves ? 1 : kStepRows / 8;
    const int row = (worker * 32 + lane) / kPieces;
    const int piece = (worker * 32 + lane) % kPieces;
    if (row >= kStepRows) return;
    const u32 from_at = operand_place<kFrom.span>(kFrom, row, piece * 16);
    const u32 first_at = operand_place<kTo.span>(kTo, row, piece * 32);
    const u32 second_at = operand_place<kTo.span>(kTo, row, piece * 32 + 16);
#pragma unroll 2
    for (int group = 0; group < Config::kTileN / 8; group += kGroups) {
      const unsigned char* const codes = from + group * kFrom.group_stride;
      unsigned char* const numbers = to + group * kTo.group_stride;
      convert_piece<kScaled>(codes + from_at, numbers + first_at, numbers + second_at, scale);
      if constexpr (kHalves) {
        convert_piece<kScaled>(codes + (from_at ^ 64) + 4 * kFrom.span,
                               numbers + (first_at ^ 64) + 4 * kTo.span,
                               numbers + (second_at ^ 64) + 4 * kTo.span, scale);
      }
    }
  }

  __device__ __forceinline__ void convert(const unsigned char* from, unsigned char* to,
                                          float scale) const {
    constexpr bool kScaled = Config::kRoundDequantized;
    if constexpr (kKeepsColumns) return convert_columns<kScaled>(from, to, scale);
#pragma unroll 2
    for (int i = worker * 32 + lane; i < Config::kTileN * kPieces; i += 32 * kWorkers) {
      const int row = i / kPieces;
      const int piece = i % kPieces;
      convert_piece<kScaled>(from + operand_place<kFrom.span>(kFrom, row, piece * 16),
                             to + operand_place<kTo.span>(kTo, row, piece * 32),
                             to + operand_place<kTo.span>(kTo, row, piece * 32 + 16), scale);
    }
  }

  /// The codes of the current stage into the current stage of numbers.
  __device__ __forceinline__ void convert_stage(float scale) {
    constexpr int kFull = kIsKey ? 0 : 2;  // of code_barrier()
    constexpr HopperLayout kLayout = Shape::kLayout;
    const int from = kIsKey ? kLayout.code_key + codes.stage * kLayout.code_key_bytes
                            : kLayout.code_value + codes.stage * kLayout.code_value_bytes;
    const int to = kIsKey ? kLayout.key + numbers.stage * kLayout.key_bytes
                          : kLayout.value + numbers.stage * kLayout.value_bytes;
    await(shape.code_barrier(kFull, codes.stage), codes.parity);
    await(kIsKey ? shape.key_empty(numbers.stage) : shape.value_empty(numbers.stage),
          numbers.parity);
    convert(shape.memory + from, shape.memory + to, scale);
    publish_shared_writes();
    __syncwarp();
    if (lane == 0) {
      arrive(shape.code_barrier(kFull + 1, codes.stage));
      arrive(kIsKey ? shape.key_full(numbers.stage) : shape.value_full(numbers.stage));
    }
    codes.advance();
    numbers.advance();
  }

  __device__ void run() {
    shape.for_each_item([&](const HopperItem& item) {
      const float* const scales = kIsKey ? shape.params.kv.k_scale : shape.params.kv.v_scale;
      const float scale = scales == nullptr ? 1.0f : scales[item.tile.kv_head];
      const int last = item.keys.end - 1;
      if constexpr (kBrings) {
        const bool brings = worker == 0 && lane < HopperProducer<Config, kIsKey>::kBoxes;
        if (last < item.keys.first) return;  // the table may have no entry for the request
        auto source = bringer.open(item);
        for (int n = last; n > last - kCodeStages && n >= item.keys.first; --n) {
          if (brings) bringer.bring(item, source, n);
        }
#pragma unroll 1
        for (int n = last; n >= item.keys.first; --n) {
          convert_stage(scale);
          if (brings && n - kCodeStages >= item.keys.first) {
            bringer.bring(item, source, n - kCodeStages);
          }
          __syncwarp();
        }
      } else {
#pragma unroll 1
        for (int n = last; n >= item.keys.first; --n) convert_stage(scale);
      }
    });
  }
};

}  // namespace attn
