// Who compiles a kernel that several threads or processes want at once, where they share a cache
// folder: one of them, and the others wait for its entry.
//
// A claim is a lock of a file beside the entries (flock), so that the system takes it back from
// whoever ends or is killed. It orders work and protects nothing: entries appear whole without it
// (disk_cache.h), and whoever waits in vain compiles the kernel as well. So a folder whose file
// system has no locks costs time at most.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace attnbench {

class KernelClaim {
 public:
  enum class State {
    kHeld,  // ours until this object is gone
    kBusy,  // another's
    kNone,  // there are no claims in this folder: it cannot be written, or not be locked
  };

  /// Asks once. `folder` is made where it is not there, and removed again if it stays empty.
  KernelClaim(const std::filesystem::path& folder, const std::string& key);
  ~KernelClaim();
  KernelClaim(const KernelClaim&) = delete;
  KernelClaim& operator=(const KernelClaim&) = delete;

  State state() const { return state_; }
  /// Asks again while another has it, for up to `longest`. Returns early where the other has been
  /// stopped (SIGSTOP), which may be for any time.
  void wait(std::chrono::milliseconds longest);

 private:
  void ask();
  bool is_holder_stopped() const;

  std::filesystem::path path_;
  bool made_folder_ = false;
  int file_ = -1;
  State state_ = State::kNone;
};

}  // namespace attnbench
