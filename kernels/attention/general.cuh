// Attention of every form (semantics §3, §4.3, §8.8, §8.9, §11.4), written for coverage: MLA's
// wide heads, f32, e4m3 and int8 queries, plans, lists of slots, any head size and block size. The
// kernels of prefill.cuh and decode.cuh are the fast ones for what they do. One CTA does one tile
// of packed rows; a tile of keys at a time is staged as operands, scored, folded and multiplied.
//
// Steps for every tile of keys, each followed by a barrier, with Q, K, V, S and P in shared memory
// (general_layout.cuh) and O in registers: find_keys(), where the keys lie; stage_keys(), as
// operands; S = Q @ K^T; fold_scores(), S -> P with kLanes threads for each row; O *= factor of its
// row, O += P @ V. There is no overlap of copies and products: every form works, none is fast.
//
// Softmax is in natural units here, in base 2 in the other kernels. With int8 queries and keys S is
// an exact integer, and their scales are applied to it in transform().
//
// Config: kQuery, kKey, kValue, kOutput (Element, as stored) · kScore, kProbability (operands of
// the two products) · kHeadSize, kVHeadSize · kRowBlocks (of 16 rows), kKeys (of a tile), kMinCtas
// (per multiprocessor) · kQueryVector, kKeyVector, kValueVector (elements of a load) · kSparse,
// kDsMla, kModel1 · kValueInKey (a value is the first columns of its key) · kAlibi, kSoftCap ·
// kTokenHeadScales, kRoundDequantized · kE4M3Probability · kCoding (of the cache)
#pragma once

#include "kernels/attention/general_parts.cuh"
#include "kernels/attention/general_products.cuh"
#include "kernels/attention/general_slots.cuh"

namespace attn {

/// What the threads of a CTA tell each other beside the tiles.
template <int kRows, int kKeys, bool kBlockScales>
struct GeneralShared {
  i64 queries[kRows];  // elements from the base of all queries; -1: no row
  i64 keys[kKeys];     // from the base of all keys; -1: no key
  i64 values[kKeys];
  float key_scales[kKeys];  // of int8 keys, or per token and head
  float value_scales[kKeys];
  i64 key_blocks[kBlockScales ? kKeys : 1];  // bytes from the base of the block scales
  i64 value_blocks[kBlockScales ? kKeys : 1];
  float factors[kRows];  // of O: what rescales it, at the end what finishes it
  float output_factor;
  TileBounds bounds;
};

template <class Config>
using GeneralSharedOf = GeneralShared<Config::kRowBlocks * 16, Config::kKeys,
                                      Config::kCoding == KvCoding::kNvfp4 || Config::kModel1>;

/// Products on the tensor cores, or on the CUDA cores for f32.
template <bool kTensor, class Config>
struct GeneralProducts {
  using Type = TensorProducts<Config>;
};
template <class Config>
struct GeneralProducts<false, Config> {
  using Type = PlainProducts<Config>;
};

template <class Config, class Part>
struct General {
  static constexpr int kRows = Config::kRowBlocks * 16;
  static constexpr int kKeys = Config::kKeys;
  static constexpr int kLanes = kGeneralThreads / kRows;  // threads of a row of S
  static constexpr int kOwnKeys = kKeys / kLanes;
  static constexpr GeneralLayout kLayout = kGeneralLayout<Config>;
  static constexpr bool kInt8 = Config::kScore == Element::kI8;
  static constexpr bool kCodes = size_of(Config::kKey) == 1 && !kInt8;
  /// Scales of the cache are part of the staged numbers.
  static constexpr bool kScaled =
      kCodes && Config::kRoundDequantized && !Config::kDsMla && !Config::kModel1;
  static constexpr bool kInt4 = Config::kCoding == KvCoding::kInt4;
  static constexpr bool kNvfp4 = Config::kCoding == KvCoding::kNvfp4;
  static constexpr bool kSlots = shares_slots(Config::kCoding);
  static constexpr bool kRotatedKeys = has_rotated_keys(Config::kCoding);
  using Shared = GeneralSharedOf<Config>;
  using Products = typename GeneralProducts<Config::kScore != Element::kF32, Config>::Type;

  const AttendParams& params;
  const SparseParams& sparse;
  const Part& part;
  const RowTile& tile;
  Shared& shared;
  unsigned char* memory;

