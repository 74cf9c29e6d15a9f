// The 656-byte entries of an "fp8_ds_mla" cache, written and read back as bf16 (semantics §8.4.3):
// 512 e4m3 codes of the latent in four tiles of 128, the f32 scale of each tile, 64 bf16 of k_pe.
#pragma once

#include "kernels/cache/gather.cuh"
#include "kernels/cache/write_mla_cache.cuh"

namespace attn {

constexpr int kDsMlaScaleOffset = kDsMlaLatent;
constexpr int kDsMlaRopeOffset = kDsMlaScaleOffset + kDsMlaLatent / kDsMlaTile * 4;

/// A warp writes kTokens tokens, from `first` on. Of each of them a lane has 16 latents, so 8 lanes
/// have a tile and find its maximum by shuffles; the lanes are then dealt to the tokens, 32 /
/// kTokens each, for k_pe. Scale and codes: s = max(max|x| / 448, least normal float), code =
/// rn_e4m3(x / s), so that a tile of zeros gets codes of zero. kVector: bf16 of a load, 8 or 1;
/// kStoreBytes: 16 or 4.
template <int kTokens, int kVector, int kStoreBytes>
__device__ __forceinline__ void write_ds_mla_tokens(const MlaCacheWriteParams& p, i64 first) {
  constexpr int kTokenLanes = 32 / kTokens;
  constexpr int kLatents = kDsMlaLatent / 32;
  constexpr int kTileLanes = kDsMlaTile / kLatents;
  constexpr int kRopes = kDsMlaRope / kTokenLanes;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const i64 rope_token = first + lane / kTokenLanes;
  const int rope_column = lane % kTokenLanes * kRopes;
  const i64 rope_slot = rope_token < p.num_slots ? p.slot_mapping[rope_token] : -1;

  // Each lane has looked up the slot of its own token; shuffles give all of them to all lanes.
  i64 slots[kTokens];
  ElementVector<Element::kBF16, kLatents> latents[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    slots[t] = __shfl_sync(0xFFFFFFFFu, rope_slot, t * kTokenLanes);
    if (slots[t] < 0) continue;
    latents[t] = load_parts<Element::kBF16, kLatents, kVector>(
        static_cast<const u16*>(p.kv_c) + (first + t) * p.kv_c_token_stride + lane * kLatents);
  }
  if (rope_slot >= 0) {
    store_parts<kStoreBytes>(
        static_cast<char*>(p.cache) + slot_element(p, rope_slot) + kDsMlaRopeOffset +
            rope_column * 2,
        load_parts<Element::kBF16, kRopes, kVector>(
            static_cast<const u16*>(p.k_pe) + rope_token * p.k_pe_token_stride + rope_column));
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (slots[t] < 0) continue;
    float values[kLatents];
    decode_vector(latents[t], values);
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kLatents; ++i) largest = fmaxf(largest, fabsf(values[i]));
#pragma unroll
    for (int step = kTileLanes / 2; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
    }
    constexpr float kLeastNormal = 1.17549435e-38f;
    const float scale = fmaxf(__fdiv_rn(largest, 448.0f), kLeastNormal);
    divide_for_codes(values, scale);
    char* const entry = static_cast<char*>(p.cache) + slot_element(p, slots[t]);
    store_parts<kStoreBytes>(entry + lane * kLatents, encode_vector<Element::kE4M3>(values));
    if (lane % kTileLanes == 0) {
      reinterpret_cast<float*>(entry + kDsMlaScaleOffset)[lane / kTileLanes] = scale;
    }
  }
}

/// Config: int kTokens (of a warp), kVector, kStoreBytes, kThreads. Grid: cdiv(num_slots, kTokens *
/// kThreads / 32).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    write_ds_mla(const __grid_constant__ MlaCacheWriteParams p) {
  const i64 warp = static_cast<i64>(blockIdx.x) * (Config::kThreads / 32) + threadIdx.x / 32;
  write_ds_mla_tokens<Config::kTokens, Config::kVector, Config::kStoreBytes>(
      p, warp * Config::kTokens);
}

/// A piece of an entry in registers: codes and the scale of their tile, or k_pe. Only the one or
/// the other is set.
template <int kVector>
struct DsMlaPiece {
  ElementVector<Element::kE4M3, kVector> codes;
  float scale;
  ElementVector<Element::kBF16, kVector> rope;
};

/// Rows of the workspace become [kv_c | k_pe] in bf16: codes times the scale of their tile, rounded
/// once, and k_pe as it is. Rows outside of every request are skipped.
/// Config: int kVector (columns of a piece: 8 or 2), and those of move_rows(). Grid as there, of
/// num_rows.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    upconvert_ds_mla(const __grid_constant__ DsMlaUpconvertParams p) {
  constexpr int kVector = Config::kVector;
  const auto find = [&](i64 row) -> RowMove {
    if (row < p.workspace_starts[0]) return {};
    const int request = request_of_token(p.workspace_starts, p.num_requests, row);
    const i64 position = row - p.workspace_starts[request];
    if (position >= p.seq_lens[request]) return {};
    return {entry_at(p.entries, request, static_cast<int>(position), 1),
            static_cast<char*>(p.output) + row * p.output_token_stride * 2};
  };
  const auto load = [](i64, const char* entry, int piece) {
    const int column = piece * kVector;
    DsMlaPiece<kVector> loaded;
    if (column < kDsMlaLatent) {
      loaded.codes = load_vector<Element::kE4M3, kVector>(entry + column);
      loaded.scale = reinterpret_cast<const float*>(entry + kDsMlaScaleOffset)[column / kDsMlaTile];
    } else {
      loaded.rope = load_vector<Element::kBF16, kVector>(entry + kDsMlaRopeOffset +
                                                         (column - kDsMlaLatent) * 2);
    }
    return loaded;
  };
  const auto store = [](char* output, int piece, const DsMlaPiece<kVector>& loaded) {
    const int column = piece * kVector;
    if (column >= kDsMlaLatent) {
      store_vector(output + column * 2, loaded.rope);
      return;
    }
    float values[kVector];
    decode_vector(loaded.codes, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = __fmul_rn(values[i], loaded.scale);
    store_vector(output + column * 2, encode_vector<Element::kBF16>(values));
  };
  move_rows<Config>(p.num_rows, find, load, store);
}

}  // namespace attn
