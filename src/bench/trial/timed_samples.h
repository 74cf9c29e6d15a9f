// What the judge makes of timed samples: of their times, which are the evidence, whatever figures
// came beside them, and of the outputs that were kept (bench/loop/sample_checks.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backends/backend.h"
#include "bench/cases/case.h"
#include "core/problem/problem.h"
#include "core/result/result.h"
#include "metrics/throughput.h"

namespace attnbench {

/// `raw` with every figure that its samples give computed from them. Errors: E-INTERNAL for samples
/// that no clock gives: none, negative ones or none of a number, and lists beside them that do not
/// fit them.
Timing checked_timing(Timing raw);

/// Of simulated ranks, which run in turn, so that their time is the sum over the ranks: by_name
/// "predicted_us", what the slowest of real ones would take over NVLink (docs/dcp-model.md).
/// Nothing for other problems.
void add_prediction(const Problem& problem, Timing& timing);

/// With real ranks the caches of rank 0 are emptied before a sample, and nobody knows about those
/// of the others: L2 is "warm".
void note_ranks(const Problem& problem, Timing& timing);

/// What a device can do at best. Ceilings are measured on the device itself, before a user's code
/// runs, and again before they accuse anybody: what is too low accuses the innocent.
class DeviceSpeed {
 public:
  virtual ~DeviceSpeed() = default;
  /// Of memory, and of the arithmetic that the backend's scores are made of. Measured once.
  virtual Ceilings ceilings(const Problem& problem, const Backend& backend) = 0;
  /// What no right kernel of the problem exceeds.
  virtual Physics physics(const Problem& problem, const Backend& backend) = 0;
  /// Measures the ceilings once more, of which the best then count: before a time is called
  /// impossible, since a ceiling that was measured beside other programs is too low.
  virtual void measure_again() = 0;
};

/// Sets result.throughput from result.timing. Empty, or why the time cannot be: the ceiling that
/// the median beats (metrics/throughput.h). `speed` null: nothing is known of the device. Real
/// ranks have as many devices like it as there are ranks.
std::string judge_speed(const Problem& problem, const Backend& backend, DeviceSpeed* speed,
                        Result& result);

/// What a sample shows.
struct SampleFinding {
  std::string reason;                // against the backend: "timed sample 17: ..."; or empty
  std::optional<SampleCheck> check;  // nothing for cases that have no way to judge a sample
};

/// Judges the output of timed sample `number` against the reference of its inputs, which the redraw
/// `nonce` made. Nothing when the judge was interrupted.
std::optional<SampleFinding> judge_timed_sample(CaseRun& case_run, std::int64_t number,
                                                std::uint64_t nonce, const PipelineOutput& output);

/// What the user should know of a run() on a CUDA device whose call takes the host longer than its
/// work takes the device; empty for all others.
std::string notice_of_host_time(const Result& result);

}  // namespace attnbench
