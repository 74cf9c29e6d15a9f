#include "gpu/nccl.h"

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/error.h"
#include "gpu/runtime.h"

namespace attnbench {
namespace {

// Values of nccl.h, which the toolkit need not bring.
constexpr int kNcclSuccess = 0;
constexpr int kNcclUint8 = 1;
constexpr int kNcclSum = 0;

/// What a library of NCCL must have, in the order of the members.
constexpr std::array kFunctions = {"ncclGetUniqueId",   "ncclCommInitRank",  "ncclCommAbort",
                                   "ncclGroupStart",    "ncclGroupEnd",      "ncclAllGather",
                                   "ncclReduceScatter", "ncclAllReduce",     "ncclSend",
                                   "ncclRecv",          "ncclGetErrorString"};
constexpr const char* kNotFound = "NCCL not found";

}  // namespace

std::vector<std::string> NcclLibrary::usual_names() {
  return {"libnccl.so.2", "/usr/local/cuda/lib/libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2",
          "libnccl.so"};
}

std::string NcclLibrary::missing_on_this_machine(const std::vector<std::string>& names) {
  void* handle = nullptr;
  for (const std::string& name : names) {
    // Why not DynamicLibrary: what it opens stays.
    handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (handle != nullptr) break;
  }
  if (handle == nullptr) return kNotFound;
  std::string missing;
  for (const char* function : kFunctions) {
    if (missing.empty() && dlsym(handle, function) == nullptr) {
      missing = std::string("NCCL without ") + function;
    }
  }
  dlclose(handle);
  return missing;
}

NcclLibrary::NcclLibrary(const std::vector<std::string>& names) : library_(names) {
  if (!library_.is_open()) {
    missing_ = kNotFound;
    return;
  }
  std::size_t next = 0;
  const auto need = [&](auto*& function) {
    const char* const name = kFunctions.at(next++);
    if (!library_.bind(function, name) && missing_.empty()) {
      missing_ = std::string("NCCL without ") + name;
    }
  };
  need(get_unique_id_);
  need(init_rank_);
  need(abort_);
  need(group_start_);
  need(group_end_);
  need(all_gather_);
  need(reduce_scatter_);
  need(all_reduce_);
  need(send_);
  need(receive_);
  need(error_text_);
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

/// What the thread that joins shares with its group, which may be gone before it.
struct NcclGroup::Joining {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_over = false;
  bool is_abandoned = false;
  int code = kNcclSuccess;
  void* comm = nullptr;
};

NcclGroup::NcclGroup(const NcclLibrary& library, const std::string& id, int rank, int size)
    : library_(library), size_(size), joining_(std::make_shared<Joining>()) {
  NcclLibrary::Id joined{};
  if (id.size() != sizeof joined.bytes) fail(ErrorKind::kInternal, "no id of an NCCL group");
  std::memcpy(joined.bytes, id.data(), id.size());
  // Why: the device of a thread that starts is the first one. Its end makes that of this thread
  // current there.
  auto device = std::make_unique<KeepDevice>(true);
  std::thread([joining = joining_, device = std::move(device), join = library.init_rank_,
               abort = library.abort_, joined, rank, size]() mutable {
    device.reset();
    void* comm = nullptr;
    const int code = join(&comm, size, joined, rank);
    const std::lock_guard<std::mutex> lock(joining->mutex);
    joining->is_over = true;
    joining->code = code;
    joining->comm = comm;
    if (joining->is_abandoned && code == kNcclSuccess) abort(comm);
    joining->changed.notify_all();
  }).detach();
}

bool NcclGroup::has_joined(int wait_ms) {
  if (comm_ != nullptr) return true;
  if (joining_ == nullptr) fail(ErrorKind::kInternal, "the NCCL group is over");
  std::unique_lock<std::mutex> lock(joining_->mutex);
  const bool is_over = joining_->changed.wait_for(lock, std::chrono::milliseconds(wait_ms),
                                                  [this] { return joining_->is_over; });
  if (!is_over) return false;
  const int code = joining_->code;
  if (code == kNcclSuccess) comm_ = joining_->comm;
  lock.unlock();
  joining_.reset();
  library_.check(code, "ncclCommInitRank");
  return true;
}

void NcclGroup::abort() {
  if (joining_ != nullptr) {
    const std::lock_guard<std::mutex> lock(joining_->mutex);
    joining_->is_abandoned = true;
    if (joining_->is_over && joining_->code == kNcclSuccess) comm_ = joining_->comm;
  }
  joining_.reset();
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
