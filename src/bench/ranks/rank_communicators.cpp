// Ranks join NCCL in rounds: each looks for a moment whether it has joined, then all meet over the
// channel, where a failure of one is an exception of all.
#include "bench/ranks/rank_communicators.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "bench/ranks/broker.h"
#include "bench/ranks/rank_link.h"
#include "core/error.h"
#include "core/tensor.h"
#include "gpu/nccl.h"
#include "gpu/stream.h"
#include "ops/cuda/cuda_ops.h"

namespace attnbench {
namespace {

/// What rank 0 says after each round.
constexpr const char* kJoined = "joined";
constexpr const char* kStillJoining = "waiting";
constexpr const char* kJoinPhase = "join NCCL";
/// Joining a group on many machines takes its time.
constexpr double kJoinLimitS = 120;
constexpr int kRoundMs = 50;

NcclType type_of(Dtype dtype) {
  if (dtype == Dtype::kF32) return NcclType::kF32;
  if (dtype == Dtype::kF16) return NcclType::kF16;
  if (dtype == Dtype::kBF16) return NcclType::kBF16;
  fail(ErrorKind::kDtype, "sum over ranks: expected float32, float16 or bfloat16, got {}",
       dtype_name(dtype));
}

/// A second stream of a rank, for what runs beside its own: behind begin() all that its own stream
/// had before, and its own goes on behind await(). Recorded in a graph with it.
class SideStream {
 public:
  SideStream(Runtime& runtime, const Stream& main)
      : main_(main), side_(runtime), before_(runtime), after_(runtime) {}

  void begin() {
    before_.record(main_);
    before_.hold_back(side_);
  }
  void* stream() const { return side_.handle(); }
  void end() { after_.record(side_); }
  void await() { after_.hold_back(main_); }

 private:
  const Stream& main_;
  Stream side_;
  Event before_;
  Event after_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(RankChannel& channel, Ops& ops, const std::vector<std::string>& libraries)
      : library_(libraries.empty() ? NcclLibrary::usual_names() : libraries),
        rank_(channel.rank()),
        size_(channel.world_size()),
        ops_(ops),
        usable_(usable(library_)),
        group_(usable_, id_for_all(channel), rank_, size_) {
    if (auto* const device = dynamic_cast<CudaOps*>(&ops)) {
      beside_.emplace(device->runtime(), device->stream());
    }
    join(channel);
  }

  void abort() override { group_.abort(); }

  int world_size() const override { return size_; }
  int num_local_ranks() const override { return 1; }
  int first_rank() const override { return rank_; }

  void all_gather(SendBuffers send, ReceiveBuffers receive, std::size_t size_bytes) override {
    group_.all_gather(send[0], receive[0], size_bytes, ops_.stream_for("ncclAllGather"));
  }
  /// On a stream of its own, which waits for what is queued before.
  void begin_all_gather(SendBuffers send, ReceiveBuffers receive, std::size_t size_bytes) override {
    if (!beside_) return all_gather(send, receive, size_bytes);
    // Also tells whoever waits for the device what it may be waiting for.
    ops_.stream_for("ncclAllGather");
    beside_->begin();
    group_.all_gather(send[0], receive[0], size_bytes, beside_->stream());
    beside_->end();
  }
  void await_gather() override {
    if (beside_) beside_->await();
  }
  void all_to_all(SendBuffers send, ReceiveBuffers receive, std::size_t size_bytes) override {
    group_.all_to_all(send[0], receive[0], size_bytes, ops_.stream_for("ncclSend, ncclRecv"));
  }
  void reduce_scatter_sum(SendBuffers send, ReceiveBuffers receive, Dtype dtype,
                          std::int64_t count) override {
    group_.reduce_scatter(send[0], receive[0], static_cast<std::size_t>(count), type_of(dtype),
                          ops_.stream_for("ncclReduceScatter"));
  }
  void all_reduce_sum(SendBuffers send, ReceiveBuffers receive, Dtype dtype,
                      std::int64_t count) override {
    group_.all_reduce(send[0], receive[0], static_cast<std::size_t>(count), type_of(dtype),
                      ops_.stream_for("ncclAllReduce"));
  }

