#include "report/formats/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/system/atomic_file.h"

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

void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_io(path, last_error());
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

bool is_special(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

void write_in_place(const std::string& path, const std::string& text) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) fail_io(path, last_error());
  write_all(file.get(), text, path);
  if (!file.close()) fail_io(path, last_error());
}

}  // namespace

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
    write_file_atomically(path, text);
  }
}

void check_writable(const std::string& path) {
  if (path == kStdout) return;
  if (path.empty()) fail(ErrorKind::kIo, "an output path is empty");
  if (is_special(path)) {
    if (::access(path.c_str(), W_OK) != 0) fail_io(path, last_error());
    return;
  }
  check_replaceable(path);
}

}  // namespace attnbench
