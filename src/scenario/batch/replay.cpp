#include "scenario/batch/replay.h"

#include <algorithm>

#include "metadata/batch.h"

namespace attnbench {
namespace {

struct Running {
  const TraceRequest* request = nullptr;
  std::int64_t computed = 0;   // tokens in the cache
  std::int64_t generated = 0;  // tokens sampled
  std::int64_t scheduled = 0;  // tokens of the current step

  bool prompt_done() const { return computed >= request->prompt_tokens; }
  bool finished() const { return prompt_done() && generated >= request->generated_tokens; }
};

class Scheduler {
 public:
  Scheduler(const std::vector<TraceRequest>& trace, const ReplayOptions& options)
      : trace_(trace), options_(options), next_line_(splitmix64(options.seed) % trace.size()) {
    for (std::int64_t i = 0; i < options.requests; ++i) running_.push_back(admit());
  }

  void schedule() {
    std::int64_t budget = options_.max_batched_tokens;
    for (Running& run : running_) {
      run.scheduled = run.prompt_done() ? 1 : 0;
      budget -= run.scheduled;
    }
    for (Running& run : running_) {
      if (run.prompt_done()) continue;
      const std::int64_t left = run.request->prompt_tokens - run.computed;
      run.scheduled = std::clamp<std::int64_t>(budget, 0, left);
      budget -= run.scheduled;
    }
  }

  void finish_step() {
    for (Running& run : running_) {
      run.computed += run.scheduled;
      if (run.scheduled > 0 && run.prompt_done()) ++run.generated;
    }
    // Why erase and append: a new request stands behind those admitted before it.
    std::erase_if(running_, [](const Running& run) { return run.finished(); });
    while (static_cast<std::int64_t>(running_.size()) < options_.requests) {
      running_.push_back(admit());
    }
  }

  /// The requests that got tokens, as §1.4 orders them.
  std::vector<Running> ordered() const {
    std::vector<Running> active;
    std::vector<std::int32_t> scheduled, computed, prompt_lens;
    for (const Running& run : running_) {
      if (run.scheduled == 0) continue;
      active.push_back(run);
      scheduled.push_back(static_cast<std::int32_t>(run.scheduled));
      computed.push_back(static_cast<std::int32_t>(run.computed));
      prompt_lens.push_back(static_cast<std::int32_t>(run.request->prompt_tokens));
    }
    std::vector<Running> result;
    for (int index : reorder_batch(scheduled, computed, prompt_lens, 1)) {
      result.push_back(active[static_cast<std::size_t>(index)]);
    }
    return result;
  }

 private:
  Running admit() {
    const TraceRequest& request = trace_[next_line_];
    next_line_ = (next_line_ + 1) % trace_.size();
    return {.request = &request};
  }

  const std::vector<TraceRequest>& trace_;
  const ReplayOptions& options_;
  std::size_t next_line_;
  std::vector<Running> running_;
};

std::int64_t shared_prefix(const std::vector<Running>& batch) {
  if (batch.size() < 2) return 0;
  const TraceRequest& first = *batch.front().request;
  std::size_t blocks = first.prefix_blocks.size();
  std::int64_t shortest = first.prompt_tokens;
  for (const Running& run : batch) {
    const auto& ids = run.request->prefix_blocks;
    const auto limit = std::min(blocks, ids.size());
    const auto end = first.prefix_blocks.begin() + static_cast<std::ptrdiff_t>(limit);
    blocks = static_cast<std::size_t>(
        std::mismatch(first.prefix_blocks.begin(), end, ids.begin()).first -
        first.prefix_blocks.begin());
    shortest = std::min(shortest, run.request->prompt_tokens);
  }
  // Why the minimum: the last block of a prompt is usually not full.
  return std::min(static_cast<std::int64_t>(blocks) * kPrefixBlockTokens, shortest);
}

}  // namespace

std::uint64_t splitmix64(std::uint64_t seed) {
  std::uint64_t z = seed + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

ReplayedBatch replay_trace(const std::vector<TraceRequest>& trace, const ReplayOptions& options) {
  Scheduler scheduler(trace, options);
  scheduler.schedule();
  for (std::int64_t step = 1; step < options.step; ++step) {
    scheduler.finish_step();
    scheduler.schedule();
  }
  const std::vector<Running> ordered = scheduler.ordered();
  ReplayedBatch result;
  for (const Running& run : ordered) {
    result.batch.push_back({run.scheduled, run.computed + run.scheduled});
  }
  result.shared_prefix_tokens = shared_prefix(ordered);
  return result;
}

}  // namespace attnbench
