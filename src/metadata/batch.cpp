// Ordering and splitting of batches. All of it is integer arithmetic on lengths in request order;
// sums are in 64 bits and checked where they become int32, as kernels take them.
#include "metadata/batch.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/problem/problem.h"
#include "metadata/int_math.h"
#include "metadata/validation.h"

namespace attnbench {
namespace {

void check_split_inputs(std::span<const int32_t> query_lens, int last_start, int num_tokens,
                        int max_query_len, const SplitOptions& options) {
  if (num_tokens < last_start) {
    fail(ErrorKind::kValue, "num_actual_tokens: expected at least query_start_loc[B] = {}, got {}",
         last_start, num_tokens);
  }
  const int32_t longest = query_lens.empty() ? 0 : *std::ranges::max_element(query_lens);
  if (max_query_len < longest) {
    fail(ErrorKind::kValue, "max_query_len: expected at least {}, got {}", longest, max_query_len);
  }
  if (!options.treat_short_extends_as_decodes &&
      options.is_prefilling.size() != query_lens.size()) {
    fail(ErrorKind::kShape, "is_prefilling: expected {} elements, got {}", query_lens.size(),
         options.is_prefilling.size());
  }
}

bool is_padded_uniform(std::span<const int32_t> query_lens) {
  return std::ranges::all_of(query_lens,
                             [&](int32_t len) { return len == query_lens.front() || len == 0; });
}

/// One length of every request from `first` on.
template <typename LengthOf>
std::vector<int32_t> lens_of(const Problem& problem, int first, const char* what,
                             LengthOf length_of) {
  std::vector<int32_t> lens;
  for (auto b = static_cast<size_t>(first); b < problem.batch.size(); ++b) {
    lens.push_back(checked_int32(length_of(problem.batch[b]), what));
  }
  return lens;
}

}  // namespace

std::vector<int32_t> query_lens_of(const Problem& problem, int first) {
  return lens_of(problem, first, "query_len", [](const Request& r) { return r.query_len; });
}

std::vector<int32_t> seq_lens_of(const Problem& problem, int first) {
  return lens_of(problem, first, "seq_len", [](const Request& r) { return r.seq_len; });
}

std::vector<int32_t> context_lens_of(const Problem& problem) {
  return lens_of(problem, 0, "context_len",
                 [](const Request& r) { return r.seq_len - r.query_len; });
}

std::vector<int32_t> query_start_loc_of(const Problem& problem, int first) {
  return cumulative(query_lens_of(problem, first));
}

bool is_prefilling(const Request& request, int num_speculative_tokens) {
  if (request.prefilling) return *request.prefilling;
  if (request.query_len == 0) return false;
  return request.query_len == request.seq_len || request.query_len > 1 + num_speculative_tokens;
}

BatchSplit split_decodes_and_prefills(std::span<const int32_t> query_start_loc, int num_tokens,
                                      int max_query_len, const SplitOptions& options) {
  const std::vector<int32_t> query_lens = query_lens_of(query_start_loc);
  check_split_inputs(query_lens, query_start_loc.back(), num_tokens, max_query_len, options);
  const auto num_requests = static_cast<int>(query_lens.size());
  const BatchSplit all_decodes = {num_requests, 0, num_tokens, 0};
  if (num_requests == 0) return all_decodes;
  const bool short_is_decode = options.treat_short_extends_as_decodes;
  if (short_is_decode && max_query_len <= options.threshold &&
      (!options.require_uniform || options.threshold <= 1)) {
    return all_decodes;
  }
  if (query_lens[0] > options.threshold) return {0, num_requests, 0, num_tokens};
  if (options.require_uniform && short_is_decode && is_padded_uniform(query_lens)) {
    return all_decodes;
  }
  for (int b = 0; b < num_requests; ++b) {
    const auto i = static_cast<size_t>(b);
    const bool is_long = options.require_uniform ? query_lens[i] != query_lens[0]
                                                 : query_lens[i] > options.threshold;
    if (is_long || (!short_is_decode && options.is_prefilling[i] != 0)) {
      return {b, num_requests - b, query_start_loc[i], num_tokens - query_start_loc[i]};
    }
  }
  return all_decodes;
}

void check_split(const BatchSplit& split, int num_requests, int num_tokens) {
  if (split.num_decodes + split.num_prefills != num_requests) {
    fail(ErrorKind::kValue, "batch split: expected {} requests, got {} decodes + {} prefills",
         num_requests, split.num_decodes, split.num_prefills);
  }
  if (split.num_decode_tokens + split.num_prefill_tokens != num_tokens) {
    fail(ErrorKind::kValue, "batch split: expected {} tokens, got {} decode + {} prefill tokens",
         num_tokens, split.num_decode_tokens, split.num_prefill_tokens);
  }
}

std::vector<int> reorder_batch(std::span<const int32_t> scheduled,
                               std::span<const int32_t> computed,
                               std::span<const int32_t> prompt_lens, int threshold) {
  if (computed.size() != scheduled.size() || prompt_lens.size() != scheduled.size()) {
    fail(ErrorKind::kShape, "reorder_batch: expected three arrays of {} elements, got {} and {}",
         scheduled.size(), computed.size(), prompt_lens.size());
  }
  const auto region = [&](int b) {
    const auto i = static_cast<size_t>(b);
    if (computed[i] <= 0) return 3;
    if (scheduled[i] > threshold) return 2;
    return computed[i] >= prompt_lens[i] ? 0 : 1;
  };
  std::vector<int> order(scheduled.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, region);
  return order;
}

DecodeThreshold decode_threshold(MetadataBuilder builder, int num_speculative_tokens,
                                 bool parallel_drafting, int dcp_world_size, int interleave_size) {
  const int speculative =
      num_speculative_tokens > 0 ? 1 + num_speculative_tokens * (parallel_drafting ? 2 : 1) : 1;
  const auto row = [&](int base, bool spec_as_decode, bool uniform, bool dcp_varlen) {
    int threshold = spec_as_decode ? std::max(base, speculative) : base;
    if (dcp_world_size > 1 && !dcp_varlen) threshold = 1;
    return DecodeThreshold{.splits = true, .threshold = threshold, .require_uniform = uniform};
  };
  switch (builder) {
    case MetadataBuilder::kFlashAttn:
    case MetadataBuilder::kTritonAttn:
    case MetadataBuilder::kFlashMlaSparse:
      return {};
    case MetadataBuilder::kFlashAttnIx:
      return row(1, true, false, false);
    case MetadataBuilder::kMlaSingleOnly:
      return row(1, false, true, false);
    case MetadataBuilder::kFlashMla:
      return row(128, true, true, false);
    case MetadataBuilder::kFlashAttnMla:
      return row(512, true, false, interleave_size == 1);
    case MetadataBuilder::kFlashMlaSparseFp8:
      return row(1, true, true, false);
  }
  fail(ErrorKind::kInternal, "unknown metadata builder");
}

BatchSplit split_batch(const Problem& problem, MetadataBuilder builder,
                       bool treat_short_extends_as_decodes) {
  const DecodeThreshold rule =
      decode_threshold(builder, problem.attention.num_speculative_tokens, false,
                       problem.dcp.world_size, problem.dcp.interleave_size);
  std::vector<std::uint8_t> prefilling;
  for (const Request& request : problem.batch) {
    prefilling.push_back(is_prefilling(request, problem.attention.num_speculative_tokens) ? 1 : 0);
  }
  SplitOptions options;
  options.threshold = rule.threshold;
  options.require_uniform = rule.require_uniform;
  options.treat_short_extends_as_decodes = treat_short_extends_as_decodes;
  options.is_prefilling = prefilling;
  return split_decodes_and_prefills(query_start_loc_of(problem),
                                    static_cast<int>(problem.num_tokens()),
                                    static_cast<int>(problem.max_query_len()), options);
}

BatchSplit split_batch(const Problem& problem, MetadataBuilder builder) {
  return split_batch(problem, builder, problem.treat_short_extends_as_decodes);
}

int uniform_decode_query_len(int num_decodes, int num_tokens) {
  if (num_decodes < 1 || num_tokens % num_decodes != 0) {
    fail(ErrorKind::kShape, "decode query: expected a multiple of {} tokens, got {}", num_decodes,
         num_tokens);
  }
  return num_tokens / num_decodes;
}

void check_mla_graph_capture(int num_requests, int num_tokens, int max_query_len, int threshold) {
  if (int64_t{num_requests} > int64_t{num_tokens} * threshold) {
    fail(ErrorKind::kConfig, "MLA graph: expected at most {} * {} requests, got {}", num_tokens,
         threshold, num_requests);
  }
  if (max_query_len > threshold) {
    fail(ErrorKind::kConfig, "MLA graph: expected max_query_len <= {}, got {}", threshold,
         max_query_len);
  }
}

void check_mla_graph_capture(const Problem& problem, MetadataBuilder builder) {
  const DecodeThreshold rule =
      decode_threshold(builder, problem.attention.num_speculative_tokens, false,
                       problem.dcp.world_size, problem.dcp.interleave_size);
  if (!rule.splits) return;
  // Padding rows, which a graph of fixed size has, bring no tokens.
  const auto requests =
      std::ranges::count_if(problem.batch, [](const Request& r) { return r.query_len > 0; });
  check_mla_graph_capture(static_cast<int>(requests), checked_int32(problem.num_tokens(), "tokens"),
                          checked_int32(problem.max_query_len(), "query_len"), rule.threshold);
  const int num_prefills = split_batch(problem, builder).num_prefills;
  if (num_prefills == 0) return;
  fail(ErrorKind::kConfig, "MLA graph: expected decodes only, got {} prefills", num_prefills);
}

}  // namespace attnbench
