#include "report/formats/xml.h"

#include "report/format.h"

namespace attnbench {

std::string xml_escape(std::string_view text) {
  std::string result;
  for (const char character : sanitize_utf8(text)) {
    switch (character) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&apos;";
        break;
      case '\t':
        result += "&#9;";
        break;
      case '\n':
        result += "&#10;";
        break;
      case '\r':
        result += "&#13;";
        break;
      default: {
        const bool control = static_cast<unsigned char>(character) < 0x20;
        result += control ? std::string("\xEF\xBF\xBD") : std::string(1, character);
      }
    }
  }
  return result;
}

}  // namespace attnbench
