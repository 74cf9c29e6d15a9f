// Traces of requests: read from files, and replayed to the batch of one scheduler step.
//
// Batches made up by hand rarely look like those of a server. A trace has the lengths of
// real prompts and answers in the order in which they came; replay_trace() runs them through a
// plain model of continuous batching (contract section 1.1) and takes the batch of one step. The
// same trace, options and seed always give the same batch: results are compared by it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/enum_names.h"
#include "core/problem/problem.h"

namespace attnbench {

/// Of a request whose arrival is not known.
inline constexpr double kNoArrival = -std::numeric_limits<double>::infinity();

/// One line of a trace.
struct TraceRequest {
  std::int64_t prompt_tokens = 0;     // >= 1
  std::int64_t generated_tokens = 0;  // >= 0
  /// Ids of the prompt's 512-token blocks (mooncake); equal leading ids are equal tokens.
  std::vector<std::int64_t> prefix_blocks = {};
  double arrival_s = kNoArrival;
};

inline constexpr std::int64_t kPrefixBlockTokens = 512;

enum class TraceFormat {
  kAzureLlm,
  kMooncake,
  kBurstGpt,
  kCsv,
  kVllmBench,
  kSglangBench,
  kSglangLog,
  kVllmLog
};
std::span<const EnumRow<TraceFormat>> enum_rows(TraceFormat);

/// Requests in file order; empty lines are skipped. Errors: E-FORMAT "<file>:<line>: ..." for a
/// line that does not fit, a prompt without tokens, a file without requests; E-IO.
std::vector<TraceRequest> read_trace(const std::filesystem::path& path, TraceFormat format);

/// The same for text in memory.
std::vector<TraceRequest> parse_trace(const std::string& text, const std::string& file,
                                      TraceFormat format);

/// When requests come: one as soon as another has finished, at the times of the trace, or at random
/// (gaps of an exponential distribution).
enum class Arrivals { kClosed, kTrace, kPoisson };
std::span<const EnumRow<Arrivals>> enum_rows(Arrivals);

struct ReplayOptions {
  std::int64_t requests = 64;              // that run at the same time, >= 1
  std::int64_t max_batched_tokens = 8192;  // of one step, >= 1
  std::int64_t step = 1000;                // which step's batch, from 1
  std::uint64_t seed = 0;
  Arrivals arrivals = Arrivals::kClosed;
  /// Requests a second, on average. kPoisson needs it; 0 with kTrace leaves the trace's own.
  double rate = 0;
  double step_ms = 20;  // how long a step takes, > 0: what turns arrival times into steps
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
/// With arrivals a request that has not come yet is not admitted: a step takes step_ms, and at most
/// `requests` run. When none runs the clock goes on to the next arrival, so that every step has
/// tokens. The trace is taken in the order of its arrivals and repeats behind its last one.
/// Errors: E-CONFIG for kTrace with a request whose arrival is not known, or arrivals that are all
/// the same.
ReplayedBatch replay_trace(const std::vector<TraceRequest>& trace, const ReplayOptions& options);

/// Batches of several steps by one replay: called with steps, from 1, that do not fall.
using TraceReplay = std::function<ReplayedBatch(std::int64_t step)>;
/// `trace` is borrowed; options.step is not looked at. Errors: as replay_trace().
TraceReplay start_replay(const std::vector<TraceRequest>& trace, const ReplayOptions& options);

/// First number of the splitmix64 sequence of `seed` (Steele, Lea, Flood 2014).
std::uint64_t splitmix64(std::uint64_t seed);

}  // namespace attnbench
