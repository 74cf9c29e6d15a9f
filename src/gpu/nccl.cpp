#include "gpu/nccl.h"

#include <cstring>
#include <string>
#include <utility>

#include "core/error.h"

namespace attnbench {
namespace {

// Values of nccl.h, which the toolkit need not bring.
constexpr int kNcclSuccess = 0;
constexpr int kNcclUint8 = 1;
constexpr int kNcclSum = 0;

}  // namespace

NcclLibrary::NcclLibrary()
    : library_({"libnccl.so.2", "/usr/local/cuda/lib/libnccl.so.2",
                "/usr/local/cuda/lib64/libnccl.so.2", "libnccl.so"}) {
  if (!library_.is_open()) {
    missing_ = "NCCL not found";
    return;
  }
  const auto need = [this](auto*& function, const char* name) {
    if (!library_.bind(function, name) && missing_.empty()) {
      missing_ = std::string("NCCL without ") + name;
    }
  };
  need(get_unique_id_, "ncclGetUniqueId");
  need(init_rank_, "ncclCommInitRank");
  need(abort_, "ncclCommAbort");
  need(group_start_, "ncclGroupStart");
  need(group_end_, "ncclGroupEnd");
  need(all_gather_, "ncclAllGather");
  need(reduce_scatter_, "ncclReduceScatter");
  need(all_reduce_, "ncclAllReduce");
  need(send_, "ncclSend");
  need(receive_, "ncclRecv");
  need(error_text_, "ncclGetErrorString");
  library_.bind(last_error_, "ncclGetLastError");
}

void NcclLibrary::check(int code, const char* call, void* comm) const {
  if (code == kNcclSuccess) return;
  const char* const last = last_error_ == nullptr ? nullptr : last_error_(comm);
  const std::string more = last == nullptr || *last == '\0' ? "" : std::string(" (") + last + ")";
  fail(ErrorKind::kInternal, "{}: {}{}", call, error_text_(code), more);
}

std::string NcclLibrary::make_id() const {
  Id id{};
  check(get_unique_id_(&id), "ncclGetUniqueId");
  return {id.bytes, sizeof id.bytes};
}

NcclGroup::NcclGroup(const NcclLibrary& library, const std::string& id, int rank, int size)
    : library_(library), size_(size) {
  NcclLibrary::Id joined{};
  if (id.size() != sizeof joined.bytes) fail(ErrorKind::kInternal, "no id of an NCCL group");
  std::memcpy(joined.bytes, id.data(), id.size());
  library_.check(library_.init_rank_(&comm_, size, joined, rank), "ncclCommInitRank");
}

void NcclGroup::abort() {
  if (comm_ != nullptr) library_.abort_(std::exchange(comm_, nullptr));
}

void NcclGroup::all_gather(const void* send, void* receive, std::size_t bytes, void* stream) const {
  library_.check(library_.all_gather_(send, receive, bytes, kNcclUint8, comm_, stream),
                 "ncclAllGather", comm_);
}

void NcclGroup::all_to_all(const void* send, void* receive, std::size_t bytes, void* stream) const {
  library_.check(library_.group_start_(), "ncclGroupStart", comm_);
  int failure = kNcclSuccess;
  const char* failed = "";
  const auto note = [&](int code, const char* call) {
    if (code != kNcclSuccess) failed = call;
    return failure = code;
  };
  for (int peer = 0; peer < size_ && failure == kNcclSuccess; ++peer) {
    const std::size_t offset = bytes * static_cast<std::size_t>(peer);
    const char* const source = static_cast<const char*>(send) + offset;
    char* const target = static_cast<char*>(receive) + offset;
    if (note(library_.send_(source, bytes, kNcclUint8, peer, comm_, stream), "ncclSend") ==
        kNcclSuccess) {
      note(library_.receive_(target, bytes, kNcclUint8, peer, comm_, stream), "ncclRecv");
    }
  }
  // Why also after a failure: a group that stays open takes in all that follows.
  const int end = library_.group_end_();
  library_.check(failure, failed, comm_);
  library_.check(end, "ncclGroupEnd", comm_);
}

void NcclGroup::reduce_scatter(const void* send, void* receive, std::size_t count, NcclType type,
                               void* stream) const {
  library_.check(library_.reduce_scatter_(send, receive, count, static_cast<int>(type), kNcclSum,
                                          comm_, stream),
                 "ncclReduceScatter", comm_);
}

void NcclGroup::all_reduce(const void* send, void* receive, std::size_t count, NcclType type,
                           void* stream) const {
  library_.check(
      library_.all_reduce_(send, receive, count, static_cast<int>(type), kNcclSum, comm_, stream),
      "ncclAllReduce", comm_);
}

}  // namespace attnbench
