// Logits of the sparse indexer (semantics §8.10), without matrix units: the definition on a GPU. A
// thread has a key, which it reads again for every few heads of the query; those come to shared
// memory, where all threads read the same one.
#pragma once

#include "kernels/params_indexer.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// The request of token t: the last one that begins at or before it and is not empty.
ATTN_FN int index_request(const int* query_start_loc, int num_requests, i64 t) {
  int low = 0, high = num_requests - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (query_start_loc[middle] <= t) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// Keys that token t of the request sees: those up to its own position.
ATTN_FN i64 index_visible(const int* query_start_loc, const int* seq_lens, int request, i64 t) {
  const i64 seen = seq_lens[request] - (query_start_loc[request + 1] - t) + 1;
  return seen < 0 ? 0 : seen;
}

/// Config: int kHeads (of a turn), kThreads. Grid: x num_tokens, y cdiv(num_columns, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    index_logits(const __grid_constant__ IndexLogitsParams p) {
  constexpr int kHeads = Config::kHeads;
  constexpr int kWords = kIndexKey / 4;
  constexpr int kCodes = 8;  // of a load
  __shared__ float query[kHeads][kIndexKey];
  __shared__ float weights[kHeads];
  const i64 t = blockIdx.x;
  const i64 j = static_cast<i64>(blockIdx.y) * Config::kThreads + threadIdx.x;
  const int request = index_request(p.query_start_loc, p.num_requests, t);
  const bool is_seen = j < index_visible(p.query_start_loc, p.seq_lens, request, t);
  const unsigned char* codes = nullptr;
  float scale = 0.0f;
  if (is_seen) {
    const int block = p.block_table[request * p.block_table_stride + j / p.block_size];
    const unsigned char* const keys = p.cache + block * p.block_stride;
    const i64 offset = j % p.block_size;
    codes = keys + index_codes_at(offset);
    scale = *reinterpret_cast<const float*>(keys + index_scale_at(p.block_size, offset));
  }
  float sum = 0.0f;
  for (int first = 0; first < p.num_heads; first += kHeads) {
    __syncthreads();  // the heads before are no longer read
    for (int word = static_cast<int>(threadIdx.x); word < kHeads * kWords;
         word += Config::kThreads) {
      const int head = first + word / kWords;
      float values[4] = {};
      if (head < p.num_heads) {
        decode_vector(
            load_vector<Element::kE4M3, 4>(p.query + t * p.query_token_stride +
                                           head * p.query_head_stride + word % kWords * 4),
            values);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) query[word / kWords][word % kWords * 4 + i] = values[i];
    }
    for (int head = static_cast<int>(threadIdx.x); head < kHeads; head += Config::kThreads) {
      weights[head] =
          first + head < p.num_heads ? p.weights[t * p.weights_token_stride + first + head] : 0.0f;
    }
    __syncthreads();
    if (!is_seen) continue;
    float products[kHeads] = {};
#pragma unroll 1
    for (int first_code = 0; first_code < kIndexKey; first_code += kCodes) {
      float values[kCodes];
      decode_vector(load_vector<Element::kE4M3, kCodes>(codes + first_code), values);
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
#pragma unroll
        for (int i = 0; i < kCodes; ++i) products[head] += query[head][first_code + i] * values[i];
      }
    }
#pragma unroll
    for (int head = 0; head < kHeads; ++head) sum += weights[head] * fmaxf(products[head], 0.0f);
  }
  if (j >= p.num_columns) return;
  p.logits[t * p.logits_stride + j] = is_seen ? sum * scale : float_from_bits(0xFF800000u);
}

}  // namespace attn
