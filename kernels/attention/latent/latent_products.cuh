// The products of MLA latents on SM 9.0, whoever loads the keys: the copy engine (latent.cuh) or
// threads (gathered.cuh), which overload what takes a run here.
//
// The output of 64 rows is 64 x 512 f32, too much for the registers of one warpgroup, so two share
// it by columns, and keys come in pairs of tiles of 64: the left warpgroup makes the scores of the
// even tile, the right one those of the odd tile, and either hands its weights P to the other, so
// that both multiply both with their half of V. V is what lies in shared memory as K. For a pair of
// tiles 0 and 1:
//
//   left                                        right
//   maximum m of tile 0, P0 = 2^(S0 - m)        wait for m
//   output += P0 V0, P0 in registers            m' of tile 1 too, P1 = 2^(S1 - m')
//   wait for m'                                 P1 to shared memory
//   P0 2^(m - m') to shared memory              output += P1 V1, P1 in registers
//   output += P1 V1, P1 from shared memory      output += P0 V0, P0 from shared memory
//   scores of the next tile 0                   scores of the next tile 1
//
// P0 and P1 take the places of the rope parts of their tiles, which are no values.
//
// Config: kElement, kOutput and kQueryBox, as of the two kernels.
#pragma once

#include "kernels/attention/latent/latent_parts.cuh"
#include "kernels/attention/latent/latent_stores.cuh"
#include "kernels/ptx/dependents.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"

namespace attn {

__device__ __forceinline__ u32 full_barrier(int tile, int piece) {
  return static_cast<u32>(kLatentFullAt + (tile * kLatentPieces + piece) * 8);
}
/// half 1 of a tile has the rope part of tile 0, half 0 that of tile 1: it is where their weights
/// are read by the other warpgroup.
__device__ __forceinline__ u32 free_barrier(int tile, int half) {
  return static_cast<u32>(kLatentFreeAt + (tile * 2 + half) * 8);
}
constexpr int kPairKeys = 2 * kLatentKeys;
/// What a warp keeps count of, in one register: the two phases that it waits for.
constexpr u32 kKeyPhase = 1;
constexpr u32 kQueryPhase = 2;
constexpr u32 kFirstItem = 4;  // of the warp that loads
constexpr u32 kQueryFull = kLatentQueryFullAt;
constexpr u32 kQueryFree = kLatentQueryFreeAt;

/// The item that a warp works on, in shared memory: a register less while it goes through the keys.
template <class Config>
class LatentCursor {
 public:
  __device__ explicit LatentCursor(int first) { put(first); }
  __device__ int at() const { return static_cast<int>(load_word(place())); }
  __device__ void put(int at) {
    __syncwarp();
    store_word(place(), static_cast<u32>(at));
    __syncwarp();
  }

