// What a call of one of the multimodal encoder's wrappers means: which rows of Q, K and V belong
// together (semantics §10.1, §10.2, §10.4).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "metadata/encoder/lengths.h"

namespace attnbench {

/// The lengths that vLLM hands to a wrapper, as the layer's metadata functions make them (§10.3,
/// §10.4).
struct MmCall {
  std::int64_t batch_size = 1;
  std::int64_t query_len = 0;  // of every row of the batch; with cu_seqlens all tokens
  std::int64_t key_len = 0;
  std::optional<std::vector<std::int32_t>> cu_seqlens;  // [n+1]; FLASHINFER: [2*(padded n+1)]
  std::optional<std::int64_t> max_seqlen;
  std::optional<std::vector<std::int32_t>> sequence_lengths;  // FLASHINFER: [padded n]
  std::int64_t query_unit = 0;  // FLASHINFER: elements per token of Q, K and O
  std::int64_t value_unit = 0;  // and of the buffer that V is a view into
};

/// The sequences of a call; row s attends to all its keys.
struct MmSequences {
  std::vector<std::int32_t> query_start_loc;  // [n+1]
  std::vector<std::int64_t> key_start_loc;    // [n+1]
  std::vector<std::int32_t> seq_lens;         // [n] keys
};

/// The call that the layer makes for one sequence a request (cu_seqlens [n+1]) of `query_unit` =
/// hidden_size / tp_size elements a token; value_unit is 3 * query_unit, or query_unit in fp8 mode.
/// Errors: E-CAPACITY when an offset leaves int32.
MmCall make_mm_call(MmLengthsBackend backend, const std::vector<std::int32_t>& cu_seqlens,
                    std::int64_t query_unit, bool fp8);

/// Errors: E-CONFIG when cu_seqlens and max_seqlen are not both given or both missing (FLASHINFER:
/// one of the three is missing); E-SHAPE for more than one batch row beside cu_seqlens, an odd
/// number of offsets, or other key than query lengths where the wrapper has no such form; E-VALUE
/// for lengths that do not add up to the tokens, offsets between tokens, offsets of V at other
/// tokens than those of Q, a max_seqlen below a real length.
MmSequences mm_sequences(MmLengthsBackend backend, const MmCall& call);

}  // namespace attnbench
