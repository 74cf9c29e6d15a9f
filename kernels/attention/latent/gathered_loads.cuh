// The loads of gathered.cuh, by the threads of a warpgroup: entries of keys wherever they lie,
// copied (cp.async) or converted on the way, into the tiles that latent_products.cuh multiplies.
//
// A warp knows the places of its 16 keys of both tiles of a pair, one a lane, and hands them to the
// lanes that load by shuffles. Entries that are converted are in registers before the place where
// they go is free: as soon as one vector has been stored, the same registers load the next half.
#pragma once

#include "kernels/attention/latent/gathered_parts.cuh"
#include "kernels/attention/latent/latent_products.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/codes.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace attn {

/// Place of a thread in the warpgroup that gathers, and where in a piece it stores of its first
/// key, with the CTA's rank of of_cta(): it costs no register that way.
struct GatherThread {
  int warp;
  int lane;
  int copied;     // its part of a piece
  int converted;  // the first of the two parts of codes that it converts
};
template <class Config>
__device__ __forceinline__ GatherThread gather_thread() {
  const int warp = this_thread() / 32 % kGatherWarps;
  const int lane = this_thread() % 32;
  const int row = gathered_key(warp, lane, 0);
  const int rank = static_cast<int>(of_cta<Config>(0));
  return {warp, lane, rank + latent_part_at(row, lane % 8),
          rank + gathered_piece(0, 0, lane) * kLatentPieceBytes +
              latent_part_at(row, gathered_part(lane, 0))};
}
/// Address of the same part of the key of a step, in a piece of a tile: keys of an odd step are
/// four rows further on, where the swizzle has bit 2 of the part turned over. Hidden, since one of
/// these for every step would take the registers of what is under way.
__device__ __forceinline__ u32 gathered_at(int part, int tile, int piece, int step) {
  const int at = step % 2 == 0 ? hidden(part) : (hidden(part) ^ 64) + 4 * 128;
  return static_cast<u32>(latent_key_tile(tile) + piece * kLatentPieceBytes + step / 2 * 8 * 128 +
                          at);
}
/// The other one of the two parts of converted codes.
__device__ __forceinline__ u32 other_part(u32 at) { return at ^ 16; }

/// The entries of a cache, by their places; strides in bytes.
struct Entries {
  const char* first;
  int stride;
  __device__ const char* at(int place) const { return first + static_cast<i64>(place) * stride; }
};

/// Place of the key that this lane loads in a step of a tile; -1: none.
__device__ __forceinline__ int place_in_step(int places, int tile, int step,
                                             const GatherThread& thread) {
  return __shfl_sync(0xFFFFFFFFu, places, tile * 16 + step * 4 + thread.lane / 8);
}

/// Says which keys of a tile there are, by the warp; others see it after its next arrival.
template <class Config>
__device__ __forceinline__ void note_seen(int places, int tile, const GatherThread& thread) {
  const u32 seen = __ballot_sync(0xFFFFFFFFu, places >= 0) >> tile * 16 & kAllSeen;
  if (thread.lane != 0) return;
  store_word(of_cta<Config>(static_cast<u32>(gathered_seen_at(tile, thread.warp))), seen);
}

/// Copies the pieces of a half; those of keys that are none become 0.
template <class Config>
__device__ __forceinline__ void copy_half(const Entries& entries, int places, GatheredHalf at,
                                          const GatherThread& thread) {
  const int first = at.half * kLatentHalfPieces;
  const char* from[kGatherSteps];
  u32 holes = 0;
#pragma unroll
  for (int step = 0; step < kGatherSteps; ++step) {
    const int place = place_in_step(places, at.tile, step, thread);
    if (place < 0) holes |= 1u << step;
    from[step] = entries.at(place < 0 ? 0 : place) + thread.lane % 8 * 16;
  }
  const auto copy = [&](int piece) {
#pragma unroll
    for (int step = 0; step < kGatherSteps; ++step) {
      copy_async<16>(gathered_at(thread.copied, at.tile, piece, step), from[step] + piece * 128,
                     (holes >> step & 1) == 0);
    }
    if constexpr (Config::kByPieces) {
      arrive_after_copies(of_cta<Config>(full_barrier(at.tile, piece)));
    }
  };
#pragma unroll
  for (int piece = 0; piece < kLatentHalfPieces; ++piece) copy(first + piece);
  if (at.has_rope()) copy(kLatentRopePiece);
  if constexpr (!Config::kByPieces) {
    arrive_after_copies(of_cta<Config>(full_barrier(at.tile, first)));
  }
}

