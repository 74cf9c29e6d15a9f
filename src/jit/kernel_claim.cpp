// The file has the number of the process that holds the claim, for those who wait. It is removed
// with the claim; one that a killed process left behind is taken over. Whoever opened it before it
// was removed gets a claim beside that of the file's successor: then a kernel may be compiled
// twice, and either entry stays.
#include "jit/kernel_claim.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <fstream>
#include <system_error>
#include <thread>

namespace attnbench {
namespace {

constexpr std::chrono::milliseconds kPoll{5};

}  // namespace

KernelClaim::KernelClaim(const std::filesystem::path& folder, const std::string& key)
    : path_(folder / (".claim-" + key)) {
  ask();
}

KernelClaim::~KernelClaim() {
  std::error_code ignored;
  if (state_ == State::kHeld) std::filesystem::remove(path_, ignored);
  if (file_ >= 0) ::close(file_);
  // Only where nothing was put there.
  if (made_folder_) ::rmdir(path_.parent_path().c_str());
}

/// Opens the file anew each time: the one that another holds is removed when it is done.
void KernelClaim::ask() {
  if (file_ >= 0) ::close(file_);
  state_ = State::kNone;
  // Each time as well: whoever made it removes it where it stays empty.
  std::error_code ignored;
  made_folder_ |= std::filesystem::create_directories(path_.parent_path(), ignored);
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  // Another user's can still be locked.
  if (file_ < 0) file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) return;
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) state_ = State::kBusy;
    return;
  }
  state_ = State::kHeld;
  const std::string holder = std::to_string(getpid());
  const bool written =
      ::ftruncate(file_, 0) == 0 && ::pwrite(file_, holder.data(), holder.size(), 0) >= 0;
  static_cast<void>(written);  // without it others wait for a stopped holder too
}

void KernelClaim::wait(std::chrono::milliseconds longest) {
  const auto end = std::chrono::steady_clock::now() + longest;
  while (state_ == State::kBusy && std::chrono::steady_clock::now() < end) {
    if (is_holder_stopped()) return;
    std::this_thread::sleep_for(kPoll);
    ask();
  }
}

/// By the state that /proc gives, behind the name in brackets. Of a process that is not seen here
/// (of another machine or container) nothing is known.
bool KernelClaim::is_holder_stopped() const {
  std::array<char, 16> digits{};
  if (::pread(file_, digits.data(), digits.size() - 1, 0) <= 0) return false;
  if (std::isdigit(static_cast<unsigned char>(digits[0])) == 0) return false;
  std::ifstream file(std::string("/proc/") + digits.data() + "/stat");
  std::string text;
  if (!std::getline(file, text)) return false;
  const std::size_t name_end = text.rfind(") ");
  return name_end != std::string::npos && text[name_end + 2] == 'T';
}

}  // namespace attnbench
