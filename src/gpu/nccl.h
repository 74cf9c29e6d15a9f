// Collectives between GPUs, from NCCL when the machine has it. Each rank, a process or a thread,
// has the device that is current when it joins; NCCL's own settings are the user's (NCCL_*
// variables).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gpu/dynamic_library.h"

namespace attnbench {

/// Element types of sums, by their numbers in nccl.h.
enum class NcclType { kF16 = 6, kF32 = 7, kBF16 = 9 };

class NcclLibrary {
 public:
  /// The first of these files that is found.
  explicit NcclLibrary(const std::vector<std::string>& names = usual_names());
  static std::vector<std::string> usual_names();
  /// What missing() would say, without keeping the library: it is closed again. A torch that a
  /// user's class imports later brings an NCCL of its own, which the loader would not open beside
  /// another one of the same name.
  static std::string missing_on_this_machine(const std::vector<std::string>& names = usual_names());
  NcclLibrary(const NcclLibrary&) = delete;
  NcclLibrary& operator=(const NcclLibrary&) = delete;

  /// "NCCL not found", or which of its functions is; empty when it can be used.
  const std::string& missing() const { return missing_; }

  /// Bytes that rank 0 makes and all ranks of a group join with. Errors: kInternal, in NCCL's
  /// words.
  std::string make_id() const;

 private:
  friend class NcclGroup;
  struct Id {
    char bytes[128];
  };
  /// Errors: kInternal unless `code` is success, with what NCCL says last about `comm`.
  void check(int code, const char* call, void* comm = nullptr) const;

  DynamicLibrary library_;
  std::string missing_;
  int (*get_unique_id_)(Id*) = nullptr;
  int (*init_rank_)(void** comm, int size, Id id, int rank) = nullptr;
  int (*abort_)(void* comm) = nullptr;
  int (*group_start_)() = nullptr;
  int (*group_end_)() = nullptr;
  int (*all_gather_)(const void*, void*, std::size_t, int type, void* comm, void* stream) = nullptr;
  int (*reduce_scatter_)(const void*, void*, std::size_t, int type, int operation, void* comm,
                         void* stream) = nullptr;
  int (*all_reduce_)(const void*, void*, std::size_t, int type, int operation, void* comm,
                     void* stream) = nullptr;
  int (*send_)(const void*, std::size_t, int type, int peer, void* comm, void* stream) = nullptr;
  int (*receive_)(void*, std::size_t, int type, int peer, void* comm, void* stream) = nullptr;
  const char* (*error_text_)(int) = nullptr;
  const char* (*last_error_)(void* comm) = nullptr;  // null before NCCL 2.13
};

/// One rank of a group. Once it has joined, all calls queue on `stream` and may be captured in a
/// graph. Errors: kInternal, in NCCL's words.
class NcclGroup {
 public:
  /// Begins to join, on a thread of its own: NCCL waits there for all ranks, and comes back neither
  /// when one of them never calls nor when one has failed. `library` must outlive it.
  NcclGroup(const NcclLibrary& library, const std::string& id, int rank, int size);
  /// Does not wait for ranks that may be gone, nor for a thread that waits for them.
  ~NcclGroup() { abort(); }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// Whether all ranks are in the group; waits up to `wait_ms` for them. Nothing else may be called
  /// before it was true. Errors: kInternal where this rank could not join.
  bool has_joined(int wait_ms);

  /// Ends what is queued without waiting for other ranks. The group is over then.
  void abort();

  /// Sends [bytes], receives [size, bytes].
  void all_gather(const void* send, void* receive, std::size_t bytes, void* stream) const;
  /// Sends and receives [size, bytes].
  void all_to_all(const void* send, void* receive, std::size_t bytes, void* stream) const;
  /// Sends [size, count], receives [count].
  void reduce_scatter(const void* send, void* receive, std::size_t count, NcclType type,
                      void* stream) const;
  void all_reduce(const void* send, void* receive, std::size_t count, NcclType type,
                  void* stream) const;

 private:
  struct Joining;

  const NcclLibrary& library_;
  int size_;
  std::shared_ptr<Joining> joining_;  // null once it is over
  void* comm_ = nullptr;
};

}  // namespace attnbench
