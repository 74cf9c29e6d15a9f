// Entries of a paged MLA cache in the order of their tokens: dequantised (semantics §8.4.2) or bit
// for bit (§8.4.4).
#pragma once

#include "kernels/params_mla.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// The entry at a position of a request.
__device__ __forceinline__ const char* entry_at(const MlaEntries& entries, int request,
                                                int position, int element_bytes) {
  const int block =
      entries.block_table[request * entries.block_table_stride + position / entries.block_size];
  const i64 element = block * entries.block_stride +
                      static_cast<i64>(position % entries.block_size) * entries.slot_stride;
  return static_cast<const char*>(entries.cache) + element * element_bytes;
}

/// The last request that starts at or before `token`; requests without tokens are passed over.
__device__ __forceinline__ int request_of_token(const int* cu_seq_lens, int num_requests,
                                                i64 token) {
  int low = 0;
  int high = num_requests;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (cu_seq_lens[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Config: Element kCache, kOutput; int kVector (elements of a thread's load), kThreads,
/// kRowThreads (threads of a row, a divisor of kThreads). Grid: cdiv(num_tokens, kThreads /
/// kRowThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    gather_mla(const __grid_constant__ MlaGatherParams p) {
  constexpr int kVector = Config::kVector;
  const i64 token = static_cast<i64>(blockIdx.x) * (Config::kThreads / Config::kRowThreads) +
                    threadIdx.x / Config::kRowThreads;
  if (token >= p.num_tokens) return;
  const int request = p.token_to_seq[token];
  if (token >= p.cu_seq_lens[request + 1]) return;
  const int start = p.seq_starts == nullptr ? 0 : p.seq_starts[request];
  const int position = static_cast<int>(token) - p.cu_seq_lens[request] + start;
  const char* const source = entry_at(p.entries, request, position, size_of(Config::kCache));
  char* const output =
      static_cast<char*>(p.output) + token * p.output_token_stride * size_of(Config::kOutput);
  const float scale = p.k_scale == nullptr ? 1.0f : *p.k_scale;
#pragma unroll 2
  for (int d = threadIdx.x % Config::kRowThreads * kVector; d < p.entries.entry_size;
       d += Config::kRowThreads * kVector) {
    const auto loaded = load_vector<Config::kCache, kVector>(source + d * size_of(Config::kCache));
    if constexpr (Config::kCache == Config::kOutput) {
      store_vector(output + d * size_of(Config::kOutput), loaded);
    } else {
      float values[kVector];
      decode_vector(loaded, values);
      if constexpr (size_of(Config::kCache) == 1) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) values[i] *= scale;
      }
      store_vector(output + d * size_of(Config::kOutput), encode_vector<Config::kOutput>(values));
    }
  }
}

/// Config: int kBytes (of a thread's load), kElementBytes, kThreads, kRowThreads. Grid as above.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    cp_gather(const __grid_constant__ CpGatherParams p) {
  const i64 token = static_cast<i64>(blockIdx.x) * (Config::kThreads / Config::kRowThreads) +
                    threadIdx.x / Config::kRowThreads;
  if (token >= p.num_tokens) return;
  const int request = request_of_token(p.cu_seq_lens, p.num_requests, token);
  const int start = p.seq_starts == nullptr ? 0 : p.seq_starts[request];
  const int position = static_cast<int>(token) - p.cu_seq_lens[request] + start;
  const char* const source = entry_at(p.entries, request, position, Config::kElementBytes);
  char* const output =
      static_cast<char*>(p.output) + token * p.output_token_stride * Config::kElementBytes;
  const int row_bytes = p.entries.entry_size * Config::kElementBytes;
#pragma unroll 2
  for (int b = threadIdx.x % Config::kRowThreads * Config::kBytes; b < row_bytes;
       b += Config::kRowThreads * Config::kBytes) {
    store_vector(output + b, load_vector<Element::kU8, Config::kBytes>(source + b));
  }
}

}  // namespace attn
