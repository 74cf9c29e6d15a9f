// Text for messages. Escaping works on code points and not on bytes, since C1 controls and the
// marks of writing direction are two and three bytes of UTF-8; invalid bytes are replaced one by
// one, so that a broken sequence cannot hide what follows it.
#include "core/system/printable.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>

namespace attnbench {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

/// Of valid UTF-8.
char32_t code_point(std::string_view bytes) {
  const auto lead = static_cast<unsigned char>(bytes[0]);
  if (bytes.size() == 1) return lead;
  char32_t value = lead & (0xFFu >> (bytes.size() + 1));
  for (const char byte : bytes.substr(1)) value = value << 6 | (static_cast<unsigned>(byte) & 0x3F);
  return value;
}

/// C0, DEL, C1; line and paragraph separators; marks, embeddings, overrides and isolates of the
/// direction of writing (Unicode's Bidi_Control).
bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0x61C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

std::string escaped(char32_t c) {
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  const auto value = static_cast<unsigned>(c);
  return c < 0x80 ? fmt::format("\\x{:02x}", value) : fmt::format("\\u{:04x}", value);
}

std::string with_escapes(std::string_view text, std::string_view kept) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = code_point_length(text);
    const std::string_view bytes = text.substr(0, std::max<std::size_t>(length, 1));
    text.remove_prefix(bytes.size());
    if (length == 0) {
      result += kReplacement;
    } else if (const char32_t c = code_point(bytes);
               is_control(c) && kept.find(bytes) == std::string_view::npos) {
      result += escaped(c);
    } else {
      result += bytes;
    }
  }
  return result;
}

}  // namespace

std::size_t code_point_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (!is_continuation(text[i])) return 0;
  }
  // Overlong forms, surrogates and values past U+10FFFF.
  if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) >= 0xA0) ||
      (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) >= 0x90)) {
    return 0;
  }
  return length;
}

std::string printable(std::string_view text) { return with_escapes(text, ""); }

std::string printable_lines(std::string_view text) { return with_escapes(text, "\n\t"); }

std::string shown(std::string_view text, std::size_t longest) {
  if (text.size() <= longest) return printable(text);
  // Not in the middle of a character.
  while (longest > 0 && is_continuation(text[longest])) --longest;
  return printable(text.substr(0, longest)) + "...";
}

std::string quoted_names(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 50;
  std::string result;
  for (std::size_t i = 0; i < std::min(kMost, names.size()); ++i) {
    result += fmt::format("{}'{}'", i == 0 ? "" : ", ", shown(names[i]));
  }
  if (names.size() > kMost) result += fmt::format(", ... {} more", names.size() - kMost);
  return result;
}

std::string either_of(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 < words.size() ? ", " : " or ";
    text += words[i];
  }
  return text;
}

std::string describe_wait_status(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return fmt::format("exit status {}", WEXITSTATUS(status));
}

}  // namespace attnbench
