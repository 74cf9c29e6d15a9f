// What a consumer warpgroup of the Hopper prefill kernel does before and after its products: who it
// is, its rows and queries into shared memory, its output out of the registers.
#pragma once

#include "kernels/attention/hopper/work.cuh"
#include "kernels/attention/products.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace attn {

/// Numbers of barriers: from kTurnBarrier on one for each warpgroup's turn at the tensor cores,
/// from kOwnBarrier on one among each warpgroup's warps, one of all consumers, and one of the warps
/// beside them.
constexpr int kTurnBarrier = 1;
constexpr int kOwnBarrier = 4;
constexpr int kConsumerBarrier = 7;
constexpr int kBesideBarrier = 8;

template <class Config>
struct HopperPlace {
  using Shape = HopperShape<Config>;
  static constexpr int kWarpRows = 16;
  static constexpr int kOutputBlocks = Shape::kVColumns / 8;
  using Output = float[1][kOutputBlocks][4];       // the accumulators of a thread
  using Packed = u32[(kOutputBlocks + 1) / 2][4];  // the same in 16 bits, as matrices are stored

  const Shape& shape;
  int consumer;        // warpgroup, from 0
  int thread;          // in the warpgroup
  u32 items_done = 0;  // with kAhead; one register for stage and parity of the queries
  int slot = 0;        // of a list: which 64 rows of the tile in work are this warpgroup's

  __device__ __forceinline__ int lane() const { return thread % 32; }
  __device__ __forceinline__ int warp_row() const { return thread / 32 * kWarpRows; }
  /// The first of this warpgroup's rows in the row tile.
  __device__ __forceinline__ int first_row() const {
    if constexpr (has_tile_list<Config>()) {
      return slot * kConsumerRows;
    } else {
      return consumer * kConsumerRows;
    }
  }
  /// Tiles of a list that one warpgroup can do are done by each in turn: while one ends a tile, and
  /// fetches the queries of its next one, another multiplies.
  __device__ __forceinline__ void take_slot(const HopperItem& item) {
    static_assert(!Config::kPingPong, "all warpgroups would have to take each tile");
    slot = consumer;
    if (item.tile.num_rows > kConsumerRows) return;
    slot = consumer - item.turn;
    if (slot < 0) slot += Config::kConsumers;
  }
  /// Whether only one warpgroup has rows of the tile in work: nobody else touches its values.
  __device__ __forceinline__ bool is_alone() const {
    if constexpr (has_tile_list<Config>()) {
      return tile()->num_rows <= kConsumerRows;
    } else {
      return false;
    }
  }
  /// Of a list: whether rows that are not there are left out where that saves time. Why not of
  /// three consumers: it would take registers that they do not have.
  static constexpr bool kShortcuts = has_tile_list<Config>() && Config::kConsumers == 2;
  /// Rows of this warp whose queries it copies, with zeros for those that are not there. Why all or
  /// none: the rows of a warp vote on when their bases rise, so what shared memory held before
  /// would reach the rounding of those that are there, and change the result from run to run.
  __device__ __forceinline__ int query_rows() const {
    if constexpr (kShortcuts) {
      return first_row() + warp_row() < tile()->num_rows ? kWarpRows : 0;
    } else {
      return kWarpRows;
    }
  }
  /// This warp's rows, in shared memory: registers are for S, O and P.
  __device__ __forceinline__ Row* rows() const {
    return reinterpret_cast<Row*>(shape.memory + Shape::kLayout.rows) + consumer * kConsumerRows +
           warp_row();
  }
  /// The row tile: where it was handed over if it stays there until its output is stored, else this
  /// warp's copy.
  static constexpr bool kReadsItem =
      Shape::kIsShort && !Shape::kLeavesEarly && !has_tile_list<Config>();
  __device__ __forceinline__ RowTile* tile() const {
    if constexpr (kReadsItem) return &shape.item_place(query_stage())->item.tile;
    return reinterpret_cast<RowTile*>(shape.memory + Shape::kLayout.tiles) + consumer * 4 +
           thread / 32;
  }
  __device__ __forceinline__ int query_stage() const {
    return Config::kAhead ? static_cast<int>(items_done % Shape::kQueryStages) : 0;
  }
  __device__ __forceinline__ u32 query() const { return shape.query(consumer, query_stage()); }
  __device__ __forceinline__ void sync_own() const {
    sync_threads_of(kOwnBarrier + consumer, kWarpgroupThreads);
  }
  /// Leaves a stage: one arrival for each warp, all of whose lanes are through with it.
  __device__ __forceinline__ void leave(u32 empty) const {
    if (lane() == 0) arrive(empty);
  }
  /// The same of a stage that was only waited for. Why not without the other lanes: one that had
  /// not looked yet, when the stage is filled again, would take that for the time before, and wait
  /// for ever.
  __device__ __forceinline__ void leave_unread(u32 empty) const {
    __syncwarp();
    leave(empty);
  }

