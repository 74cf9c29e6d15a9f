// Reads a run of keys or values out of pages (or ragged rows) and decodes it to float32.
#pragma once

#include <cstdint>

#include "kernels/params.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// Prepares the code tables of one KV head (per-tensor or per-head scale and rounding included).
void prepare_codes(const attn::AttendParams& params, int kv_head, Scratch& scratch);

/// Keys [begin, end) of one request and KV head into scratch.key [end - begin, D], and values into
/// scratch.value [end - begin, Dv]. Scales are multiplied in.
void gather_keys(const attn::AttendParams& params, int request, int kv_head, std::int64_t begin,
                 std::int64_t end, Scratch& scratch);
void gather_values(const attn::AttendParams& params, int request, int kv_head, std::int64_t begin,
                   std::int64_t end, Scratch& scratch);

}  // namespace attnbench::cpu
