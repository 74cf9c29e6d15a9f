// A plan of which part works on which blocks of keys, made on the device from the lengths that it
// has at that time: under a captured graph they change from replay to replay, and a plan from the
// host would be that of the capture. The walk is that of plan_decode() on the host, record for
// record (semantics §8.8): every part takes one payload, request after request.
//
// One CTA. Blocks and rows of the requests come to shared memory by all threads, their sum too; the
// walk is one thread's, since where a part begins depends on all parts before it. It takes a step
// for every request and part, some tens of clocks each.
//
// Config: kThreads
#pragma once

#include "kernels/common/key_runs.cuh"
#include "kernels/params_mla.h"

namespace attn {

/// What a request means to a plan.
struct PlanRequest {
  int blocks;     // 1 for length 0
  int query_len;  // tokens
  int has_keys;
};

static_assert(sizeof(PlanRequest) == 12, "the launcher counts on it");

/// Blocks of a request of so many keys.
ATTN_FN int plan_blocks(int seq_len) { return (seq_len > 1 ? seq_len - 1 : 0) / kPlanBlock + 1; }

/// Writes record after record; one thread.
struct PlanWalk {
  const MakePlanParams& params;
  const PlanRequest* requests;  // [num_requests]
  i64 payload;                  // blocks and overhead that a part takes at most
  int request = 0;              // where the next part begins
  int block = 0;
  int split = 0;
  int num_splits = 0;  // of the requests before
  i64 rows = 0;        // partial rows of the requests before

  /// The request is done with the split under way.
  __device__ void end_request() {
    num_splits += split + 1;
    if (split > 0) rows += static_cast<i64>(split + 1) * requests[request].query_len;
    params.num_splits[request + 1] = num_splits;
    params.partial_start_loc[request + 1] = rows;
    ++request;
    block = split = 0;
  }
  /// Takes one payload.
  __device__ void take() {
    i64 left = payload;
    while (request < params.num_requests) {
      const int remaining = requests[request].blocks - block;
      if (left < remaining + params.fixed_overhead) {
        if (left > params.fixed_overhead) {
          block += static_cast<int>(left - params.fixed_overhead);
          ++split;
        }
        return;
      }
      left -= remaining + params.fixed_overhead;
      end_request();
    }
  }
  __device__ void make_part(int part) {
    const int begin_req = request;
    const int begin_block = block;
    const int begin_split = split;
    take();
    const int end_req = request - (block > 0 ? 0 : 1);
    int end_block = 0;
    int first_is_split = 0;
    int last_is_split = 0;
    if (end_req >= 0) {
      const int all = requests[end_req].blocks;
      const bool has_keys = requests[end_req].has_keys != 0;
      end_block = block > 0 ? block : (has_keys ? all : 0);
      first_is_split = begin_block != 0 ? 1 : 0;
      last_is_split = end_block != all && has_keys ? 1 : 0;
      if (begin_req == end_req) last_is_split = first_is_split |= last_is_split;
    }
    int* const record = params.parts + static_cast<i64>(part) * kPlanRecord;
    record[0] = begin_req;
    record[1] = end_req;
    record[2] = begin_block;
    record[3] = end_block;
    record[4] = begin_split;
    record[5] = first_is_split;
    record[6] = last_is_split;
    record[7] = 0;
  }
};

/// By all threads of the CTA; `requests` [num_requests] and `sums` [kThreads] in shared memory.
template <class Config>
__device__ void make_plan_of(const MakePlanParams& params, PlanRequest* requests, i64* sums) {
  const int thread = static_cast<int>(threadIdx.x);
  i64 sum = 0;
  for (int b = thread; b < params.num_requests; b += Config::kThreads) {
    const int at = params.first_request + b;
    const int seq_len = params.seq_lens[at];
    const int blocks = plan_blocks(seq_len);
    requests[b] = {blocks, params.query_start_loc[at + 1] - params.query_start_loc[at],
                   seq_len > 0 ? 1 : 0};
    sum += blocks + params.fixed_overhead;
  }
  sums[thread] = sum;
  __syncthreads();
  if (thread != 0) return;
  i64 total = 0;
#pragma unroll 16
  for (int i = 0; i < Config::kThreads; ++i) total += sums[i];
  const i64 payload = (total + params.num_parts - 1) / params.num_parts + params.fixed_overhead;
  PlanWalk walk{params, requests, payload};
  params.num_splits[0] = 0;
  params.partial_start_loc[0] = 0;
  for (int part = 0; part < params.num_parts; ++part) walk.make_part(part);
}

/// Grid: one CTA, whose dynamic shared memory has a PlanRequest for every request.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    make_plan(const __grid_constant__ MakePlanParams params) {
  extern __shared__ PlanRequest plan_requests[];
  __shared__ i64 sums[Config::kThreads];
  make_plan_of<Config>(params, plan_requests, sums);
}

}  // namespace attn
