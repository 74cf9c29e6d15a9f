#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "report/reporter.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStdout = "-";

[[noreturn]] void fail_io(const std::string& path, const std::string& why) {
  fail(ErrorKind::kIo, "cannot write '{}': {}", path, why);
}
std::string last_error() { return std::strerror(errno); }

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  /// Whether closing succeeded; some file systems report a full disk only here.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

/// A new file beside its target, removed again unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const fs::path& target)
      : path_(temporary_name(target)),
        descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)),
        exists_(descriptor_.get() >= 0) {}
  ~TemporaryFile() {
    if (exists_) ::unlink(path_.c_str());
  }
  FileDescriptor& descriptor() { return descriptor_; }
  bool rename_to(const fs::path& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0) return false;
    exists_ = false;
    return true;
  }

 private:
  /// Unique among processes and calls.
  static fs::path temporary_name(const fs::path& target) {
    static std::atomic<int> counter{0};
    fs::path name = target;
    name += fmt::format(".{}-{}.tmp", ::getpid(), counter++);
    return name;
  }

  fs::path path_;
  FileDescriptor descriptor_;
  bool exists_;
};

void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_io(path, last_error());
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// Where the bytes go: the file behind a symbolic link, not the link.
fs::path resolve(const std::string& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  const fs::path target = fs::weakly_canonical(path, error);
  return error ? fs::path(path) : target;
}

bool is_special(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
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

void check_regular_target(const std::string& path, const fs::path& target) {
  std::error_code error;
  const fs::path parent = target.has_parent_path() ? target.parent_path() : fs::path(".");
  if (fs::is_directory(target, error)) fail_io(path, "it is a folder");
  if (!fs::exists(parent, error)) fail_io(path, "no folder '" + parent.string() + "'");
  if (!fs::is_directory(parent, error)) fail_io(path, "'" + parent.string() + "' is not a folder");
  if (is_marked_read_only(parent)) {
    fail_io(path, "the folder '" + parent.string() + "' is read-only");
  }
  if (fs::exists(target, error) &&
      (is_marked_read_only(target) || ::access(target.c_str(), W_OK) != 0)) {
    fail_io(path, "the file is read-only");
  }
}

void write_in_place(const std::string& path, const std::string& text) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) fail_io(path, last_error());
  write_all(file.get(), text, path);
  if (!file.close()) fail_io(path, last_error());
}

void replace_file(const std::string& path, const std::string& text) {
  const fs::path target = resolve(path);
  check_regular_target(path, target);
  TemporaryFile temporary(target);
  FileDescriptor& file = temporary.descriptor();
  if (file.get() < 0) fail_io(path, last_error());
  write_all(file.get(), text, path);
  if (::fsync(file.get()) != 0 && errno != EINVAL) fail_io(path, last_error());
  if (!file.close() || !temporary.rename_to(target)) fail_io(path, last_error());
}

}  // namespace

const std::vector<OutputFormat>& output_formats() {
  static const std::vector<OutputFormat> formats{{"json", write_json},
                                                 {"csv", write_csv},
                                                 {"markdown", write_markdown},
                                                 {"junit", write_junit},
                                                 {"google-benchmark", write_google_benchmark},
                                                 {"github-benchmark", write_github_benchmark},
                                                 {"vllm-csv", write_vllm_csv},
                                                 {"vllm-json", write_vllm_json}};
  return formats;
}

void write_output(const OutputFormat& format, const std::string& path, const RunInfo& run,
                  const std::vector<Result>& results) {
  if (path == kStdout) {
    format.write(std::cout, run, results);
    if (!std::cout.flush()) fail_io("standard output", "the stream is closed or full");
    return;
  }
  std::ostringstream text;
  format.write(text, run, results);
  write_text(path, text.str());
}

void write_text(const std::string& path, const std::string& text) {
  if (path == kStdout) {
    if (!(std::cout << text).flush()) fail_io("standard output", "the stream is closed or full");
  } else if (is_special(path)) {
    write_in_place(path, text);
  } else {
    replace_file(path, text);
  }
}

void check_writable(const std::string& path) {
  if (path == kStdout) return;
  if (path.empty()) fail(ErrorKind::kIo, "an output path is empty");
  if (is_special(path)) {
    if (::access(path.c_str(), W_OK) != 0) fail_io(path, last_error());
    return;
  }
  const fs::path target = resolve(path);
  check_regular_target(path, target);
  TemporaryFile probe(target);
  if (probe.descriptor().get() < 0) fail_io(path, last_error());
}

}  // namespace attnbench
