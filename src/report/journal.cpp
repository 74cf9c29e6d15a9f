#include "report/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/result/write_json.h"
#include "report/formats/json.h"
#include "report/formats/output_file.h"

namespace attnbench {
namespace {

bool is_taken(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool taken = ::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  return taken;
}

std::string beginning(const RunInfo& run, const std::vector<Result>& results) {
  std::string text = result_file_head(run);
  text.insert(1, "\"journal\":1,");
  text += "\n";
  for (const Result& result : results) text += result_to_json(result) + "\n";
  return text;
}

}  // namespace

Journal::Journal(const std::string& path, const RunInfo& run, const std::vector<Result>& results)
    : path_(is_taken(path) ? fmt::format("{}.{}", path, ::getpid()) : path) {
  write_text(path_, beginning(run, results));
  file_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file_ < 0) fail(ErrorKind::kIo, "cannot write '{}': {}", path_, std::strerror(errno));
  ::flock(file_, LOCK_EX | LOCK_NB);
}

Journal::~Journal() {
  if (file_ >= 0) ::close(file_);
}

std::string Journal::add(const Result& result) {
  if (file_ < 0) return "";
  const std::string line = result_to_json(result) + "\n";
  const off_t end = ::lseek(file_, 0, SEEK_END);
  const ssize_t written = ::write(file_, line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return "";
  const std::string why = written < 0 ? std::strerror(errno) : "the disk is full";
  // What was written of the line goes again: it must not run into a later one.
  if (::ftruncate(file_, end) != 0) errno = 0;
  ::close(file_);
  file_ = -1;
  return fmt::format("cannot write '{}': {}; it holds the results until here", path_, why);
}

void Journal::remove() {
  ::unlink(path_.c_str());
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

}  // namespace attnbench