 private:
  __device__ static u32 place() {
    return of_cta<Config>(kLatentCursorAt) + static_cast<u32>(this_thread()) / 32 * 4;
  }
};

constexpr int kWarpsOfHalf = 4;

/// Whether the kernel is one of few rows: latent_few.cuh.
template <class Config>
ATTN_FN constexpr bool is_few() {
  if constexpr (requires { Config::kFew; }) return Config::kFew;
  return false;
}

/// By all threads, before any other use of shared memory. `prepare_keys`, by one of them: fetches
/// maps and sets up the barriers of pieces, as whoever loads keys wants them. readers_of(tile):
/// warps that have to be through with a half of a tile before it is loaded anew.
template <class Config, class PrepareKeys, class Readers>
__device__ __forceinline__ void prepare_latent(const PrepareKeys& prepare_keys,
                                               const Readers& readers_of) {
  check_shared_base(kLatentBase);
  if (threadIdx.x == 0) {
    prepare_keys();
    for (int i = 0; i < 4; ++i) {
      init_barrier(of_cta<Config>(free_barrier(0, i)), static_cast<u32>(readers_of(i / 2)));
    }
    init_barrier(of_cta<Config>(kQueryFull), 1);
    init_barrier(of_cta<Config>(kQueryFree), 2 * kWarpsOfHalf);
    publish_barriers();
  }
  // Rows that no box brings: what was there before might be NaN, which is harmless but slow.
  if constexpr (Config::kQueryBox < (is_few<Config>() ? kFewRows : kLatentRows)) {
    for (int at = static_cast<int>(threadIdx.x) * 16; at < kLatentTileBytes;
         at += kLatentThreads * 16) {
      store_words(of_cta<Config>(kLatentQueryAt) + static_cast<u32>(at), {0, 0, 0, 0});
    }
  }
  publish_shared_writes();
  __syncthreads();
}

template <class Config, class PrepareKeys>
__device__ __forceinline__ void prepare_latent(const PrepareKeys& prepare_keys) {
  prepare_latent<Config>(prepare_keys, [](int) { return kWarpsOfHalf; });
}

/// The query of an item, once nobody reads the one before it any more.
template <class Config>
__device__ __forceinline__ void load_query(const AttendParams& params, const TensorMap& query_map,
                                           const RowTile& tile, u32 parity) {
  if constexpr (Config::kQueryBox != 0) {
    const int boxes = tile.num_rows / Config::kQueryBox;
    await(of_cta<Config>(kQueryFree), parity);
    const int lane = this_thread() % 32;
    if (lane == 0) {
      arrive_expecting(of_cta<Config>(kQueryFull),
                       static_cast<u32>(boxes * Config::kQueryBox * 128 * kLatentPieces));
    }
    const int first_row = tile.first_token * params.num_heads + tile.first_row;
#pragma unroll 1
    for (int i = lane; i < boxes * kLatentPieces; i += 32) {
      const int piece = i % kLatentPieces;
      const int row = i / kLatentPieces * Config::kQueryBox;
      const int to = kLatentQueryAt + piece * kLatentPieceBytes + row * 128;
      load_box(of_cta<Config>(static_cast<u32>(to)), query_map,
               BoxAt<2>{{piece * 64, first_row + row}}, of_cta<Config>(kQueryFull), kEvictFirst);
    }
  }
}

/// What a thread knows of an item while it goes through the keys.
template <class Config, class Work>
struct LatentRun {
  const AttendParams& params;
  const Work& work;
  LatentThread thread;
  const LatentCursor<Config>& cursor;
  LatentKeys keys;
  static constexpr int kHeldPieces = 2;  // of the query