  /// The row tile and this warp's rows of it into shared memory.
  __device__ void describe(const HopperItem& item) const {
    if (!kReadsItem && lane() == 0) {
      *tile() = item.tile;
      // Nobody asks for a consumer's request any more, and for its part only at the end.
      if constexpr (has_parts<Config>()) tile()->request = item.part;
    }
    const int first = first_row() + warp_row();
    if (lane() < kWarpRows) {
      // Where a CTA stays kRanges says whether there are ranges; a list has none. Elsewhere kernels
      // are as they were measured.
      constexpr bool kMayHaveRanges =
          Config::kRanges || !(has_tile_list<Config>() || requires { Config::kGroup; });
      rows()[lane()] =
          describe_row<kMayHaveRanges>(shape.params, with_group<Config>(item.tile),
                                       {Shape::first_key(item), item.tile.seq_len}, first + lane());
    }
    __syncwarp();
  }

  /// Token of the request and query head of a row of this warp. Why by its position: divisions
  /// took longer than what they were for.
  struct TokenHead {
    int token;
    int head;
  };
  __device__ __forceinline__ TokenHead place_of(const RowTile& at, int packed) const {
    static_assert(!is_global(Config::kAlibi), "positions are not those in the request");
    const int token = rows()[packed - first_row() - warp_row()].position - at.context_len;
    const int group = group_of<Config>(at.group);
    return {token, at.kv_head * group + at.first_row + packed - token * group};
  }
  /// Where a row of this warp starts, in elements.
  __device__ __forceinline__ i64 row_offset(const RowTile& at, int packed, i64 token_stride,
                                            i64 head_stride) const {
    const TokenHead place = place_of(at, packed);
    return (at.first_token + place.token) * token_stride + place.head * head_stride;
  }

  /// This warp's query rows, where the products read them; what there is none of becomes zeros.
  __device__ void copy_query() const {
    constexpr int kElements = 16 / Shape::kBytes;
    constexpr int kPieces = Shape::kColumns / kElements;
    constexpr OperandLayout kLayout = Shape::kQueryLayout;
    const AttendParams& params = shape.params;
    const RowTile& at = *tile();
    const auto* query = static_cast<const unsigned char*>(params.query);
#pragma unroll 4
    for (int i = lane(); i < query_rows() * kPieces; i += 32) {
      const int row = warp_row() + i / kPieces;
      const int packed = first_row() + row;
      const int piece = i % kPieces;
      const bool valid = packed < at.num_rows && piece < Config::kHeadSize / kElements;
      const i64 offset =
          valid ? row_offset(at, packed, params.query_token_stride, params.query_head_stride) +
                      piece * kElements
                : 0;
      const u32 to = this->query() + line_offset<kLayout.span>(row, piece);
      copy_async<16>(to, query + offset * Shape::kBytes, valid);
    }
    close_copy_group();
    wait_copy_groups<0>();
    publish_shared_writes();
    sync_own();
  }

