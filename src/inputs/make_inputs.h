// Problem + seed -> the tensors of a case: query, key, value, sinks and slopes. The same bytes on
// every machine, and NaN in every row that nothing may read.
//
// Made once a case and given to all of its backends and to the reference, which only read them.
// What depends on a backend, such as the form of its cache, is made from these by inputs/cache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"

namespace attnbench {

/// What all backends of a case share. T = new tokens, T_pad >= T, S = sum of seq_lens.
struct AttentionInputs {
  Tensor query;                               // [T_pad, H, D] in attention.dtype; rows >= T are NaN
  Tensor key;                                 // [S, Hk, D] in attention.dtype, position order,
  Tensor value;                               // [S, Hk, Dv] requests concatenated; never poisoned
  std::vector<std::int32_t> query_start_loc;  // [B+1]
  std::vector<std::int32_t> seq_lens;         // [B]
  std::vector<std::int64_t> key_start_loc;    // [B+1] exclusive sum of seq_lens
  std::vector<float> sinks;                   // [H] or empty
  std::vector<float> alibi_slopes;            // [H] or empty
  std::vector<float> value_channel_scale;     // [Hk, Dv] of int8 level 1 (§11.1), else empty
  std::vector<std::string> notices;           // e.g. a tensor of inputs.file was rounded
  bool shapes_only = false;                   // InputsSpec::shapes_only

  std::int64_t num_tokens() const { return query_start_loc.back(); }
};

/// Seeded draw, or inputs.file, for decoder, encoder, encoder_only, encoder_decoder and mm_encoder.
/// Every drawn element is a function of seed, tensor and index only, rounded to attention.dtype:
///   normal   N(0, std^2)
///   uniform  in [-std * sqrt(3), std * sqrt(3)], so that the standard deviation is std
///   outlier  normal, but about 1 % (at least one) of the channels (h, d) of query, key and value
///            are 20 times as large, and about 0.1 % of the tokens 5 times
///   probe    normal; values with a mean of std / 2; queries turned towards needles (needles.h)
/// Keys and values below cascade.common_prefix_len are the same in every request. A tensor `sinks`
/// of the file turns sinks on (sinks is then not empty), unless the scenario gives numbers.
/// Errors: E-IO, E-FORMAT, E-SHAPE (tensors that disagree with the scenario), E-DTYPE, E-VALUE,
/// E-CAPACITY (inputs, stored K/V and cache exceed this machine's memory).
AttentionInputs make_inputs(const Problem& problem);

/// f32 [H] of attention.sinks, drawn or given; empty without any. Errors: E-SHAPE.
std::vector<float> make_sinks(const Problem& problem);

/// Which positions of request b are new in this step and written by the pipeline; the others are
/// in the cache before. decoder: [context_len, seq_len). encoder_decoder: [0, seq_len) for requests
/// with query_len > 1, none for the others (their encoder K/V were written in an earlier step).
struct PositionRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
std::vector<PositionRange> new_key_ranges(const Problem& problem);

struct BatchLengths {
  std::vector<std::int32_t> query_start_loc;  // [B+1]
  std::vector<std::int32_t> seq_lens;         // [B]
  std::vector<std::int64_t> key_start_loc;    // [B+1] exclusive sum of seq_lens
};
/// Errors: E-VALUE for a negative length, E-CAPACITY beyond 32 bits.
BatchLengths batch_lengths(const Problem& problem);

/// Host memory of the inputs, stored keys and cache of a case with queries, keys and values, or the
/// latents of MLA. Errors: E-CAPACITY beyond 64 bits.
std::int64_t input_bytes(const Problem& problem);

/// Of the same cases. Errors: E-CAPACITY when inputs,
/// stored keys and the cache exceed this machine's memory; never where only shapes are wanted.
void check_inputs_fit(const Problem& problem);

}  // namespace attnbench