  /// Of scores, to log2 units.
  __device__ float factor() const { return params.score.softmax_scale * kLog2E; }
};
/// State of the softmax of a thread's rows: the largest score in log2 units, and the sum of this
/// thread's weights.
struct LatentState {
  RowPair maximum;
  RowPair sum;
};

/// A warp of a half is through with what the barrier guards.
__device__ __forceinline__ void release(u32 barrier, const LatentThread& thread) {
  if (thread.lane == 0) arrive(barrier);
}

/// The same with a half of a tile of keys. What takes a run here is overloaded in gathered.cuh, for
/// keys that threads bring.
template <class Config, class Work>
__device__ __forceinline__ void release_keys(const LatentRun<Config, Work>& run, int tile,
                                             int half) {
  release(of_cta<Config>(free_barrier(tile, half)), run.thread);
}

/// The scores of the tile from key `first_key` on are made: those that rows do not see become -inf,
/// and values that are not for all of them harmless.
template <int kTile, class Config, class Work>
__device__ __forceinline__ void mask_tile(float (&scores)[32], const LatentRun<Config, Work>& run,
                                          int first_key) {
  constexpr int kHalf = kTile == 0 ? kLeftHalf : kRightHalf;
  if (first_key + kLatentKeys <= run.keys.core) return;
  const RowTile tile = run.work.item(run.cursor.at()).tile;
  const auto end_of = [&](int row) {
    return latent_row_end(tile.context_len, tile.first_row + row, tile.group, run.keys.end);
  };
  mask_scores(scores, first_key, run.thread, end_of(run.thread.row), end_of(run.thread.row + 8));
  // A tile without a live key has been filled with zeros by the copy engine.
  if (run.keys.end <= first_key) return;
  sync_threads_of(kHalf, 128);
  clear_values<Config::kElement>(of_cta<Config>(static_cast<u32>(latent_key_tile(kTile))),
                                 larger(run.keys.core - first_key, 0),
                                 smaller(run.keys.end - first_key, kLatentKeys), run.thread);
  publish_shared_writes();
  sync_threads_of(kHalf, 128);
}

/// Waits until a piece of a tile is there.
template <class Config, class Work>
__device__ __forceinline__ void await_piece(const LatentRun<Config, Work>&, int tile, int piece,
                                            u32 parity) {
  await(of_cta<Config>(full_barrier(tile, piece)), parity);
}
/// Queues the scores of pieces [kFirst, kLast] of a tile, each as soon as it is there.
template <class Config, int kTile, int kFirst, int kLast, class Query, class Run>
__device__ __forceinline__ void queue_scores(float (&scores)[32], const Query& query,
                                             const Run& run, u32 parity, bool is_first) {
#pragma unroll
  for (int piece = kFirst; piece <= kLast; ++piece) {
    await_piece(run, kTile, piece, parity);
    wgmma_fence();
    add_scores<Config::kElement>(scores, query, static_cast<u32>(latent_key_tile(kTile)), piece,
                                 is_first && piece == kFirst);
  }
}
/// Of a whole tile 1, the half first that is loaded first.
template <class Config, class Query, class Run>
__device__ __forceinline__ void queue_odd_scores(float (&scores)[32], const Query& query,
                                                 const Run& run, u32 parity) {
  constexpr int kHalf = kLatentHalfPieces;
  constexpr int kRope = kLatentRopePiece;
  queue_scores<Config, 1, kHalf, 2 * kHalf - 1>(scores, query, run, parity, true);
  queue_scores<Config, 1, 0, kHalf - 1>(scores, query, run, parity, false);
  queue_scores<Config, 1, kRope, kRope>(scores, query, run, parity, false);
}

constexpr u32 kEvenKeys = latent_key_tile(0);
constexpr u32 kOddKeys = latent_key_tile(1);
constexpr u32 kEvenWeights = kEvenKeys + kLatentRopePiece * kLatentPieceBytes;
constexpr u32 kOddWeights = kOddKeys + kLatentRopePiece * kLatentPieceBytes;
constexpr u32 kRightValues = kLatentHalfPieces * kLatentPieceBytes;  // within a tile
constexpr u32 kScaleOfLeft = kLatentScaleAt;
constexpr u32 kScaleOfRight = kLatentScaleAt + kLatentRows * 4;
constexpr u32 kMaximumOfLeft = kLatentMaximumAt;
constexpr u32 kMaximumOfRight = kLatentMaximumAt + kLatentRows * 4;

__device__ __forceinline__ RowPair product(RowPair a, RowPair b) {
  return {a.low * b.low, a.high * b.high};
}
__device__ __forceinline__ RowPair sum_after(RowPair sum, RowPair factor, RowPair added) {
  return {sum.low * factor.low + added.low, sum.high * factor.high + added.high};
}
__device__ __forceinline__ RowPair maximum_after(RowPair before, RowPair scores, float factor) {
  return {fmaxf(before.low, scores.low * factor), fmaxf(before.high, scores.high * factor)};
}

/// The left half of an item that sees keys. `phases`: those of the first pair,
/// then of the one after the last.
template <class Config, class Query, class Run>
__device__ __forceinline__ void attend_left(float (&output)[128], LatentState& state,
                                            const Query& query, const Run& run, u32& phases) {
  constexpr Element kElement = Config::kElement;
  constexpr int kHalf = kLatentHalfPieces;
  const LatentThread& thread = run.thread;
  float scores[32];
  LeftOperand weights;
  pin(scores);
  queue_scores<Config, 0, 0, kLatentRopePiece>(scores, query, run, phases & kKeyPhase, true);
  close_product_group();
  await_products<0>();
  pin(scores);
#pragma unroll 1
  for (int key = run.keys.begin; key < run.keys.end; key += kPairKeys) {
    const bool is_last = key + kPairKeys >= run.keys.end;
    if (is_last) release(of_cta<Config>(kQueryFree), thread);
    mask_tile<0>(scores, run, key);
    const RowPair maximum = maximum_after(state.maximum, largest_scores(scores), run.factor());
    const RowPair own = rescaling(state.maximum, maximum);
    store_rows(of_cta<Config>(kScaleOfLeft), thread, own);
    store_rows(of_cta<Config>(kMaximumOfLeft), thread, maximum);
    arrive_threads_of(kMaximumReady, 256);
    const RowPair added = weigh(scores, run.factor(), maximum);
    state.sum = sum_after(state.sum, own, added);
    pack_weights<kElement>(scores, weights);
    rescale(output, own);
    pin(output);
    pin(weights);
    wgmma_fence();
    add_values<kElement>(output, weights, kEvenKeys);
    close_product_group();
    await_products<0>();
    pin(output);
    release_keys(run, 0, 0);

    sync_threads_of(kLastMaximumReady, 256);
    const RowPair theirs = load_rows(of_cta<Config>(kScaleOfRight), thread);
    state.maximum = load_rows(of_cta<Config>(kMaximumOfRight), thread);
    LeftOperand shared_weights;
    pack_weights<kElement>(scores, theirs, shared_weights);
    store_operand(of_cta<Config>(kEvenWeights), thread, shared_weights);
    publish_shared_writes();
    arrive_threads_of(kEvenWeightsReady, 256);
    state.sum = product(state.sum, theirs);
    rescale(output, theirs);
    sync_threads_of(kOddWeightsReady, 256);
    pin(output);
    wgmma_fence();
    add_values<kElement>(output, kOddWeights, kOddKeys);
    close_product_group();
    phases ^= kKeyPhase;
    if (!is_last) {
      pin(scores);
      queue_scores<Config, 0, 0, kHalf - 1>(scores, query, run, phases & kKeyPhase, true);
      close_product_group();
      await_products<1>();
      release_keys(run, 1, 0);
      queue_scores<Config, 0, kHalf, kLatentRopePiece>(scores, query, run, phases & kKeyPhase,
                                                       false);
      close_product_group();
    }
    await_products<0>();
    pin(output);
    pin(scores);
    if (is_last) release_keys(run, 1, 0);
  }
}

/// The right half, likewise.
template <class Config, class Query, class Run>
__device__ __forceinline__ void attend_right(float (&output)[128], LatentState& state,
                                             const Query& query, const Run& run, u32& phases) {
  constexpr Element kElement = Config::kElement;
  const LatentThread& thread = run.thread;
  float scores[32];
  LeftOperand weights;
  pin(scores);
  queue_odd_scores<Config>(scores, query, run, phases & kKeyPhase);
  close_product_group();
  await_products<0>();
  pin(scores);
#pragma unroll 1
  for (int key = run.keys.begin; key < run.keys.end; key += kPairKeys) {
    const bool is_last = key + kPairKeys >= run.keys.end;
    if (is_last) release(of_cta<Config>(kQueryFree), thread);
    mask_tile<1>(scores, run, key + kLatentKeys);
    const RowPair most = largest_scores(scores);
    sync_threads_of(kMaximumReady, 256);
    const RowPair before = load_rows(of_cta<Config>(kMaximumOfLeft), thread);
    const RowPair theirs = load_rows(of_cta<Config>(kScaleOfLeft), thread);
    state.maximum = maximum_after(before, most, run.factor());
    const RowPair own = rescaling(before, state.maximum);
    store_rows(of_cta<Config>(kScaleOfRight), thread, own);
    store_rows(of_cta<Config>(kMaximumOfRight), thread, state.maximum);
    arrive_threads_of(kLastMaximumReady, 256);
    const RowPair added = weigh(scores, run.factor(), state.maximum);
    const RowPair both = product(own, theirs);
    state.sum = sum_after(state.sum, both, added);
    pack_weights<kElement>(scores, weights);
    store_operand(of_cta<Config>(kOddWeights), thread, weights);
    publish_shared_writes();
    rescale(output, both);
    pin(output);
    pin(weights);
    wgmma_fence();
    add_values<kElement>(output, weights, kOddKeys + kRightValues);
    close_product_group();
    arrive_threads_of(kOddWeightsReady, 256);
    sync_threads_of(kEvenWeightsReady, 256);
    add_values<kElement>(output, kEvenWeights, kEvenKeys + kRightValues);
    close_product_group();
    await_products<1>();
    release_keys(run, 1, 1);
    await_products<0>();
    pin(output);
    pin(weights);
    release_keys(run, 0, 1);
    phases ^= kKeyPhase;
    if (!is_last) {
      pin(scores);
      queue_odd_scores<Config>(scores, query, run, phases & kKeyPhase);
      close_product_group();
    }
    await_products<0>();
    pin(scores);
  }
}

/// The query of a tile by ordinary loads, swizzled as the copy engine would; the other rows are 0
/// already, or those of an earlier tile.
template <class Config>
__device__ __forceinline__ void copy_query(const AttendParams& params, const RowTile& tile) {
  constexpr int kParts = 8 * kLatentPieces;  // of a row, 8 elements each
  const u16* const query = static_cast<const u16*>(params.query);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < tile.num_rows * kParts; i += 256) {
    const int row = i / kParts;
    const int part = i % kParts;
    const u16* const from = query + token_of(tile, row) * params.query_token_stride +
                            head_of(tile, row) * params.query_head_stride + part * 8;
    u32 words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) words[w] = from[2 * w] | static_cast<u32>(from[2 * w + 1]) << 16;
    const int to = part / 8 * kLatentPieceBytes + latent_part_at(row, part % 8);
    store_words(of_cta<Config>(kLatentQueryAt) + static_cast<u32>(to), words);
  }
}