  __device__ int row() const { return static_cast<int>(threadIdx.x) / kLanes; }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % kLanes; }
  __device__ float key_scale() const {
    return params.kv.k_scale == nullptr || kInt8 ? 1.0f : params.kv.k_scale[tile.kv_head];
  }
  __device__ float value_scale() const {
    return params.kv.v_scale == nullptr || kInt8 ? 1.0f : params.kv.v_scale[tile.kv_head];
  }

  /// Where the keys of the tile from `first` on lie, a thread for each: in the page table, in the
  /// list of the row's token (sparse) or behind the start of the request (ragged). Keys from `end`
  /// on, and listed slots that are none, get -1: they are not read, staged as zeros and masked.
  __device__ void find_keys(int first, int end) {
    const KvParams& kv = params.kv;
    const int j = static_cast<int>(threadIdx.x);
    if (j >= kKeys) return;
    const int key = first + j;
    i64 block = -1;
    i64 slot = 0;
    if (key < end) {
      if constexpr (Config::kSparse) {
        const int token = token_of(tile, 0);
        const int listed = sparse.slots[token * sparse.slots_stride + key];
        if (listed >= 0 && listed < sparse.num_slots) {
          block = listed / kv.block_size;
          slot = listed % kv.block_size;
        }
      } else if (kv.block_table != nullptr) {
        block = kv.block_table[tile.request * kv.block_table_stride + key / kv.block_size];
        slot = key % kv.block_size;
      } else {
        block = 0;
        slot = kv.kv_start_loc[tile.request] + key;
      }
    }
    const bool valid = block >= 0;
    const i64 first_element =
        kv.block_table != nullptr || Config::kSparse ? block * kv.block_stride : 0;
    shared.keys[j] =
        valid ? first_element + slot * kv.token_stride_key + tile.kv_head * kv.head_stride_key : -1;
    shared.values[j] =
        valid ? first_element + slot * kv.token_stride_value + tile.kv_head * kv.head_stride_value
              : -1;
    if constexpr (kInt8 || Config::kTokenHeadScales) {
      const i64 at = block * kv.scale_block_stride + slot * kv.scale_slot_stride +
                     tile.kv_head * kv.scale_head_stride;
      shared.key_scales[j] = valid ? kv.key_scales[at] : 0.0f;
      if constexpr (!kInt8) shared.value_scales[j] = valid ? kv.value_scales[at] : 0.0f;
    }
    if constexpr (kNvfp4) {
      const BlockScales& scales = kv.block_scales;
      const i64 head = block * scales.block_stride + tile.kv_head * scales.head_stride;
      shared.key_blocks[j] = head + slot * scales.slot_stride;
      // Those of four slots together; slot % 4 is the column, the block chooses slot and columns.
      shared.value_blocks[j] = head + slot / 4 * 4 * scales.slot_stride + slot % 4;
    }
    if constexpr (Config::kModel1) {
      // Behind the data of all slots of the block.
      shared.key_blocks[j] = block * kv.block_stride +
                             static_cast<i64>(kv.block_size) * kModel1DataBytes +
                             slot * kModel1ScaleBytes;
    }
  }

