// The keys that the sparse indexer chooses (semantics §8.10), a CTA for each token. The smallest
// chosen logit is found digit by digit: of the keys that have the digits found so far, a histogram
// of the next one says in which of its values the wanted rank falls. Then the row is gone through
// once more from its beginning, and whoever is chosen gets its place by a count of those before it:
// so the list is ascending, and of equal logits the first ones are taken.
#pragma once

#include "kernels/indexer/index_logits.cuh"

namespace attn {

/// Numbers in the order of the logits; NaN is -inf, -0 is 0.
ATTN_FN u32 index_order(float logit) {
  u32 bits = float_bits(logit);
  if (is_nan_bits(bits)) bits = 0xFF800000u;
  if (bits == 0x80000000u) bits = 0;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

constexpr int kIndexDigits = 256;

/// The value of the digit in whose keys the `wanted` largest one is, and how many of those it is
/// there. `counts` are of the keys by their digit.
struct IndexDigit {
  int value;
  int wanted;
};
ATTN_FN IndexDigit index_digit(const int* counts, int wanted) {
  int value = kIndexDigits - 1;
  while (value > 0 && counts[value] < wanted) wanted -= counts[value--];
  return {value, wanted};
}

/// The slot of a position, or its row of the workspace; -1 for -1 and where there is no block.
ATTN_FN int index_slot(const IndexTopkParams& p, int request, int position) {
  if (position < 0) return -1;
  if (p.workspace_starts != nullptr && p.workspace_starts[request] >= 0) {
    return p.workspace_starts[request] + position;
  }
  const int block = p.block_table[request * p.block_table_stride + position / p.block_size];
  return block < 0 ? -1 : block * p.block_size + position % p.block_size;
}

/// The order of the last key that is chosen, and how many with its logit are.
template <class Config>
__device__ __forceinline__ void find_last_chosen(const float* logits, int seen, int wanted,
                                                 u32& last, int& num_equal) {
  __shared__ int counts[kIndexDigits];
  __shared__ IndexDigit digit;
  last = 0;
#pragma unroll 1
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kIndexDigits; i += Config::kThreads) {
      counts[i] = 0;
    }
    __syncthreads();
    for (int j = static_cast<int>(threadIdx.x); j < seen; j += Config::kThreads) {
      const u32 order = index_order(logits[j]);
      const bool is_here = shift == 24 || order >> (shift + 8) == last >> (shift + 8);
      if (is_here) atomicAdd(&counts[order >> shift & 0xFFu], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) digit = index_digit(counts, wanted);
    __syncthreads();
    last |= static_cast<u32>(digit.value) << shift;
    wanted = digit.wanted;
  }
  num_equal = wanted;
}

/// Config: int kThreads (a multiple of 32, at most 1024). Grid: num_tokens.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    index_topk(const __grid_constant__ IndexTopkParams p) {
  constexpr int kWarps = Config::kThreads / 32;
  __shared__ int above_of_warp[kWarps];
  __shared__ int equal_of_warp[kWarps];
  const i64 t = blockIdx.x;
  const int request = index_request(p.query_start_loc, p.num_requests, t);
  const int seen = static_cast<int>(index_visible(p.query_start_loc, p.seq_lens, request, t));
  const float* const logits = p.logits + t * p.logits_stride;
  const auto put = [&](int place, int position) {
    if (p.indices != nullptr) p.indices[t * p.topk + place] = position;
    if (p.slots != nullptr) p.slots[t * p.topk + place] = index_slot(p, request, position);
  };
  const bool takes_all = seen <= p.topk;
  for (int k = static_cast<int>(threadIdx.x); k < p.topk; k += Config::kThreads) {
    if (takes_all || k >= seen) put(k, k < seen ? k : -1);
  }
  if (takes_all) return;
  u32 last = 0;
  int num_equal = 0;
  find_last_chosen<Config>(logits, seen, p.topk, last, num_equal);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const u32 lanes_before = (1u << lane) - 1u;
  int num_above_before = 0, num_equal_before = 0;
  for (int first = 0; first < seen; first += Config::kThreads) {
    const int j = first + static_cast<int>(threadIdx.x);
    const u32 order = j < seen ? index_order(logits[j]) : 0u;
    const bool is_above = j < seen && order > last;
    const bool is_equal = j < seen && order == last;
    const u32 above = __ballot_sync(0xFFFFFFFFu, is_above);
    const u32 equal = __ballot_sync(0xFFFFFFFFu, is_equal);
    if (lane == 0) {
      above_of_warp[warp] = __popc(above);
      equal_of_warp[warp] = __popc(equal);
    }
    __syncthreads();
    int above_here = num_above_before + __popc(above & lanes_before);
    int equal_here = num_equal_before + __popc(equal & lanes_before);
    for (int w = 0; w < kWarps; ++w) {
      above_here += w < warp ? above_of_warp[w] : 0;
      equal_here += w < warp ? equal_of_warp[w] : 0;
      num_above_before += above_of_warp[w];
      num_equal_before += equal_of_warp[w];
    }
    const int equal_taken = equal_here < num_equal ? equal_here : num_equal;
    if (is_above || (is_equal && equal_here < num_equal)) put(above_here + equal_taken, j);
    __syncthreads();  // the counts are read before those of the next keys come
  }
}

}  // namespace attn
