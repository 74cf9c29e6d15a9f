#include "scenario/text/files.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "scenario/text/yaml_reader.h"

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

namespace {

bool is_continuation(std::uint8_t byte) { return (byte & 0xC0) == 0x80; }

/// Length of the UTF-8 character at `at`, or 0 when it is malformed, overlong or a surrogate.
std::size_t utf8_length(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return at + i < text.size() ? static_cast<std::uint8_t>(text[at + i]) : std::uint8_t{0};
  };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return is_continuation(byte(1)) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (!is_continuation(byte(1)) || !is_continuation(byte(2))) return 0;
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) > 0x9F;
    return overlong || surrogate ? 0 : 3;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (!is_continuation(byte(1)) || !is_continuation(byte(2)) || !is_continuation(byte(3))) {
      return 0;
    }
    const bool overlong = first == 0xF0 && byte(1) < 0x90;
    const bool too_large = first == 0xF4 && byte(1) > 0x8F;
    return overlong || too_large ? 0 : 4;
  }
  return 0;
}

void check_characters(const std::string& text, const std::string& file) {
  int line = 1;
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<std::uint8_t>(text[at]);
    const bool control =
        (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 127;
    const std::size_t length = control ? 0 : utf8_length(text, at);
    if (length == 0) {
      fail(ErrorKind::kFormat, "{}:{}: expected a text file in UTF-8, found byte 0x{:02x}", file,
           line, byte);
    }
    line += byte == '\n';
    at += length;
  }
}

/// Brackets are counted wherever they stand outside quotes and comments. This is rougher than a
/// parser (a plain "it's" does not open a quote, a block text counts), and errs only for texts with
/// kMaxNesting unclosed brackets.
class NestingGuard {
 public:
  explicit NestingGuard(const std::string& file) : file_(file) {}

  void feed(char c) {
    if (c == '\n') ++line_;
    if (state_ == State::kPlain) {
      feed_plain(c);
    } else if (state_ == State::kDoubleQuoted && c == '\\' && !escaped_) {
      escaped_ = true;
      return;
    } else if (!escaped_ && closes(c)) {
      state_ = State::kPlain;
    }
    escaped_ = false;
    previous_ = c;
  }

 private:
  enum class State { kPlain, kSingleQuoted, kDoubleQuoted, kComment };

  bool closes(char c) const {
    switch (state_) {
      case State::kSingleQuoted:
        return c == '\'';
      case State::kDoubleQuoted:
        return c == '"';
      case State::kComment:
        return c == '\n';
      case State::kPlain:
        return false;
    }
    return false;
  }

  void feed_plain(char c) {
    const bool at_start = std::string_view(" \t\r\n[{,:-?").find(previous_) != std::string::npos;
    if (c == '[' || c == '{') {
      if (++depth_ > kMaxNesting) {
        fail(ErrorKind::kFormat, "{}:{}: expected at most {} nested brackets, found more", file_,
             line_, kMaxNesting);
      }
    } else if (c == ']' || c == '}') {
      depth_ = std::max(0, depth_ - 1);
    } else if (at_start && c == '"') {
      state_ = State::kDoubleQuoted;
    } else if (at_start && c == '\'') {
      state_ = State::kSingleQuoted;
    } else if (at_start && c == '#') {
      state_ = State::kComment;
    }
  }

  const std::string& file_;
  State state_ = State::kPlain;
  bool escaped_ = false;
  char previous_ = '\n';
  int depth_ = 0;
  int line_ = 1;
};

}  // namespace

void check_text(const std::string& text, const std::string& file) {
  if (text.size() > kMaxDocumentBytes) {
    fail(ErrorKind::kFormat, "{}:1: expected at most {} bytes, found {}", file, kMaxDocumentBytes,
         text.size());
  }
  check_characters(text, file);
  NestingGuard guard(file);
  for (char c : text) guard.feed(c);
}

}  // namespace attnbench
