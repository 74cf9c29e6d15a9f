// `run` as one of several ranks: jobs whose groups have real ranks, on rank 0, and what the other
// ranks do instead of running jobs.
//
// Ranks are processes that mpirun or srun started, or threads of this one, each with a GPU of
// --device cuda:N-M. All processes read the same command line and the same files up to the list of
// jobs. From there rank 0 goes on like any run, with backends that give orders to the other ranks;
// those wait for orders and write nothing.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "bench/bench.h"
#include "bench/ranks/broker.h"
#include "bench/ranks/ranked_backend.h"
#include "cli/cases/device.h"

namespace attnbench {

/// The device of a rank: where --device leaves open which GPU, each rank of a machine has its own.
/// Its facts say what the transports have to offer to a process that was started as `home` says.
DeviceChoice choose_rank_device(const RankHome& home, const SelectionOptions& selection);

/// Owns the backends over ranks that it gives jobs with real ranks, so it must outlive their run.
class RankedJobs {
 public:
  RankedJobs(const RankedJobs&) = delete;
  RankedJobs& operator=(const RankedJobs&) = delete;
  /// On rank 0 of several processes. `bench` must outlive it, and its rank_waits be set.
  RankedJobs(const RankHome& home, const BenchOptions& bench, std::vector<Job>& jobs);

  /// Opens what a rank other than the first works with, on its thread.
  using OpenRankOps = std::function<std::unique_ptr<Ops>(int rank)>;
  /// For ranks that are threads of this process. `of_ranks[r]` are the jobs as rank r has them, of
  /// the same ids in the same order; those of rank 0 are not looked at.
  RankedJobs(std::vector<std::vector<Job>> of_ranks, const OpenRankOps& open_ops,
             const BenchOptions& bench, std::vector<Job>& jobs);

 private:
  void take(Job& job, OpenGroup open, const BenchOptions& bench);

  std::vector<std::vector<Job>> of_ranks_;
  std::vector<std::unique_ptr<RankedBackend>> backends_;
};

/// On the other ranks, in place of all that `run` does with its jobs: runs a process for each group
/// that rank 0 opens, until rank 0 has ended. `jobs` are to be those of rank 0: a group whose job
/// is another here is given up.
void serve_ranks(const RankHome& home, const BenchOptions& bench, const std::vector<Job>& jobs);

}  // namespace attnbench
