// A backend over real ranks: rank 0's pipeline stands for those of all ranks, and the other ranks
// follow its orders, step by step. Above it a job over ranks is a job like any other.
#pragma once

#include <functional>
#include <memory>

#include "backends/forwarding_backend.h"
#include "backends/ranks/communicator.h"
#include "bench/ranks/rank_channel.h"
#include "bench/ranks/rank_sampler.h"
#include "core/problem/problem.h"

namespace attnbench {

/// Whether the ranks of the problem are processes or devices of their own.
inline bool has_real_ranks(const Problem& problem) {
  return problem.dcp.world_size > 1 && problem.dcp.transport != DcpTransport::kSimulated;
}

/// Makes the first `world_size` ranks a group.
using OpenGroup = std::function<std::unique_ptr<RankChannel>(int world_size)>;

class RankSession;

class RankedBackend final : public ForwardingBackend {
 public:
  /// `inner` must outlive it. A rank that is silent for `limit_s` seconds in a step ends the case;
  /// 0 = no limit.
  RankedBackend(const Backend& inner, OpenGroup open, double limit_s,
                MakeRankRecorder make_recorder = make_rank_recorder);
  ~RankedBackend() override;

  const Backend& of_rank() const { return inner(); }

  /// `inputs` are those of all ranks. On the CPU a step's time is that of the slowest rank, with
  /// the messages around it; on GPUs samples are those of the rank that was slowest in them
  /// (ranked_stopwatch.h). Samples are not checked one by one. Errors: those of RankChannel.
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override;

 private:
  OpenGroup open_;
  double limit_s_;
  MakeRankRecorder make_recorder_;
  mutable std::weak_ptr<RankSession> session_;  // of the pipelines that are prepared
};

/// What every other rank does: prepares and runs what rank 0 orders, until the group is closed or
/// over. `ops` must outlive it. Errors: those of RankChannel.
void serve_rank(RankChannel& channel, const Backend& backend, Ops& ops,
                const MakeRankRecorder& make_recorder = make_rank_recorder);

}  // namespace attnbench
