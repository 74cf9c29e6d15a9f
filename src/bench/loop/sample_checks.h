// Whether every timed sample did the work.
//
// What is timed could be something else than what was validated: a kernel that returns at once when
// it has seen its inputs before, that copies what it kept, that works on another stream or a thread
// while the clock stands still. So no two samples have the same inputs, inputs and outputs are
// poison until a sample's time begins, and what is in the outputs when its time ends is kept on the
// same stream (SampleWork in measure/measure.h has the order). Each sample is looked at on the
// device: no poison, no NaN that a validated run did not have. Some, chosen when they were over,
// are judged against the reference of their own inputs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/sample_side.h"
#include "bench/bench.h"
#include "bench/loop/sample_memory.h"
#include "core/result/result.h"
#include "measure/measure.h"

namespace attnbench {

/// A sample that is to be judged.
struct TimedSample {
  std::int64_t number = 0;
  std::uint64_t nonce = 0;  // of its inputs
  PipelineOutput output;
};

/// Around the samples of one pipeline, which must outlive it. Its inputs must be those of the case
/// when this is made, and its outputs those of a run on them or on their negation.
class SampleChecks final : public SampleWork {
 public:
  /// How many samples are judged, where there are as many: a kernel that does its work in only half
  /// of its samples does so in all of eight with a probability of 1/256. Fewer where their outputs
  /// take more than kMostKeptBytes, or than the device has, but not less than the least.
  static constexpr std::size_t kMostJudged = 8;
  static constexpr std::size_t kLeastJudged = 3;
  static constexpr std::int64_t kMostKeptBytes = std::int64_t{2} << 30;

  /// `most_poison`: bytes of workspaces that are poisoned before a sample; where there are more,
  /// only outputs are. `whole` false: the query is written anew and nothing else is done, for
  /// benchmarks of what the rest costs. Errors: E-CAPACITY.
  SampleChecks(Pipeline& pipeline, SampleSide side, std::unique_ptr<SampleMemory> memory,
               std::size_t most_poison, bool whole);

  void poison() override;
  void rewrite() override;
  void restore() override;
  void keep() override;
  void finish(std::optional<std::int64_t> sample) override;
  void end() override;
  std::size_t first_reader() const override { return side_.first_reader; }

  /// After the last sample: what the first sample that did not do the work shows
  /// ("timed sample 17: ..."), or nothing.
  const std::string& problem() const { return problem_; }
  /// The samples that are to be judged, in order. Overwrites the pipeline's outputs.
  std::vector<TimedSample> take_samples();

 private:
  struct Kept {
    std::int64_t number = 0;
    std::uint64_t nonce = 0;
    std::vector<void*> outputs;  // a copy of each
  };

  std::vector<void*> new_copies();
  bool make_next_copies();
  void plan_moves();
  void look_at(std::int64_t sample, const attn::SampleDigest& digest);
  void choose(std::int64_t sample, bool is_repeated);

  Pipeline& pipeline_;
  SampleSide side_;
  std::unique_ptr<SampleMemory> memory_;
  bool poisons_workspaces_;
  bool whole_;
  std::mt19937_64 random_{std::random_device{}()};
  std::uint64_t nonce_ = 0;
  std::vector<void*> queries_;     // as the case has them
  std::vector<void*> block_room_;  // of each plane, for the blocks that are overwritten
  void* poisoned_block_ = nullptr;
  std::vector<RedrawBlocks::Copy> copies_;  // that are in the cache now
  std::size_t num_new_moves_ = 0;
  std::size_t first_new_move_ = 0;
  std::vector<void*> latest_;  // outputs of the last sample
  attn::SampleDigest validated_{};
  std::optional<std::uint64_t> last_hash_;
  std::int64_t seen_ = 0;
  bool has_repeated_ = false;
  std::size_t num_judged_ = kMostJudged;  // at most
  std::vector<Kept> kept_;
  std::optional<Kept> repeated_;
  std::string problem_;
};

}  // namespace attnbench
