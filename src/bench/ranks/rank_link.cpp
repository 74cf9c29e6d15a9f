// Every call is a question to the broker, which answers when all ranks have called.
#include "bench/ranks/rank_link.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "bench/process/local_socket.h"
#include "bench/ranks/broker.h"
#include "core/error.h"
#include "core/tensor.h"
#include "gpu/nccl.h"

namespace attnbench {
namespace {

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

/// Joining a group on many machines takes its time.
constexpr double kJoinLimitS = 120;

NcclType type_of(Dtype dtype) {
  if (dtype == Dtype::kF32) return NcclType::kF32;
  if (dtype == Dtype::kF16) return NcclType::kF16;
  if (dtype == Dtype::kBF16) return NcclType::kBF16;
  fail(ErrorKind::kDtype, "sum over ranks: expected float32, float16 or bfloat16, got {}",
       dtype_name(dtype));
}

/// On the stream that pipelines queue on. Sums are NCCL's, in the given type.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(RankChannel& channel, Ops& ops)
      : rank_(channel.rank()),
        size_(channel.world_size()),
        ops_(ops),
        usable_(usable(library_)),
        group_(usable_, id_for_all(channel), rank_, size_) {}

  void abort() override { group_.abort(); }

  int world_size() const override { return size_; }
  int num_local_ranks() const override { return 1; }
  int first_rank() const override { return rank_; }

  void all_gather(SendBuffers send, ReceiveBuffers receive, std::size_t size_bytes) override {
    group_.all_gather(send[0], receive[0], size_bytes, ops_.stream_for("ncclAllGather"));
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
    return channel.broadcast(id, "join NCCL", kJoinLimitS);
  }

  NcclLibrary library_;
  int rank_;
  int size_;
  Ops& ops_;
  // Why a member: a rank without NCCL has to say so before the others wait for it in NCCL.
  const NcclLibrary& usable_;
  NcclGroup group_;
};

}  // namespace

RankLink::RankLink(const std::string& socket, char hello, int rank, WhileWaiting while_waiting)
    : socket_(connect_to(socket)), rank_(rank), while_waiting_(std::move(while_waiting)) {
  send(hello, "");
}

void RankLink::send(char kind, const std::string& text) const {
  if (!send_message(socket_.get(), kind, text)) {
    fail(ErrorKind::kInternal, "rank {}: the process that has MPI is gone", rank_);
  }
}

std::optional<Message> RankLink::receive() {
  Message message;
  if (reader_.take(message)) return message;
  constexpr int kWaitMs = 1000;
  for (;;) {
    pollfd waiting{socket_.get(), POLLIN, 0};
    const int ready = ::poll(&waiting, 1, kWaitMs);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      if (while_waiting_) while_waiting_(fmt::format("other ranks in phase '{}'", phase_));
      continue;
    }
    switch (reader_.read(socket_.get(), message)) {
      case MessageReader::Read::kMessage:
        return message;
      case MessageReader::Read::kNothingYet:
        break;
      case MessageReader::Read::kEnded:
        return std::nullopt;
    }
  }
}

Message RankLink::call(char kind, const RankOperation& operation, const std::string& text,
                       int file) {
  std::string whole(sizeof operation, '\0');
  std::memcpy(whole.data(), &operation, sizeof operation);
  whole += text;
  if (!send_message(socket_.get(), kind, whole, file)) {
    fail(ErrorKind::kInternal, "rank {}: the process that has MPI is gone", rank_);
  }
  std::optional<Message> answer = receive();
  if (!answer) fail(ErrorKind::kInternal, "rank {}: the process that has MPI is gone", rank_);
  if (answer->kind == kBroken) throw Error(ErrorKind::kInternal, answer->text);
  return *std::move(answer);
}

void RankLink::open(int world_size, const std::string& about) {
  world_size_ = world_size;
  phase_ = "start";
  send(kOpen, fmt::format("{} {}", world_size, about));
}

std::string RankLink::broadcast(const std::string& text, const std::string& phase, double limit_s) {
  RankOperation operation;
  operation.limit_s = limit_s;
  phase.copy(operation.phase, sizeof operation.phase - 1);
  std::string heard = call(kBroadcast, operation, text).text;
  phase_ = phase;
  return heard;
}

std::optional<Parcel> RankLink::pass(int from, int to, Parcel* parcel) {
  RankOperation operation;
  operation.from = from;
  operation.to = to;
  if (parcel == nullptr) {
    Message message = call(kPass, operation);
    if (rank_ != to) return std::nullopt;
    return Parcel{std::move(message.text), std::move(message.file)};
  }
  struct stat status {};
  ::fstat(parcel->file.get(), &status);
  operation.file_bytes = static_cast<std::uint64_t>(status.st_size);
  call(kPass, operation, parcel->text, parcel->file.get());
  return std::nullopt;
}

void RankLink::meet() { call(kMeet, {}); }

void RankLink::give_up(const std::string& reason) { send(kGiveUp, reason); }

void RankLink::close() { call(kClose, {}); }

std::size_t RankLink::parts_of(char kind) const {
  return kind == kAllGather ? 1 : static_cast<std::size_t>(world_size_);
}

void RankLink::exchange(char kind, const void* send, void* receive, std::size_t bytes) {
  const std::size_t sent = bytes * parts_of(kind);
  const std::size_t received = bytes * static_cast<std::size_t>(world_size_);
  Descriptor grown;
  if (shared_.size() < sent + received) {
    grown = new_memory_file(sent + received);
    shared_ = MappedFile(grown.get(), sent + received);
  }
  if (sent > 0) std::memcpy(shared_.data(), send, sent);
  RankOperation operation;
  operation.bytes = bytes;
  call(kind, operation, "", grown.get());
  if (received > 0) std::memcpy(receive, shared_.data() + sent, received);
}

std::unique_ptr<Communicator> RankLink::make_communicator(Ops& ops) {
  if (ops.device_name() != "cpu") return std::make_unique<NcclCommunicator>(*this, ops);
  return std::make_unique<MpiCommunicator>(*this, ops);
}

}  // namespace attnbench
