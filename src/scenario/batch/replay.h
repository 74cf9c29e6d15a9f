// A plain continuous-batching model that turns a trace of requests into the batch of one scheduler
// step (contract section 1.1).
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem/problem.h"

namespace attnbench {

/// One line of a trace.
struct TraceRequest {
  std::int64_t prompt_tokens = 0;     // >= 1
  std::int64_t generated_tokens = 0;  // >= 0
  /// Ids of the prompt's 512-token blocks (mooncake); equal leading ids are equal tokens.
  std::vector<std::int64_t> prefix_blocks = {};
};

inline constexpr std::int64_t kPrefixBlockTokens = 512;

struct ReplayOptions {
  std::int64_t requests = 64;              // that run at the same time, >= 1
  std::int64_t max_batched_tokens = 8192;  // of one step, >= 1
  std::int64_t step = 1000;                // which step's batch, from 1
  std::uint64_t seed = 0;
};

struct ReplayedBatch {
  std::vector<Request> batch;
  /// Tokens of the longest prefix that all requests of the batch share; 0 for a single request.
  std::int64_t shared_prefix_tokens = 0;
};

/// The model: requests wait in trace order from line splitmix64(seed) mod n on, wrapping around,
/// and the first `requests` of them run. Each step every running decode gets one token, then the
/// prompts not yet computed get chunks in order of admission until max_batched_tokens are spent
/// (decodes are never held back by it). The step that finishes a prompt yields the first generated
/// token and each decode step one more; a request whose tokens are all generated is replaced before
/// the next step by the one that waits first. One with g generated tokens thus takes part in
/// max(g, 1) - 1 decode steps.
/// The batch holds the requests that got tokens, ordered as semantics §1.4 with threshold 1:
/// decode, one-token chunk with context, longer chunk with context, prompt from its start; within
/// each in order of admission. `trace` must not be empty.
ReplayedBatch replay_trace(const std::vector<TraceRequest>& trace, const ReplayOptions& options);

/// First number of the splitmix64 sequence of `seed` (Steele, Lea, Flood 2014).
std::uint64_t splitmix64(std::uint64_t seed);

}  // namespace attnbench