/// A half of a tile on its way: 32 codes of each of a thread's four keys, and in "fp8_ds_mla" the
/// scale of key lane % 16 of the warp for chunk lane / 16 of them.
struct CodesAhead {
  uint4 codes[kGatherSteps][2];
  float scale;
};
__device__ __forceinline__ uint4 load_codes(const char* at, bool is_key) {
  if (!is_key) return {0, 0, 0, 0};
  return *reinterpret_cast<const uint4*>(at);
}
/// The key of one step.
__device__ __forceinline__ void load_ahead(CodesAhead& ahead, int step, const Entries& entries,
                                           int places, GatheredHalf at,
                                           const GatherThread& thread) {
  const int place = place_in_step(places, at.tile, step, thread);
  const char* const codes = entries.at(place) + gathered_code(at.half, 0, thread.lane);
#pragma unroll
  for (int chunk = 0; chunk < 2; ++chunk) {
    ahead.codes[step][chunk] = load_codes(codes + chunk * kDsMlaTile, place >= 0);
  }
}
template <MlaEntry kFormat>
__device__ __forceinline__ float load_scale_ahead(const Entries& entries, int places,
                                                  GatheredHalf at, const GatherThread& thread) {
  if constexpr (kFormat != MlaEntry::kDsMla) return 1.0f;
  const int place = __shfl_sync(0xFFFFFFFFu, places, at.tile * 16 + thread.lane % 16);
  const char* const scale = entries.at(place) + kDsMlaLatent + (at.half * 2 + thread.lane / 16) * 4;
  return place < 0 ? 0.0f : *reinterpret_cast<const float*>(scale);
}

/// Of this CTA in its pair, and so of the tile that it converts.
__device__ __forceinline__ int paired_rank() { return this_cta() % 2; }
/// The same place in the other CTA.
__device__ __forceinline__ u32 in_peer(u32 address) {
  return in_cta(address, static_cast<u32>(1 - paired_rank()));
}

/// 16 codes as two 16-byte parts; where `swaps`, the second one goes to `first`. If it sends them,
/// the other CTA of a pair gets them too, and counts them by its barrier `full`.
template <class Config, bool kSends>
__device__ __forceinline__ void store_codes(const uint4& codes, float scale, u32 first, u32 second,
                                            bool swaps, u32 full) {
  constexpr bool kScaled = Config::kFormat == MlaEntry::kDsMla || Config::kRounded;
  const auto store = [&](u32 to, u32 low, u32 high) {
    const Four16 some = decode_codes<Element::kE4M3, Config::kElement, kScaled>(low, scale);
    const Four16 others = decode_codes<Element::kE4M3, Config::kElement, kScaled>(high, scale);
    const u32 words[4] = {some.low, some.high, others.low, others.high};
    store_words(to, words);
    if constexpr (kSends) send_words(in_peer(to), words, in_peer(full));
  };
  store(first, swaps ? codes.z : codes.x, swaps ? codes.w : codes.y);
  store(second, swaps ? codes.x : codes.z, swaps ? codes.y : codes.w);
}