  /// Where piece `piece` (16 bytes) of row `row` lies in chunks of 64 lines.
  template <int kSpan>
  __device__ __forceinline__ static u32 line_offset(int row, int piece) {
    constexpr int kPieces = kSpan / 16;
    const int chunk = piece / kPieces;
    return swizzled<kSpan>(
        static_cast<u32>(chunk * kConsumerRows * kSpan + row * kSpan + piece % kPieces * 16));
  }

  __device__ __forceinline__ static void pack_output(const Output& o, Packed& packed) {
#pragma unroll
    for (int k = 0; k < kOutputBlocks / 2; ++k) pack_weights<Config::kOutput>(o[0], k, packed[k]);
  }

  /// This lane's four neighbouring columns of [16 k, 16 k + 16) of one of its rows, where columns
  /// of e4m3 products lie apart (code_row()); those from 4 (lane % 4) on.
  __device__ __forceinline__ static uint2 parted_columns(const Output& o, int k, int half) {
    const int i = half * 2;
    return {pack<Config::kOutput>(o[0][2 * k][i], o[0][2 * k + 1][i]),
            pack<Config::kOutput>(o[0][2 * k][i + 1], o[0][2 * k + 1][i + 1])};
  }
  /// Those as columns [16 at, 16 at + 16) of the lines of a warp's staging.
  __device__ __forceinline__ void stage_parted(const Output& o, int k, unsigned char* staging,
                                               int at) const {
    constexpr int kSpan = Shape::kOutputLayout.span;
    const int piece = 2 * at + lane() % 4 / 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u32 place =
          swizzled<kSpan>(static_cast<u32>(RowsByKeys::row(half) * kSpan + piece * 16));
      *reinterpret_cast<uint2*>(staging + place + lane() % 2 * 8) = parted_columns(o, k, half);
    }
  }

  /// Rows of 16 bits by way of the query's place in shared memory, so that neighbouring lanes write
  /// neighbouring pieces of 16 bytes.
  __device__ __forceinline__ void store_wide(const Output& o) const {
    constexpr int kSpan = Shape::kOutputLayout.span;
    sync_own();  // no warp's products read the queries any more
    if constexpr (Shape::kTransposes) {
      unsigned char* const to = shape.memory + Shape::query_offset(consumer, query_stage());
#pragma unroll
      for (int k = 0; k < kOutputBlocks / 2; ++k) {
        const int piece = 2 * k + lane() % 4 / 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const u32 place = line_offset<kSpan>(warp_row() + RowsByKeys::row(half), piece);
          *reinterpret_cast<uint2*>(to + place + lane() % 2 * 8) = parted_columns(o, k, half);
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < kOutputBlocks / 2; ++k) {
        u32 block[4];
        pack_weights<Config::kOutput>(o[0], k, block);
        place_block(first_block(), block, k);
      }
    }
    store_placed();
  }
  __device__ __forceinline__ void store_wide(const Packed& packed) const {
    sync_own();
#pragma unroll
    for (int k = 0; k < kOutputBlocks / 2; ++k) place_block(first_block(), packed[k], k);
    store_placed();
  }

  /// Where this lane's part of the first 16 columns of this warp's rows goes, in the query's place.
  __device__ __forceinline__ u32 first_block() const {
    constexpr int kSpan = Shape::kOutputLayout.span;
    const u32 in_warp = static_cast<u32>(lane());
    return query() + line_offset<kSpan>(warp_row() + static_cast<int>(in_warp % 16),
                                        static_cast<int>(in_warp / 16));
  }
  /// Columns [16 k, 16 k + 16). Why not by line_offset(): the swizzle is by exclusive or, in which
  /// the even pieces of a line are constants.
  __device__ __forceinline__ static void place_block(u32 first, const u32 (&block)[4], int k) {
    constexpr int kSpan = Shape::kOutputLayout.span;
    constexpr int kBlocks = kSpan / 32;  // of a line
    store_matrices((first ^ static_cast<u32>(k % kBlocks * 32)) +
                       static_cast<u32>(k / kBlocks * kConsumerRows * kSpan),
                   block);
  }

  /// This warp's rows from there.
  __device__ __forceinline__ void store_placed() const {
    constexpr int kSpan = Shape::kOutputLayout.span;
    constexpr int kPieces = Config::kOutputColumns / 8;
    const AttendParams& params = shape.params;
    const RowTile& at = *tile();
    const unsigned char* const from = shape.memory + Shape::query_offset(consumer, query_stage());
    if constexpr (Shape::kStoresBoxes) {
      if (first_row() + warp_row() + kWarpRows <= at.num_rows) {
        queue_store(at);
        return;
      }
    }
    __syncwarp();
    auto* const output = static_cast<u16*>(params.output);
    constexpr int kUnroll = Config::kLateOutput ? 1 : 4;  // registers are short there
#pragma unroll kUnroll
    for (int i = lane(); i < kWarpRows * kPieces; i += 32) {
      const int row = warp_row() + i / kPieces;
      const int packed = first_row() + row;
      if (packed >= at.num_rows) continue;
      const i64 to = row_offset(at, packed, params.output_token_stride, params.output_head_stride) +
                     i % kPieces * 8;
      *reinterpret_cast<uint4*>(output + to) =
          *reinterpret_cast<const uint4*>(from + line_offset<kSpan>(row, i % kPieces));
    }
    // The next queries come there. Behind boxes every warp says for itself when it is through.
    if constexpr (Shape::kStoresBoxes) {
      __syncwarp();
    } else {
      sync_own();
    }
  }

  /// Rows of 16 bits by way of this warp's staging, a span of their columns at a time.
  __device__ __forceinline__ void store_staged(const Output& o) const {
    constexpr int kSpan = Shape::kOutputLayout.span;
    constexpr int kPieces = kSpan / 16;        // of a line, of 16 bytes
    constexpr int kBlocks = kPieces / 2;       // of 16 columns
    constexpr int kRowsOfStep = 32 / kPieces;  // that all lanes have at a time
    constexpr int kSteps = kWarpRows / kRowsOfStep;
    const AttendParams& params = shape.params;
    const RowTile& at = *tile();
    const int warp = consumer * 4 + thread / 32;
    const u32 offset = Shape::kLayout.staging +
                       static_cast<u32>(warp * aligned_bytes(Shape::kLayout.staging_bytes));
    const unsigned char* const from = shape.memory + offset;
    const auto in_warp = static_cast<u32>(lane());
    const u32 first =
        shape.base + offset + swizzled<kSpan>(in_warp % 16 * kSpan + in_warp / 16 * 16);
    const int piece = static_cast<int>(in_warp % kPieces);
    i64 to[kSteps];  // negative: there is no such row
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int packed =
          first_row() + warp_row() + i * kRowsOfStep + static_cast<int>(in_warp / kPieces);
      to[i] = packed < at.num_rows
                  ? row_offset(at, packed, params.output_token_stride, params.output_head_stride) +
                        piece * 8
                  : -1;
    }
