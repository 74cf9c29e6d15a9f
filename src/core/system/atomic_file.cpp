// Files that appear whole: write to a temporary name beside the target, sync, rename, sync the
// folder. The temporary file lies in the target's folder because a rename is atomic only within one
// file system. Errors carry the name that the user gave, not that of the temporary file.
#include "core/system/atomic_file.h"

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

[[noreturn]] void fail_io(const fs::path& path, const std::string& why) {
  fail(ErrorKind::kIo, "cannot write '{}': {}", path.string(), why);
}

/// Where the bytes go: the file behind symbolic links, not a link.
fs::path resolve(const fs::path& path) {
  fs::path target = link_target(path);
  std::error_code error;
  if (fs::is_symlink(target, error)) fail_io(path, std::strerror(ELOOP));
  return target;
}

/// Why: the superuser passes every access() test, but a file marked read-only was marked for a
/// reason, and a rename would replace it silently.
bool is_marked_read_only(const fs::path& path) {
  std::error_code error;
  const fs::perms permissions = fs::status(path, error).permissions();
  const fs::perms any_write =
      fs::perms::owner_write | fs::perms::group_write | fs::perms::others_write;
  return !error && (permissions & any_write) == fs::perms::none;
}

void check_target(const fs::path& path, const fs::path& target, Existing existing) {
  std::error_code error;
  const fs::path parent = target.has_parent_path() ? target.parent_path() : fs::path(".");
  const fs::file_status status = fs::status(target, error);
  if (fs::is_directory(status)) fail_io(path, "it is a folder");
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail_io(path, "it is not a regular file");
  }
  if (!fs::exists(parent, error)) fail_io(path, "no folder '" + parent.string() + "'");
  if (!fs::is_directory(parent, error)) fail_io(path, "'" + parent.string() + "' is not a folder");
  if (is_marked_read_only(parent)) {
    fail_io(path, "the folder '" + parent.string() + "' is read-only");
  }
  if (existing == Existing::kReplace && fs::exists(status) &&
      (is_marked_read_only(target) || ::access(target.c_str(), W_OK) != 0)) {
    fail_io(path, "the file is read-only");
  }
}

}  // namespace

// Why link by link: the standard library stops before a link to a file that is not there yet.
fs::path link_target(const fs::path& path) {
  constexpr int kMaxLinks = 40;  // as Linux follows
  fs::path target = path;
  std::error_code error;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(target, error); ++i) {
    const fs::path next = fs::read_symlink(target, error);
    if (error) return target;
    target = target.parent_path() / next;
  }
  return target;
}

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

  void finish() {
    // Why close is checked: some file systems report a full disk only there.
    if (::fsync(fd_) != 0 && errno != EINVAL) fail_io();
    if (::close(std::exchange(fd_, -1)) != 0) fail_io();
  }

  /// After finish().
  void publish(Existing existing) {
    if (existing == Existing::kReplace) {
      if (::rename(path_.c_str(), target_.c_str()) != 0) fail_io();
      exists_ = false;
    } else {
      publish_new();
    }
    sync_folder();
  }

 private:
  /// Why not a test and a rename: a file that comes to exist between them would be lost.
  void publish_new() {
    if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) == 0) {
      exists_ = false;
      return;
    }
    // A file system or kernel that cannot do it gives a second name instead, and the first is
    // removed. Why not always so: not every file system has second names.
    const bool is_unknown = errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP;
    if (!is_unknown || ::link(path_.c_str(), target_.c_str()) != 0) fail_io();
  }

  /// Unique among processes and calls.
  static fs::path temporary_name(const fs::path& target) {
    static std::atomic<int> counter{0};
    fs::path name = target;
    name += fmt::format(".tmp-{}-{}", ::getpid(), counter++);
    return name;
  }

  [[noreturn]] void fail_io() const { attnbench::fail_io(target_, std::strerror(errno)); }

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

StagedFile::StagedFile(const fs::path& path) {
  check_target(path, path, Existing::kReplace);
  file_ = std::make_unique<TemporaryFile>(path);
}
StagedFile::StagedFile(StagedFile&&) noexcept = default;
StagedFile::~StagedFile() = default;
void StagedFile::write(std::span<const std::byte> bytes) { file_->write(bytes); }
void StagedFile::finish() { file_->finish(); }
void StagedFile::publish() { file_->publish(Existing::kReplace); }

void write_file_atomically(const fs::path& path,
                           const std::vector<std::span<const std::byte>>& parts,
                           Existing existing) {
  const fs::path target = resolve(path);
  check_target(path, target, existing);
  TemporaryFile file(target);
  for (const std::span<const std::byte> part : parts) file.write(part);
  file.finish();
  file.publish(existing);
}

void check_replaceable(const fs::path& path) {
  const fs::path target = resolve(path);
  check_target(path, target, Existing::kReplace);
  const TemporaryFile probe(target);
}

void write_file_atomically(const fs::path& path, std::string_view text, Existing existing) {
  write_file_atomically(path, {std::as_bytes(std::span(text))}, existing);
}

}  // namespace attnbench
