// Reads a run of keys or values of one request and KV head and decodes it to float32.
//
// Keys and values lie in pages, which a block table lists for each request, or one request after
// the other (ragged). A page may be interleaved with others and have padding: everything goes by
// the strides of KvParams, and only the positions of the run are touched, since what lies beside
// them is poison in tests and may be anything in a captured cache.
//
// Scales reach the values in three ways: one for each tensor or head is put into the table of
// codes, one for each token and head follows the decoding, and those of int8 attention follow the
// products.
#pragma once

#include <cstdint>

#include "kernels/params.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// Prepares the code tables of one KV head (per-tensor or per-head scale and rounding included).
/// Must precede the gathers of this head; without effect where elements have more than one byte.
void prepare_codes(const attn::AttendParams& params, int kv_head, Scratch& scratch);

/// Keys [begin, end) of one request and KV head into scratch.key [end - begin, D], and values into
/// scratch.value [end - begin, Dv]. At most kKeyTile of them, all of which exist.
void gather_keys(const attn::AttendParams& params, int request, int kv_head, std::int64_t begin,
                 std::int64_t end, Scratch& scratch);
void gather_values(const attn::AttendParams& params, int request, int kv_head, std::int64_t begin,
                   std::int64_t end, Scratch& scratch);

}  // namespace attnbench::cpu