 private:
  static const NcclLibrary& usable(const NcclLibrary& library) {
    if (!library.missing().empty()) fail(ErrorKind::kUnsupported, "{}", library.missing());
    return library;
  }
  std::string id_for_all(RankChannel& channel) const {
    const std::string id = channel.rank() == 0 ? library_.make_id() : "";
    return channel.broadcast(id, kJoinPhase, kJoinLimitS);
  }

  /// The last round is rank 0's: NCCL lets it go when all have come, so the others follow at once
  /// or have failed.
  void join(RankChannel& channel) {
    const SteadyTime limit = now() + std::chrono::seconds(static_cast<int>(kJoinLimitS));
    bool all_came = false;
    while (!all_came) {
      const bool joined = group_.has_joined(kRoundMs);
      all_came =
          channel.broadcast(joined ? kJoined : kStillJoining, kJoinPhase, kJoinLimitS) == kJoined;
      check_limit(limit);
    }
    while (!group_.has_joined(kRoundMs)) check_limit(limit);
    channel.meet();
  }

  using SteadyTime = std::chrono::steady_clock::time_point;
  static SteadyTime now() { return std::chrono::steady_clock::now(); }
  static void check_limit(SteadyTime limit) {
    if (now() < limit) return;
    fail(ErrorKind::kInternal, "ncclCommInitRank: not all ranks have joined after {:.0f} s",
         kJoinLimitS);
  }

  NcclLibrary library_;
  int rank_;
  int size_;
  Ops& ops_;
  // Why a member: a rank without NCCL has to say so before the others wait for it in NCCL.
  const NcclLibrary& usable_;
  NcclGroup group_;
  std::optional<SideStream> beside_;  // of ranks on GPUs
};

/// Sums are made here, in the order of the ranks, from parts that MPI has moved: an MPI_Reduce may
/// add in any order, and these have the bytes of simulated ranks (§7.3).
class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(RankLink& link, Ops& ops) : link_(link), ops_(ops) {}

  int world_size() const override { return link_.world_size(); }
  int num_local_ranks() const override { return 1; }
  int first_rank() const override { return link_.rank(); }

  void all_gather(SendBuffers send, ReceiveBuffers receive, std::size_t size_bytes) override {
    link_.exchange(kAllGather, send[0], receive[0], size_bytes);
  }
  void all_to_all(SendBuffers send, ReceiveBuffers receive, std::size_t size_bytes) override {
    link_.exchange(kAllToAll, send[0], receive[0], size_bytes);
  }
  void reduce_scatter_sum(SendBuffers send, ReceiveBuffers receive, Dtype dtype,
                          std::int64_t count) override {
    link_.exchange(kAllToAll, send[0], parts(dtype, count), part_bytes(dtype, count));
    sum(receive[0], dtype, count);
  }
  void all_reduce_sum(SendBuffers send, ReceiveBuffers receive, Dtype dtype,
                      std::int64_t count) override {
    link_.exchange(kAllGather, send[0], parts(dtype, count), part_bytes(dtype, count));
    sum(receive[0], dtype, count);
  }

 private:
  static std::size_t part_bytes(Dtype dtype, std::int64_t count) {
    return static_cast<std::size_t>(count) * dtype_size(dtype);
  }
  std::byte* parts(Dtype dtype, std::int64_t count) {
    const auto bytes = static_cast<std::int64_t>(part_bytes(dtype, count)) * world_size();
    if (static_cast<std::int64_t>(parts_.size_bytes()) < bytes)
      parts_ = Tensor(Dtype::kU8, {bytes});
    return parts_.bytes();
  }
  void sum(void* output, Dtype dtype, std::int64_t count) {
    std::vector<const void*> parts;
    for (int r = 0; r < world_size(); ++r) {
      parts.push_back(parts_.bytes() + static_cast<std::size_t>(r) * part_bytes(dtype, count));
    }
    sum_over_ranks(ops_, parts, dtype, count, output);
  }

  RankLink& link_;
  Ops& ops_;
  Tensor parts_;  // [W, count] of the last sum
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(RankChannel& channel, Ops& ops,
                                                     const std::vector<std::string>& libraries) {
  return std::make_unique<NcclCommunicator>(channel, ops, libraries);
}

std::unique_ptr<Communicator> make_mpi_communicator(RankLink& link, Ops& ops) {
  return std::make_unique<MpiCommunicator>(link, ops);
}

}  // namespace attnbench
