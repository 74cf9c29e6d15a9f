// Which attention kernel a call of attend takes: compile-time choices, tile sizes, shared memory.
#pragma once

#include "ops/cuda/launcher.h"

#include "kernels/params.h"

namespace attnbench::cuda {

/// A kernel and what its launch needs to know of it.
struct AttendKernel {
  KernelSpec spec;
  int tile_rows = 0;  // packed query rows of a CTA
  int threads = 0;
  int shared_bytes = 0;
};

/// Whether the kernels for tensor cores do this problem: 16-bit queries, head sizes up to 256 in
/// steps of 8, block sizes in steps of 16, rows on multiples of 4 bytes. The rest is for
/// general_kernel().
bool suits_tensor_cores(const attn::AttendParams& params);

/// Many query rows: kernels/attention/prefill.cuh.
AttendKernel prefill_kernel(const Target& target, const attn::AttendParams& params);
/// Few query rows: an entry of kernels/attention/decode.cuh ("decode", "decode_splits",
/// "decode_segments").
AttendKernel decode_kernel(const Target& target, const attn::AttendParams& params,
                           const std::string& entry);
/// Any problem, in f32 and slower: an entry of kernels/attention/general.cuh ("general",
/// "general_splits", "general_segments"). E-UNSUPPORTED for value head sizes above 576.
AttendKernel general_kernel(const attn::AttendParams& params, const std::string& entry);
/// An entry of kernels/attention/combine.cuh ("combine_splits", "reduce_segments"); tile_rows
/// (token, head) rows a CTA.
AttendKernel combine_kernel(const attn::AttendParams& params, const std::string& entry);

/// Whether attend() goes by the decode kernel: so few rows that bandwidth bounds it.
bool has_few_rows(const attn::AttendParams& params);

/// Query rows of one request that share a KV head, at most.
std::int64_t max_packed_rows(const attn::AttendParams& params);

}  // namespace attnbench::cuda
