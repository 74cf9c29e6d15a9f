// Entries of a paged MLA cache in the order of their tokens: dequantised (semantics §8.4.2) or bit
// for bit (§8.4.4). Chunked prefill gathers a chunk of the context of all requests into a
// contiguous workspace, from which keys and values are made. cu_seq_lens are the cumulative lengths
// of the requests' shares of the chunk, seq_starts where in the request each share begins.
#pragma once

#include "kernels/move/row_moves.cuh"
#include "kernels/params_mla.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// Address of the entry at a position of a request. The position must be below its number of keys:
/// block table entries past them are garbage.
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

/// Output row t is the entry of token t, times k_scale for a one-byte cache, rounded once. Config:
/// Element kCache, kOutput; int kVector (elements of a piece), and those of move_rows(). Grid as
/// there, of num_tokens.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    gather_mla(const __grid_constant__ MlaGatherParams p) {
  constexpr int kVector = Config::kVector;
  constexpr int kOutputSize = size_of(Config::kOutput);
  const float scale = p.k_scale == nullptr ? 1.0f : *p.k_scale;
  const auto find = [&](i64 token) -> RowMove {
    const int request = p.token_to_seq[token];
    const int first = p.cu_seq_lens[request];
    // token_to_seq is padded with zeros past the last token of a chunk: such rows are skipped.
    if (token >= p.cu_seq_lens[request + 1]) return {};
    const int start = p.seq_starts == nullptr ? 0 : p.seq_starts[request];
    const int position = static_cast<int>(token) - first + start;
    return {entry_at(p.entries, request, position, size_of(Config::kCache)),
            static_cast<char*>(p.output) + token * p.output_token_stride * kOutputSize};
  };
  const auto load = [](i64, const char* source, int piece) {
    return load_vector<Config::kCache, kVector>(source + piece * kVector * size_of(Config::kCache));
  };
  using Piece = ElementVector<Config::kCache, kVector>;
  const auto store = [&](char* output, int piece, const Piece& loaded) {
    char* const to = output + piece * kVector * kOutputSize;
    if constexpr (Config::kCache == Config::kOutput) {
      store_vector(to, loaded);
    } else {
      float values[kVector];
      decode_vector(loaded, values);
      if constexpr (size_of(Config::kCache) == 1) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) values[i] *= scale;
      }
      store_vector(to, encode_vector<Config::kOutput>(values));
    }
  };
  move_rows<Config>(p.num_tokens, find, load, store);
}

/// The same bit for bit, of any element; the request of a token is searched for, since this
/// operation is given no token_to_seq. Config: int kBytes (of a piece), kElementBytes, and those of
/// move_rows(). Grid as there, of num_tokens.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    cp_gather(const __grid_constant__ CpGatherParams p) {
  const auto find = [&](i64 token) -> RowMove {
    const int request = request_of_token(p.cu_seq_lens, p.num_requests, token);
    const int start = p.seq_starts == nullptr ? 0 : p.seq_starts[request];
    const int position = static_cast<int>(token) - p.cu_seq_lens[request] + start;
    return {entry_at(p.entries, request, position, Config::kElementBytes),
            static_cast<char*>(p.output) + token * p.output_token_stride * Config::kElementBytes};
  };
  const auto load = [](i64, const char* source, int piece) {
    return load_vector<Element::kU8, Config::kBytes>(source + piece * Config::kBytes);
  };
  using Piece = ElementVector<Element::kU8, Config::kBytes>;
  const auto store = [](char* output, int piece, const Piece& loaded) {
    store_vector(output + piece * Config::kBytes, loaded);
  };
  move_rows<Config>(p.num_tokens, find, load, store);
}

}  // namespace attn