/// The query of an item by ordinary loads, where no box brings it.
template <class Config, class Work>
__device__ __forceinline__ void fetch_query(const LatentRun<Config, Work>& run,
                                            const RowTile& tile) {
  copy_query<Config>(run.params, tile);
}
/// What output is multiplied by before it is stored.
template <class Config, class Work>
__device__ __forceinline__ float value_scale(const LatentRun<Config, Work>&) {
  return 1.0f;
}

/// The query of an item, by whichever way it comes, is there for both halves.
template <class Config, class Run>
__device__ __forceinline__ void receive_query(const Run& run, const RowTile& tile, u32& phases) {
  if constexpr (Config::kQueryBox != 0) {
    await(of_cta<Config>(kQueryFull), phases / kQueryPhase);
    phases ^= kQueryPhase;
  } else {
    fetch_query<Config>(run, tile);
    publish_shared_writes();
    sync_threads_of(kBothHalves, 256);
  }
}

/// All items, by the warpgroup of one half of the output. Run: LatentRun or what is made of it.
template <class Config, int kHalf, class Run, class Work>
__device__ __forceinline__ void attend_items(const AttendParams& params, const Work& work) {
  const LatentThread thread = latent_thread();
  float output[128];
  u32 phases = 0;
  LatentCursor<Config> cursor(work.first());
#pragma unroll 1
  for (; cursor.at() < work.end(); cursor.put(cursor.at() + work.step())) {
    const LatentItem item = work.item(cursor.at());
    if (item.tile.num_rows <= 0) continue;
    const Run run{params, work, thread, cursor, item.keys};
    LatentState state{{kNegInf, kNegInf}, {0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < 128; ++i) output[i] = 0.0f;
    RowPair total{0.0f, 0.0f};
    if (!item.keys.are_none()) {
      receive_query<Config>(run, item.tile, phases);
      HeldQuery<Run::kHeldPieces> query;
      hold_query(query, of_cta<Config>(kLatentQueryAt), thread);
      if constexpr (kHalf == 0) {
        attend_left<Config>(output, state, query, run, phases);
      } else {
        attend_right<Config>(output, state, query, run, phases);
      }
      total = total_of<Config>(state.sum, kHalf, thread);
      const float scale = value_scale(run);
      rescale(output, {scale, scale});
    }
    // Why again: held in registers all the while, the item would take those of the output.
    store_item<Config>(params, work, work.item(cursor.at()), thread, kHalf, output, state.maximum,
                       total);
  }
}

}  // namespace attn
