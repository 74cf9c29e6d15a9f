#include "report/markdown_text.h"

#include "core/system/printable.h"

namespace attnbench {

std::string markdown_cell(const std::string& text) {
  std::string result;
  for (const char character : printable_lines(text)) {
    switch (character) {
      case '|':
        result += "\\|";
        break;
      case '\\':
        result += "\\\\";
        break;
      case '<':
        result += "&lt;";
        break;
      case '\r':
      case '\n':
        result += ' ';
        break;
      default:
        result += character;
    }
  }
  return result;
}

}  // namespace attnbench
