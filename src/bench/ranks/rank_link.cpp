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
#include "bench/ranks/rank_communicators.h"
#include "core/error.h"

namespace attnbench {

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
  if (ops.device_name() != "cpu") return make_nccl_communicator(*this, ops);
  return make_mpi_communicator(*this, ops);
}

}  // namespace attnbench