  /// Keys and values of the tile as operands, where the values are not part of the keys.
  __device__ void stage_keys() {
    unsigned char* const to = memory + kLayout.key;
    if constexpr (Config::kDsMla) {
      stage_ds_mla_rows<kKeys>(params.kv.key, shared.keys, to, kLayout.key_pitch);
    } else if constexpr (Config::kModel1) {
      stage_model1_rows<kKeys>(params.kv.key, shared.keys, shared.key_blocks, to,
                               kLayout.key_pitch);
    } else if constexpr (kInt4) {
      stage_int4_rows<Config::kScore, kKeys, Config::kHeadSize>(
          params.kv.key, shared.keys, shared.key_scales, to, kLayout.key_pitch);
      stage_int4_rows<Config::kProbability, kKeys, Config::kVHeadSize>(
          params.kv.value, shared.values, shared.value_scales, memory + kLayout.value,
          kLayout.value_pitch);
    } else if constexpr (kNvfp4) {
      const BlockScales& scales = params.kv.block_scales;
      stage_nvfp4_rows<Config::kScore, kKeys, Config::kHeadSize, false>(
          params.kv.key, shared.keys, scales.key, shared.key_blocks, scales.slot_stride, to,
          kLayout.key_pitch);
      stage_nvfp4_rows<Config::kProbability, kKeys, Config::kVHeadSize, true>(
          params.kv.value, shared.values, scales.value, shared.value_blocks, scales.slot_stride,
          memory + kLayout.value, kLayout.value_pitch);
    } else if constexpr (kSlots) {
      stage_slot_keys<Config::kCoding, kKeys, Config::kHeadSize>(
          params.kv.key, shared.keys, params.kv.centroids, shared.key_scales, to,
          kLayout.key_pitch);
      stage_slot_values<Config::kCoding, kKeys, Config::kVHeadSize>(
          params.kv.value, shared.values, memory + kLayout.value, kLayout.value_pitch);
    } else {
      stage_rows<Config::kKey, Config::kScore, kScaled, kKeys, Config::kHeadSize,
                 Config::kKeyVector>(params.kv.key, shared.keys, key_scale(), to,
                                     kLayout.key_pitch);
    }
    if constexpr (!Config::kValueInKey && !kInt4 && !kNvfp4 && !kSlots) {
      stage_rows<Config::kValue, Config::kProbability, kScaled, kKeys, Config::kVHeadSize,
                 Config::kValueVector>(params.kv.value, shared.values, value_scale(),
                                       memory + kLayout.value, kLayout.value_pitch);
    }
  }

  /// Queries as operands, and zeros in the columns that pad them and the keys.
  __device__ void stage_query() {
    for (int r = threadIdx.x; r < kRows; r += kGeneralThreads) {
      shared.queries[r] = r < tile.num_rows ? token_of(tile, r) * params.query_token_stride +
                                                  head_of(tile, r) * params.query_head_stride
                                            : -1;
    }
    __syncthreads();
    constexpr int kPitch = kLayout.key_pitch;
    stage_rows<Config::kQuery, Config::kScore, false, kRows, Config::kHeadSize,
               Config::kQueryVector>(params.query, shared.queries, 1.0f, memory + kLayout.query,
                                     kPitch);
    if constexpr (kRotatedKeys) {
      rotate_rows<kRows, Config::kHeadSize>(memory + kLayout.query, kPitch);
    }
    constexpr int kUsed = Config::kHeadSize * size_of(Config::kScore);
    clear_columns(memory + kLayout.query, kRows, kUsed, kPitch);
    clear_columns(memory + kLayout.key, kKeys, kUsed, kPitch);
  }

  /// This thread's row; those past the tile see nothing.
  __device__ Row make_row() const {
    const KeyInterval run = part.keys();
    Row mine = describe_row(params, tile, run, row());
    if (Config::kSparse && row() < tile.num_rows) mine.keys = run;
    return mine;
  }

  /// shared.bounds of all rows, by atomics of one thread for each. All threads; ends with a
  /// barrier.
  __device__ void gather_bounds(const Row& mine) {
    if (threadIdx.x == 0) {
      shared.bounds = no_rows();
      // Why here: the slow path of a division is a call, which would spill the output.
      shared.output_factor = output_factor(params);
    }
    __syncthreads();
    if (lane() == 0 && row() < tile.num_rows) {
      atomicMax(&shared.bounds.core.begin, mine.keys.begin);
      atomicMin(&shared.bounds.core.end, mine.keys.end);
      if (mine.keys.begin < mine.keys.end) {
        atomicMin(&shared.bounds.hull.begin, mine.keys.begin);
        atomicMax(&shared.bounds.hull.end, mine.keys.end);
      }
    }
    __syncthreads();
  }

