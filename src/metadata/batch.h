// The requests of a batch: their lengths as arrays, which of them are decodes and which prefills,
// and in what order they stand (semantics §1.3-§1.5).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace attnbench {

struct Problem;
struct Request;

/// Lengths of the requests from `first` on, [B - first]. E-CAPACITY beyond int32.
std::vector<int32_t> query_lens_of(const Problem& problem, int first = 0);
std::vector<int32_t> seq_lens_of(const Problem& problem, int first = 0);
/// Keys that were there before this step: seq_len - query_len.
std::vector<int32_t> context_lens_of(const Problem& problem);
/// Where the query rows of those requests begin, and end: [B - first + 1], from 0.
std::vector<int32_t> query_start_loc_of(const Problem& problem, int first = 0);

/// Whether the new tokens of a request are of its prompt: as the batch says, else where it has no
/// context, or more new tokens than a decode with its speculative tokens has. Padding rows never.
bool is_prefilling(const Request& request, int num_speculative_tokens);

struct BatchSplit {
  int num_decodes = 0;
  int num_prefills = 0;
  int num_decode_tokens = 0;
  int num_prefill_tokens = 0;
  bool operator==(const BatchSplit&) const = default;
};

struct SplitOptions {
  int threshold = 1;             // longest query that still counts as a decode
  bool require_uniform = false;  // all decodes must have the query length of the first request
  /// false moves short requests whose is_prefilling flag is set into the prefills.
  bool treat_short_extends_as_decodes = true;
  std::span<const uint8_t> is_prefilling = {};  // [B]; read only when the former is false
};

/// Splits an ordered batch (§1.4); every request at or after the first prefill is a prefill, even
/// when short. num_tokens = T may exceed query_start_loc[B] (graph padding). max_query_len may be
/// an upper bound, smaller than a real length is E-VALUE.
BatchSplit split_decodes_and_prefills(std::span<const int32_t> query_start_loc, int num_tokens,
                                      int max_query_len, const SplitOptions& options);

/// A split as given by a caller: requests sum to B and tokens to T, else E-VALUE.
void check_split(const BatchSplit& split, int num_requests, int num_tokens);

/// Stable permutation of the requests (element i = request that comes i-th) into the regions
/// decode, short extend, long extend, pure prefill (§1.4). Arrays [B]: tokens scheduled now, tokens
/// computed before, prompt length. Unequal lengths are E-SHAPE.
std::vector<int> reorder_batch(std::span<const int32_t> scheduled,
                               std::span<const int32_t> computed,
                               std::span<const int32_t> prompt_lens, int threshold);

/// Metadata builders of §1.5.
enum class MetadataBuilder {
  kFlashAttn,          // layout FA: one varlen pass, no split
  kFlashAttnIx,        // base 1, speculative tokens count as decode
  kTritonAttn,         // no split
  kMlaSingleOnly,      // 1 whatever the speculation, uniform
  kFlashMla,           // base 128, uniform
  kFlashAttnMla,       // base 512, varlen; under DCP only with interleave 1
  kFlashMlaSparse,     // no split
  kFlashMlaSparseFp8,  // base 1, uniform
};

struct DecodeThreshold {
  bool splits = false;  // false: the builder knows no decode/prefill split; the rest is unused
  int threshold = 0;
  bool require_uniform = false;
  bool operator==(const DecodeThreshold&) const = default;
};

/// Row of the table of §1.5 with speculative decoding and DCP applied. num_speculative_tokens = 0
/// means not set.
DecodeThreshold decode_threshold(MetadataBuilder builder, int num_speculative_tokens,
                                 bool parallel_drafting, int dcp_world_size, int interleave_size);

/// The batch of a problem as `builder`, which splits it, does; the flags of SplitOptions are those
/// of is_prefilling().
BatchSplit split_batch(const Problem& problem, MetadataBuilder builder,
                       bool treat_short_extends_as_decodes);
/// With the problem's own rule for short extends.
BatchSplit split_batch(const Problem& problem, MetadataBuilder builder);

/// Query length of [num_decodes, T / num_decodes, H, D]; E-SHAPE unless num_decodes divides T.
int uniform_decode_query_len(int num_decodes, int num_tokens);

/// MLA graphs hold decodes only (§1.6): num_requests <= num_tokens * threshold and
/// max_query_len <= threshold, else E-CONFIG.
void check_mla_graph_capture(int num_requests, int num_tokens, int max_query_len, int threshold);
/// The same for the batch of a problem as `builder` splits it, which must leave no prefills either.
/// A builder without a split captures every batch.
void check_mla_graph_capture(const Problem& problem, MetadataBuilder builder);

}  // namespace attnbench
