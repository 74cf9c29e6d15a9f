#include "scenario/text/files.h"

#include <cstring>
#include <fstream>
#include <sstream>

#include "core/error.h"

namespace attnbench {

std::string read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  if (!std::filesystem::exists(path, error)) {
    fail(ErrorKind::kIo, "{}: expected a readable file, found none", path.string());
  }
  if (!regular) fail(ErrorKind::kIo, "{}: expected a regular file", path.string());
  const auto size = std::filesystem::file_size(path, error);
  if (!error && size > max_bytes) {
    fail(ErrorKind::kFormat, "{}:1: expected at most {} bytes, found {}", path.string(), max_bytes,
         size);
  }
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream content;
  // Why: streaming an empty buffer sets failbit, which is no read error.
  if (stream && size > 0) content << stream.rdbuf();
  if (!stream || !content) {
    fail(ErrorKind::kIo, "{}: cannot read: {}", path.string(), std::strerror(errno));
  }
  return std::move(content).str();
}

std::filesystem::path resolve_path(const Value& text) {
  const std::filesystem::path path(text.text);
  if (path.is_absolute() || !text.mark.file || text.mark.line == 0) return path;
  return (std::filesystem::path(*text.mark.file).parent_path() / path).lexically_normal();
}

}  // namespace attnbench