  /// Scale, soft cap and ALiBi, in this order (semantics §3.1).
  __device__ float transform(float dot, int j, int key, const Row& mine, float factor,
                             float query_scale) const {
    float score = dot * factor;
    if constexpr (kInt8) {
      score = dot * (params.score.softmax_scale * (query_scale * shared.key_scales[j]));
    } else if constexpr (Config::kTokenHeadScales) {
      score *= kInt4 ? int4_scale(shared.key_scales[j]) : shared.key_scales[j];
    } else if constexpr (kRotatedKeys) {
      score *= shared.key_scales[j];
    }
    if constexpr (Config::kSoftCap) {
      score = params.score.soft_cap * tanhf(score * reciprocal_fast(params.score.soft_cap));
    }
    if constexpr (Config::kAlibi != Alibi::kNone) {
      const int place =
          place_of_key(Config::kAlibi, key_places(Config::kAlibi, params.score, tile.request), key);
      const auto ahead = static_cast<float>(place - mine.position);
      const float slope = mine.slope * kLn2;
      if constexpr (local_form(Config::kAlibi) == Alibi::kDistance) {
        score -= slope * fabsf(ahead);
      } else if constexpr (local_form(Config::kAlibi) == Alibi::kSqrt) {
        score -= slope * sqrtf(fmaxf(-ahead, 0.0f));
      } else {
        score += slope * ahead;
      }
    }
    return score;
  }

  /// P of key j of this thread's row, as the second product's operand. With kE4M3Probability it is
  /// rounded to e4m3 after a shift by 2^8, which finish_row() takes back; the sum is of the values
  /// before.
  __device__ void store_probability(int j, float p) {
    if constexpr (Config::kTokenHeadScales) {
      const float scale = kInt4 ? int4_scale(shared.value_scales[j]) : shared.value_scales[j];
      p = p == 0.0f ? 0.0f : p * scale;
    }
    if constexpr (Config::kE4M3Probability) {
      p = e4m3_to_float(e4m3_from_float(p * kE4M3ProbabilityShift));
    }
    const float values[1] = {p};
    store_vector(memory + kLayout.probabilities + row() * kLayout.probability_pitch +
                     j * size_of(Config::kProbability),
                 encode_vector<Config::kProbability>(values));
  }

  /// S -> P of this thread's keys of its row; `maximum` and `sum` grow.
  __device__ void fold_scores(int first, const Row& mine, float factor, float query_scale,
                              float& maximum, float& sum) {
    const auto* scores =
        reinterpret_cast<const float*>(memory + kLayout.scores + row() * kLayout.score_pitch);
    float own[kOwnKeys];
    float most = maximum;
#pragma unroll
    for (int i = 0; i < kOwnKeys; ++i) {
      const int j = lane() + i * kLanes;
      const int key = first + j;
      const bool visible = key >= mine.keys.begin && key < mine.keys.end && shared.keys[j] >= 0;
      own[i] = visible ? transform(scores[j], j, key, mine, factor, query_scale) : kNegInf;
      most = fmaxf(most, own[i]);  // NaN is passed over here and shows in P
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    }
    // Why: a row that has seen no key has maximum -inf, and (-inf) - (-inf) is NaN.
    const float base = most == kNegInf ? 0.0f : most;
    const float rescale = maximum == most ? 1.0f : expf(maximum - base);
    float added = 0.0f;
#pragma unroll
    for (int i = 0; i < kOwnKeys; ++i) {
      const float p = expf(own[i] - base);
      added += p;
      store_probability(lane() + i * kLanes, p);
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      added += __shfl_xor_sync(0xFFFFFFFFu, added, step);
    }
    maximum = most;
    sum = sum * rescale + added;
    if (lane() == 0) shared.factors[row()] = rescale;
  }

  /// State of this thread's row, and the factor of its outputs.
  __device__ void finish_row(const Row& mine, float maximum, float sum) {
    if (lane() != 0) return;
    float factor = kScaled ? 1.0f : value_scale();
    if (!Config::kSparse && part.with_sink()) {
      const float sink = sink_of_row(params, tile, Config::kAlibi, mine, row());
      factor *= add_sink(sink, maximum, sum,
                         [](float base, float to) { return base == to ? 1.0f : expf(base - to); });
    }
    if constexpr (Config::kE4M3Probability) factor *= 1.0f / kE4M3ProbabilityShift;
    if constexpr (Part::kNormalise) {
      factor = sum == 0.0f ? 0.0f : factor * reciprocal_fast(sum);
    }
    if (part.is_output()) factor *= shared.output_factor;
    shared.factors[row()] = factor;
    if (row() >= tile.num_rows) return;
    const float shift = alibi_row_constant(Config::kAlibi, mine, tile.context_len);
    part.store_state(params, {token_of(tile, row()), head_of(tile, row()), maximum + shift, sum});
  }