/// Stores a half that has been loaded, and loads the one that follows it (`next_places`, `next`)
/// into the same registers.
template <class Config>
__device__ __forceinline__ void convert_half(CodesAhead& ahead, const Entries& entries,
                                             GatheredHalf at, int next_places, GatheredHalf next,
                                             float scale, const GatherThread& thread) {
  constexpr MlaEntry kFormat = Config::kFormat;
  const u32 full = full_barrier(at.tile, at.half * kLatentHalfPieces);
  const float next_scale = load_scale_ahead<kFormat>(entries, next_places, next, thread);
#pragma unroll
  for (int step = 0; step < kGatherSteps; ++step) {
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      float factor = scale;
      if constexpr (kFormat == MlaEntry::kDsMla) {
        factor = __shfl_sync(0xFFFFFFFFu, ahead.scale, chunk * 16 + step * 4 + thread.lane / 8);
      }
      const u32 to = gathered_at(thread.converted, at.tile, (at.half * 2 + chunk) * 2, step);
      store_codes<Config, Config::kPaired>(ahead.codes[step][chunk], factor, to, other_part(to),
                                           thread.lane / 4 % 2 != 0, full);
    }
    load_ahead(ahead, step, entries, next_places, next, thread);
  }
  ahead.scale = next_scale;
}

/// Rope parts in codes: four lanes share a key, so there are two steps. Their loads are under way
/// while the rest of the half is converted.
constexpr int kRopeSteps = 2;
__device__ __forceinline__ int rope_key(int step, const GatherThread& thread) {
  return step * 8 + thread.lane / 4;  // of the warp's
}
__device__ __forceinline__ void load_rope_codes(uint4 (&codes)[kRopeSteps], const Entries& entries,
                                                int places, int tile, const GatherThread& thread) {
#pragma unroll
  for (int step = 0; step < kRopeSteps; ++step) {
    const int place = __shfl_sync(0xFFFFFFFFu, places, tile * 16 + rope_key(step, thread));
    codes[step] = load_codes(entries.at(place) + kLatentValues + thread.lane % 4 * 16, place >= 0);
  }
}
/// Four lanes have even parts of an even row and four others those of an odd one, so they meet in
/// no bank.
template <class Config>
__device__ __forceinline__ void store_rope_codes(const uint4 (&codes)[kRopeSteps], int tile,
                                                 float scale, const GatherThread& thread) {
  const u32 to = of_cta<Config>(
      static_cast<u32>(latent_key_tile(tile) + kLatentRopePiece * kLatentPieceBytes));
  const int part = thread.lane % 4 * 2;
#pragma unroll
  for (int step = 0; step < kRopeSteps; ++step) {
    const int row = thread.warp * kGatherKeys + rope_key(step, thread);
    store_codes<Config, false>(codes[step], scale, to + static_cast<u32>(latent_part_at(row, part)),
                               to + static_cast<u32>(latent_part_at(row, part + 1)), false, 0);
  }
}
/// k_pe of "fp8_ds_mla", which has 16 bits.
template <class Config>
__device__ __forceinline__ void copy_rope(const Entries& entries, int places, GatheredHalf at,
                                          const GatherThread& thread) {
  constexpr int kRopeAt = kDsMlaLatent + kDsMlaLatent / kDsMlaTile * 4;
  const int part = thread.lane % 8;
#pragma unroll
  for (int step = 0; step < kGatherSteps; ++step) {
    const int place = place_in_step(places, at.tile, step, thread);
    copy_async<16>(gathered_at(thread.copied, at.tile, kLatentRopePiece, step),
                   entries.at(place < 0 ? 0 : place) + kRopeAt + part * 16, place >= 0);
  }
  arrive_after_copies(of_cta<Config>(full_barrier(at.tile, at.half * kLatentHalfPieces)));
}

/// Halves of a thread that are under way: two where the products leave it registers for that.
template <class Config>
constexpr int kHalvesAhead = Config::kFew ? 2 : 1;
/// Steps from a half to the one that is loaded in its place: in pairs of CTAs the other one has
/// every second.
template <class Config>
constexpr int kStepsAhead = Config::kPaired ? 2 : kHalvesAhead<Config>;

