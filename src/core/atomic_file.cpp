#include "core/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "core/error.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

/// A new file beside its target, removed again unless it was published.
class TemporaryFile {
 public:
  explicit TemporaryFile(const fs::path& target) : target_(target), path_(temporary_name(target)) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) fail_io();
    exists_ = true;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (fd_ >= 0) ::close(fd_);
    if (exists_) ::unlink(path_.c_str());
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail_io();
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

  void publish(Existing existing) {
    // Why close is checked: some file systems report a full disk only there.
    if (::fsync(fd_) != 0 || ::close(std::exchange(fd_, -1)) != 0) fail_io();
    if (existing == Existing::kReplace) {
      if (::rename(path_.c_str(), target_.c_str()) != 0) fail_io();
      exists_ = false;
    } else {
      // Why not a test and a rename: a file that comes to exist between them would be lost.
      if (::link(path_.c_str(), target_.c_str()) != 0) fail_io();
    }
    sync_folder();
  }

 private:
  /// Unique among processes and calls.
  static fs::path temporary_name(const fs::path& target) {
    static std::atomic<int> counter{0};
    fs::path name = target;
    name += fmt::format(".tmp-{}-{}", ::getpid(), counter++);
    return name;
  }

  [[noreturn]] void fail_io() const {
    fail(ErrorKind::kIo, "cannot write '{}': {}", target_.string(), std::strerror(errno));
  }

  /// The new name itself is on disk only then. Not every file system can; the file is whole anyway.
  void sync_folder() const {
    const fs::path folder = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    ::fsync(fd);
    ::close(fd);
  }

  fs::path target_;
  fs::path path_;
  int fd_ = -1;
  bool exists_ = false;
};

/// Where a file of this name lives: behind a link, what it points to. What is there and no regular
/// file (a device, a pipe, a folder) must not be replaced by one.
fs::path regular_target(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail(ErrorKind::kIo, "cannot write '{}': it is not a regular file", path.string());
  }
  return fs::is_symlink(path, error) ? fs::weakly_canonical(path) : path;
}

}  // namespace

void write_file_atomically(const fs::path& path,
                           const std::vector<std::span<const std::byte>>& parts,
                           Existing existing) {
  TemporaryFile file(regular_target(path));
  for (const std::span<const std::byte> part : parts) file.write(part);
  file.publish(existing);
}

void write_file_atomically(const fs::path& path, std::string_view text, Existing existing) {
  write_file_atomically(path, {std::as_bytes(std::span(text))}, existing);
}

}  // namespace attnbench
