// A group is opened with the number of its job, its id and the hash of its problem, so that a rank
// with another command line or another file is found before anything runs.
#include "cli/session/ranks.h"

#include <fmt/format.h>

#include <sstream>
#include <string>
#include <utility>

#include "bench/process/child_process.h"
#include "bench/ranks/rank_link.h"
#include "bench/ranks/thread_group.h"
#include "core/error.h"
#include "core/problem/fields.h"
#include "core/sha256.h"

namespace attnbench {
namespace {

/// The opening of a job's group; ids have no spaces.
std::string opening_of(std::size_t index, const Job& job) {
  return fmt::format("{} {} {}", index, sha256_hex(problem_to_json(*job.problem)), job.id);
}

struct Opening {
  int rank = 0;
  int world_size = 0;
  std::size_t index = 0;
  std::string job;  // as opening_of() says it
  std::string id;
};

Opening read_opening(const std::string& text) {
  Opening opening;
  std::istringstream words(text);
  words >> opening.rank >> opening.world_size >> std::ws;
  std::getline(words, opening.job);
  std::istringstream of_job(opening.job);
  std::string hash;
  of_job >> opening.index >> hash >> std::ws;
  std::getline(of_job, opening.id);
  return opening;
}

/// Empty where this rank has the job, too.
std::string objection(const Opening& opening, const std::vector<Job>& jobs) {
  const bool is_there = opening.index < jobs.size();
  if (is_there && opening_of(opening.index, jobs[opening.index]) == opening.job) return "";
  return fmt::format(
      "it was started with another scenario or other options than rank 0: {} is {}", opening.id,
      is_there && jobs[opening.index].id == opening.id ? "another problem here" : "no case here");
}

/// Why this rank cannot run the job, which its own device may be the reason for; else empty.
std::string refusal_here(const BenchOptions& bench, const Job& job) {
  if (!job.extra_refusals.empty()) return job.extra_refusals.front();
  const std::vector<std::string> reasons = job.backend->refusals(*job.problem, bench.device_facts);
  return reasons.empty() ? "" : reasons.front();
}

/// What the process of a rank does.
void be_rank(const RankHome& home, const Opening& opening, const BenchOptions& bench,
             const std::vector<Job>& jobs) {
  RankLink link(home.socket, kJobHello, opening.rank);
  link.join(opening.world_size);
  std::string words = objection(opening, jobs);
  if (words.empty()) words = refusal_here(bench, jobs[opening.index]);
  if (!words.empty()) {
    link.give_up(words);
    link.receive();
    return;
  }
  const std::unique_ptr<Ops> ops =
      bench.make_ops ? bench.make_ops()
                     : make_cpu_ops(bench.num_threads, bench.device_facts.num_sms);
  try {
    serve_rank(link, *jobs[opening.index].backend, *ops);
  } catch (const Error&) {
    // Rank 0 says what happened.
  }
}

/// How a child ended, when it has.
std::string end_of(ChildProcess& child) {
  constexpr int kPollMs = 100;
  Message message;
  while (child.read(message, kPollMs) != ChildProcess::Read::kEnded) {
  }
  return child.how_it_ended();
}

}  // namespace

DeviceChoice choose_rank_device(const RankHome& home, const SelectionOptions& selection) {
  DeviceChoice device = choose_device(selection);
  if (device.is_range) {
    if (home.launched.size == 1) return device;
    fail(ErrorKind::kUsage,
         "--device: expected one GPU, cuda or cuda:N, for each process of mpirun or srun, found {}",
         selection.device);
  }
  const bool is_open = selection.device == "auto" || selection.device == "cuda";
  if (device.is_cuda() && is_open && home.launched.size > 1) {
    SelectionOptions own = selection;
    own.device = device_of_rank(home.launched.local_rank);
    device = choose_device(own);
  }
  RealRanks& nccl = device.facts.nccl;
  RealRanks& mpi = device.facts.mpi;
  if (!device.is_cuda()) {
    mpi = {home.missing, home.launched.size};
    return device;
  }
  mpi.missing = "its ranks are processes on the CPU, and the device is " + device.name;
  if (nccl.missing.empty()) nccl = {home.missing, home.launched.size};
  return device;
}

void RankedJobs::take(Job& job, OpenGroup open, const BenchOptions& bench) {
  backends_.push_back(
      std::make_unique<RankedBackend>(*job.backend, std::move(open), bench.hang_limit_s));
  job.backend = backends_.back().get();
}

RankedJobs::RankedJobs(const RankHome& home, const BenchOptions& bench, std::vector<Job>& jobs) {
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!has_real_ranks(*jobs[i].problem)) continue;
    take(
        jobs[i],
        [socket = home.socket, waits = bench.rank_waits,
         about = opening_of(i, jobs[i])](int world_size) {
          auto link =
              std::make_unique<RankLink>(socket, kJobHello, 0, [waits](const std::string& what) {
                if (waits && *waits) (*waits)(what);
              });
          link->open(world_size, about);
          return link;
        },
        bench);
    jobs[i].repro = fmt::format("mpirun -n {} {}", jobs[i].problem->dcp.world_size, jobs[i].repro);
  }
}

RankedJobs::RankedJobs(std::vector<std::vector<Job>> of_ranks, const OpenRankOps& open_ops,
                       const BenchOptions& bench, std::vector<Job>& jobs)
    : of_ranks_(std::move(of_ranks)) {
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!has_real_ranks(*jobs[i].problem)) continue;
    const RankWork work = [this, i, open_ops](RankChannel& channel) {
      const auto rank = static_cast<std::size_t>(channel.rank());
      const std::unique_ptr<Ops> ops = open_ops(channel.rank());
      serve_rank(channel, *of_ranks_.at(rank).at(i).backend, *ops);
    };
    take(
        jobs[i], [work](int world_size) { return open_thread_group(world_size, work); }, bench);
  }
}

void serve_ranks(const RankHome& home, const BenchOptions& bench, const std::vector<Job>& jobs) {
  if (home.socket.empty()) return;  // rank 0 says what is missing
  RankLink link(home.socket, kServerHello, home.launched.rank);
  while (const std::optional<Message> message = link.receive()) {
    if (message->kind != kOpen) continue;
    const Opening opening = read_opening(message->text);
    ChildProcess child([&](ParentLink&) { be_rank(home, opening, bench, jobs); });
    const pid_t pid = child.pid();
    link.send(kJobEnded, fmt::format("{} {}", pid, end_of(child)));
  }
}

}  // namespace attnbench