  /// Output of the rows: O * the factor of its row (* the scale of its channel for int8 values).
  __device__ void store(Products& products) {
    const float* const channels = params.int8.value_channel_scale;
    products.for_each([&](int r, int column, float& value) {
      if (r >= tile.num_rows) return;
      float result = value * shared.factors[r];
      if (kInt8 && channels != nullptr) {
        result *= channels[static_cast<i64>(tile.kv_head) * Config::kVHeadSize + column];
      }
      part.template store<Config>(params, token_of(tile, r), head_of(tile, r), column, result);
    });
  }

  __device__ void run() {
    stage_query();
    const Row mine = make_row();
    gather_bounds(mine);
    const TileBounds bounds = shared.bounds;
    float maximum = kNegInf;
    float sum = 0.0f;
    float query_scale = 1.0f;
    if (kInt8 && row() < tile.num_rows) {
      query_scale =
          params.int8.query_scale[token_of(tile, row()) * params.int8.query_scale_token_stride +
                                  head_of(tile, row()) * params.int8.query_scale_head_stride];
    }
    const float factor = params.score.softmax_scale * (kScaled ? 1.0f : key_scale());
    Products products{};
    const int end = bounds.hull.end;
    for (int first = smaller(bounds.hull.begin, end) / kKeys * kKeys; first < end; first += kKeys) {
      find_keys(first, end);
      __syncthreads();
      stage_keys();
      __syncthreads();
      products.multiply_scores(memory);
      __syncthreads();
      fold_scores(first, mine, factor, query_scale, maximum, sum);
      bool found = false;
      if (needs_mask(bounds, first, first + kKeys)) {
        found = has_nonfinite<Config::kProbability, Config::kVHeadSize>(memory + kLayout.value,
                                                                        kKeys, kLayout.value_pitch);
      }
      found = __syncthreads_or(found);
      products.for_each([&](int r, int, float& value) { value *= shared.factors[r]; });
      if (found) {
        products.add_values_slowly(memory);
      } else {
        products.add_values(memory);
      }
      __syncthreads();
    }
    __syncthreads();
    finish_row(mine, maximum, sum);
    __syncthreads();
    store(products);
  }
};

/// Row tile `index` of a request. Sparse rows of a tile share a token, whose list is theirs: tiles
/// then go over the heads of a token, and the last one of a token may be partly empty.
template <class Config>
__device__ __forceinline__ RowTile general_row_tile(const AttendParams& params, int request,
                                                    int kv_head, int index) {
  constexpr int kRows = Config::kRowBlocks * 16;
  if constexpr (!Config::kSparse) {
    return row_tile(params, request, kv_head, index * kRows, kRows);
  }
  const int tiles = (params.num_heads + kRows - 1) / kRows;
  const int first_head = index % tiles * kRows;
  RowTile tile{};
  tile.request = request;
  tile.group = params.num_heads;
  tile.first_token = params.query_start_loc[request];
  const int query_len = params.query_start_loc[request + 1] - tile.first_token;
  tile.first_row = index / tiles * params.num_heads + first_head;
  tile.num_rows = index / tiles < query_len ? smaller(kRows, params.num_heads - first_head) : 0;
  return tile;
}

/// Keys of a row tile: those of its request, or the length of its token's list.
template <class Config>
__device__ __forceinline__ int num_keys_of(const AttendParams& params, const SparseParams& sparse,
                                           const RowTile& tile) {
  if constexpr (!Config::kSparse) {
    return tile.seq_len;
  }
  if (sparse.topk_length == nullptr) return sparse.topk;
  return larger(0, smaller(sparse.topk, sparse.topk_length[token_of(tile, 0)]));
}

/// One row tile of a request, over the keys and with the destination of make_part(number of keys).
template <class Config, class MakePart>
__device__ __forceinline__ void attend_generally(const AttendParams& params,
                                                 const SparseParams& sparse, int request,
                                                 int kv_head, int index, MakePart make_part) {
  extern __shared__ uint4 general_memory[];
  __shared__ GeneralSharedOf<Config> shared;
  __shared__ RowTile tile;  // as in prefill.cuh: registers hold the output
  if (threadIdx.x == 0) tile = general_row_tile<Config>(params, request, kv_head, index);
  __syncthreads();
  if (tile.num_rows <= 0) return;
  const auto part = make_part(num_keys_of<Config>(params, sparse, tile));
  using Part = decltype(make_part(0));
  General<Config, Part> work{params, sparse, part,
                             tile,   shared, reinterpret_cast<unsigned char*>(general_memory)};
  work.run();
}