/// One step of a pair of tiles: a half goes where it belongs, and the one that comes kStepsAhead
/// later is loaded in its place.
template <class Config>
__device__ __forceinline__ void gather_half(CodesAhead& ahead, const Entries& entries, int step,
                                            int places, int next_places, u32 parity, float scale,
                                            const GatherThread& thread) {
  constexpr MlaEntry kFormat = Config::kFormat;
  const GatheredHalf at = gathered_half(step);
  const u32 full = of_cta<Config>(full_barrier(at.tile, at.half * kLatentHalfPieces));
  uint4 rope[kRopeSteps];
  if constexpr (kFormat == MlaEntry::kE4M3) {
    if (at.has_rope()) load_rope_codes(rope, entries, places, at.tile, thread);
  }
  await(of_cta<Config>(free_barrier(at.tile, at.half)), parity);
  if (!at.has_rope()) note_seen<Config>(places, at.tile, thread);
  if constexpr (is_copied(kFormat)) {
    copy_half<Config>(entries, places, at, thread);
    if (!at.has_rope() && thread.lane == 0) arrive(full);
  } else {
    if constexpr (kFormat == MlaEntry::kDsMla) {
      if (at.has_rope()) copy_rope<Config>(entries, places, at, thread);
    }
    convert_half<Config>(ahead, entries, at, next_places,
                         gathered_half((step + kStepsAhead<Config>) % kGatheredHalves), scale,
                         thread);
    if constexpr (kFormat == MlaEntry::kE4M3) {
      if (at.has_rope()) store_rope_codes<Config>(rope, at.tile, scale, thread);
    }
    publish_shared_writes();
    __syncwarp();
    if (thread.lane == 0) arrive(full);
  }
}

/// One step of a pair of tiles whose half the other CTA converts and sends.
template <class Config>
__device__ __forceinline__ void receive_half(const Entries& entries, int step, int places,
                                             u32 parity, float scale, const GatherThread& thread) {
  constexpr bool kCopiesRope = Config::kFormat == MlaEntry::kDsMla;
  const GatheredHalf at = gathered_half(step);
  const u32 full = of_cta<Config>(full_barrier(at.tile, at.half * kLatentHalfPieces));
  uint4 rope[kRopeSteps];
  if (!kCopiesRope && at.has_rope()) load_rope_codes(rope, entries, places, at.tile, thread);
  await(of_cta<Config>(free_barrier(at.tile, at.half)), parity);
  if (!at.has_rope()) {
    note_seen<Config>(places, at.tile, thread);
  } else if constexpr (kCopiesRope) {
    copy_rope<Config>(entries, places, at, thread);
  } else {
    store_rope_codes<Config>(rope, at.tile, scale, thread);
    publish_shared_writes();
    __syncwarp();
  }
  if (thread.lane != 0) return;
  if (thread.warp == 0) {
    arrive_expecting(full, kGatheredHalfBytes);
  } else if (!kCopiesRope || !at.has_rope()) {
    arrive(full);
  }
}

/// The two tiles of a pair. `places` and `next_places` are of this one and the one behind it.
template <class Config>
__device__ __forceinline__ void gather_pair(CodesAhead (&ahead)[kHalvesAhead<Config>],
                                            const Entries& entries, int places, int next_places,
                                            u32 parity, float scale, const GatherThread& thread) {
  constexpr int kAhead = kHalvesAhead<Config>;
  if constexpr (Config::kPaired) {
    static_assert(kAhead == 1 && !is_copied(Config::kFormat));
#pragma unroll 1
    for (int step = 0; step < kGatheredHalves; ++step) {
      if (step % 2 != paired_rank()) {
        receive_half<Config>(entries, step, places, parity, scale, thread);
        continue;
      }
      const bool is_last = step + kStepsAhead<Config> >= kGatheredHalves;
      gather_half<Config>(ahead[0], entries, step, places, is_last ? next_places : places, parity,
                          scale, thread);
    }
  } else {
#pragma unroll 1
    for (int step = 0; step < kGatheredHalves; step += kAhead) {
      const bool is_last = step + kAhead >= kGatheredHalves;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        gather_half<Config>(ahead[i], entries, step + i, places, is_last ? next_places : places,
                            parity, scale, thread);
      }
    }
  }
}

