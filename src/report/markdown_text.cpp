#include "report/markdown_text.h"

namespace attnbench {

std::string markdown_cell(const std::string& text) {
  std::string result;
  for (const char character : text) {
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