#pragma unroll
    for (int chunk = 0; chunk < operand_chunks(Shape::kVColumns); ++chunk) {
      if (chunk > 0) __syncwarp();
#pragma unroll
      for (int k = 0; k < kBlocks; ++k) {
        if constexpr (Shape::kTransposes) {
          stage_parted(o, chunk * kBlocks + k, shape.memory + offset, k);
        } else {
          u32 block[4];
          pack_weights<Config::kOutput>(o[0], chunk * kBlocks + k, block);
          store_matrices(first ^ static_cast<u32>(k * 32), block);
        }
      }
      __syncwarp();
      const bool has_columns = (chunk * kPieces + piece) * 8 < Config::kOutputColumns;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (to[i] < 0 || !has_columns) continue;
        const u32 row = static_cast<u32>(i * kRowsOfStep) + in_warp / kPieces;
        const u32 place = swizzled<kSpan>(row * kSpan + static_cast<u32>(piece * 16));
        *reinterpret_cast<uint4*>(static_cast<u16*>(params.output) + to[i] + chunk * kPieces * 8) =
            *reinterpret_cast<const uint4*>(from + place);
      }
    }
    __syncwarp();
  }

  /// Has the copy engine store this warp's 16 rows, all of which are there: a box for each span of
  /// their columns. Groups of heads divide 64 rows, so these are whole tokens, or heads of one.
  __device__ __forceinline__ void queue_store(const RowTile& at) const {
    constexpr OperandLayout kLayout = Shape::kOutputLayout;
    constexpr int kChunks = operand_chunks(Shape::kVColumns);
    // Hidden, so that nothing of it is kept in registers from tile to tile.
    const int chunk = hidden(lane());
    const int row = hidden(warp_row());
    const TokenHead place = place_of(at, first_row() + row);
    const int token = at.first_token + place.token;
    publish_shared_writes();
    __syncwarp();  // from here on rows and tile may be those of the next item
    if (chunk >= kChunks) return;
    store_box<4>(*shape.outputs, {{0, place.head, token, chunk}},
                 query() + chunk * kLayout.chunk_stride + row * kLayout.span);
    close_store_group();
  }

  /// Any element and any strides.
  __device__ void store_pairs(const Output& o) const {
    const AttendParams& params = shape.params;
    const RowTile at = with_group<Config>(*tile());
    const bool pairs = pairs_aligned(params);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row() + warp_row() + RowsByKeys::row(half);
      if (row >= at.num_rows) continue;
      const i64 to = token_of(at, row) * params.output_token_stride +
                     head_of(at, row) * params.output_head_stride;
#pragma unroll
      for (int n = 0; n < Config::kVHeadSize / 8; ++n) {
        const int i = half * 2;
        if constexpr (Shape::kTransposes) {
          // Of each 16 columns the two blocks of even and of odd ones, code_row().
          const int at_thread = i + n % 2;
          const int column = n / 2 * 16 + lane() % 4 * 4 + n % 2 * 2;
          if constexpr (Config::kOutputColumns != Config::kVHeadSize) {
            if (column >= Config::kOutputColumns) continue;
          }
          store_pair<Config::kOutput>(params.output, to + column, o[0][n / 2 * 2][at_thread],
                                      o[0][n / 2 * 2 + 1][at_thread], pairs);
        } else {
          store_pair<Config::kOutput>(params.output, to + n * 8 + lane() % 4 * 2, o[0][n][i],
                                      o[0][n][i + 1], pairs);
        }
      }
    }
    sync_own();  // the next queries come where the products read
  }

  /// A part of the rows' results in f32, two columns at a time.
  __device__ void store_part(const Output& o) const {
    static_assert(!Shape::kTransposes);
    const RowTile at = with_group<Config>(*tile());
    const SplitParams& parts = shape.list->parts;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row() + warp_row() + RowsByKeys::row(half);
      if (row >= at.num_rows) continue;
      const i64 token = at.request * parts.num_tokens + token_of(at, row);
      float* const to = parts.partial_output +
                        (token * shape.params.num_heads + head_of(at, row)) * Config::kVHeadSize +
                        lane() % 4 * 2;
#pragma unroll
      for (int n = 0; n < Config::kVHeadSize / 8; ++n) {
        *reinterpret_cast<float2*>(to + n * 8) = {o[0][n][half * 2], o[0][n][half * 2 + 1]};
      }
    }
    sync_own();  // the next queries come where the products read
  }
};

}  // namespace attn