/// The entry of this lane's key into the L2, a pair of tiles before it is loaded. Why: the last two
/// halves of a pair become free at the same time, when those that multiply wait for them, and their
/// codes come from the L2 then (264 us instead of 306 of "fp8_ds_mla", 1.51 ms instead of 1.91 of
/// e4m3, 128 heads, one NVIDIA H200, 2026-11-29). Copies of 16 bits take longer with it: 128 tokens
/// of 128 heads 186 us instead of 160, of 64 heads 128 instead of 97 (2026-12-01).
template <MlaEntry kFormat>
__device__ __forceinline__ void fetch_entry(const Entries& entries, int place) {
  constexpr int kCodes = kLatentValues + kLatentRope;
  constexpr int kBytes = kFormat == MlaEntry::kDsMla ? kDsMlaEntryBytes : kCodes;
  constexpr int kLines = (kBytes + 127) / 128;
  if (is_copied(kFormat) || place < 0) return;
#pragma unroll
  for (int line = 0; line < kLines; ++line) {
    fetch_line(entries.at(place) + smaller(line * 128, kBytes - 1));
  }
}
/// All items, as fast as what they overwrite becomes free. By the warpgroup.
template <class Config, class Keys, class Work>
__device__ __forceinline__ void gather_items(const AttendParams& params, const SparseParams& sparse,
                                             const Work& work, const TensorMap& query_map) {
  const GatherThread thread = gather_thread<Config>();
  const Entries entries{
      static_cast<const char*>(params.kv.key),
      static_cast<int>(params.kv.token_stride_key) * (is_copied(Config::kFormat) ? 2 : 1)};
  const float scale =
      Config::kRounded && params.kv.k_scale != nullptr ? params.kv.k_scale[0] : 1.0f;
  // Parities to wait for, of the barriers of keys (bit 0) and of the query: new ones are free.
  u32 phases = kKeyPhase | kQueryPhase;
  LatentCursor<Config> cursor(work.first());
#pragma unroll 1
  for (; cursor.at() < work.end(); cursor.put(cursor.at() + work.step())) {
    const LatentItem item = work.item(cursor.at());
    if (item.keys.are_none()) continue;
    if (thread.warp == 0) {
      load_query<Config>(params, query_map, item.tile, phases / kQueryPhase);
    }
    const Keys keys(params, sparse, item);
    const int end = item.keys.end;
    // Of this lane: key 16 * warp + lane % 16 of tile lane / 16 of a pair.
    int key = item.keys.begin + thread.lane / 16 * kLatentKeys + thread.warp * kGatherKeys +
              thread.lane % 16;
    int places = keys.place(keys.number(key, end), key);
    constexpr int kAhead = kHalvesAhead<Config>;
    CodesAhead ahead[kAhead];
    if constexpr (!is_copied(Config::kFormat)) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const GatheredHalf at = gathered_half(Config::kPaired ? paired_rank() : i);
#pragma unroll
        for (int step = 0; step < kGatherSteps; ++step) {
          load_ahead(ahead[i], step, entries, places, at, thread);
        }
        ahead[i].scale = load_scale_ahead<Config::kFormat>(entries, places, at, thread);
      }
    }
    int next_number = keys.number(key + kPairKeys, end);
#pragma unroll 1
    for (int first = item.keys.begin; first < end; first += kPairKeys) {
      key += kPairKeys;
      const int next_places = keys.place(next_number, key);
      next_number = keys.number(key + kPairKeys, end);
      fetch_entry<Config::kFormat>(entries, next_places);
      gather_pair<Config>(ahead, entries, places, next_places, phases & kKeyPhase, scale, thread);
      places = next_places;
      phases ^= kKeyPhase;
    }
    phases ^= kQueryPhase;
  }
}

}  // namespace attn