/// The head fastest, then the request, the part and the row tile.
struct GeneralPlace {
  int kv_head;
  int request;
  int part;
  int index;
};
__device__ __forceinline__ GeneralPlace general_place(const AttendParams& params, int num_parts) {
  const unsigned heads = static_cast<unsigned>(params.num_kv_heads);
  const unsigned requests = static_cast<unsigned>(params.num_requests);
  const unsigned parts = static_cast<unsigned>(num_parts);
  const unsigned rest = blockIdx.x / heads;
  return {static_cast<int>(blockIdx.x % heads),
          params.first_request + static_cast<int>(rest % requests),
          static_cast<int>(rest / requests % parts), static_cast<int>(rest / requests / parts)};
}

/// Grid of these: x = KV heads * requests * parts * row tiles of the longest query.
template <class Config>
__global__ void __launch_bounds__(kGeneralThreads, Config::kMinCtas)
    general(const __grid_constant__ AttendParams params) {
  const GeneralPlace at = general_place(params, 1);
  attend_generally<Config>(params, SparseParams{}, at.request, at.kv_head, at.index,
                           [](int num_keys) { return GeneralWhole{num_keys}; });
}
template <class Config>
__global__ void __launch_bounds__(kGeneralThreads, Config::kMinCtas)
    general_splits(const __grid_constant__ AttendParams params,
                   const __grid_constant__ SplitParams split) {
  const GeneralPlace at = general_place(params, split.num_splits);
  attend_generally<Config>(params, SparseParams{}, at.request, at.kv_head, at.index,
                           [&](int num_keys) {
                             return GeneralSplit{split, at.part, num_keys};
                           });
}
template <class Config>
__global__ void __launch_bounds__(kGeneralThreads, Config::kMinCtas)
    general_segments(const __grid_constant__ AttendParams params,
                     const __grid_constant__ SegmentParams segments) {
  const GeneralPlace at = general_place(params, segments.num_segments);
  attend_generally<Config>(params, SparseParams{}, at.request, at.kv_head, at.index,
                           [&](int num_keys) {
                             return GeneralSegment{segments, at.part, num_keys};
                           });
}
template <class Config>
__global__ void __launch_bounds__(kGeneralThreads, Config::kMinCtas)
    general_sparse(const __grid_constant__ AttendParams params,
                   const __grid_constant__ SparseParams sparse) {
  const GeneralPlace at = general_place(params, 1);
  attend_generally<Config>(params, sparse, at.request, at.kv_head, at.index,
                           [](int num_keys) { return GeneralWhole{num_keys}; });
}

/// All requests of a part of the plan, one after another; the barrier keeps the next one from
/// writing to shared memory that the last one still reads.
template <class Config>
__device__ __forceinline__ void attend_part(const AttendParams& params, const SparseParams& sparse,
                                            const PlanParams& plan) {
  const int kv_head = static_cast<int>(blockIdx.x) % params.num_kv_heads;
  const int index = static_cast<int>(blockIdx.x) / params.num_kv_heads;
  const int part = static_cast<int>(blockIdx.y);
  const int* const record = plan.parts + static_cast<i64>(part) * kPlanRecord;
  const int last = record[1];
  for (int request = record[0]; request <= last; ++request) {
    attend_generally<Config>(
        params, sparse, params.first_request + request, kv_head, index,
        [&](int num_keys) { return plan_item(params, plan, part, request, num_keys); });
    __syncthreads();
  }
}

/// Grid of these: x = KV heads * row tiles of the longest query, y = parts of the plan.
template <class Config>
__global__ void __launch_bounds__(kGeneralThreads, Config::kMinCtas)
    general_plan(const __grid_constant__ AttendParams params,
                 const __grid_constant__ PlanParams plan) {
  attend_part<Config>(params, SparseParams{}, plan);
}
template <class Config>
__global__ void __launch_bounds__(kGeneralThreads, Config::kMinCtas)
    general_sparse_plan(const __grid_constant__ AttendParams params,
                        const __grid_constant__ SparseParams sparse,
                        const __grid_constant__ PlanParams plan) {
  attend_part<Config>(params, sparse, plan);
}

}  // namespace attn
