#include "core/system/printable.h"

#include <doctest/doctest.h>

namespace attnbench {

TEST_CASE("control characters are shown and not sent") {
  CHECK(printable("a\x1b[31mb") == "a\\x1b[31mb");
  CHECK(printable("a\nb\rc\td\x7f") == "a\\nb\\rc\\td\\x7f");
  CHECK(printable(std::string_view("\0", 1)) == "\\x00");
  CHECK(printable("\xC2\x9B"
                  "2J") == "\\u009b2J");  // CSI in one character
  CHECK(printable("\xE2\x80\xAEtxt") == "\\u202etxt");
  CHECK(printable("\xE2\x80\xA8\xE2\x81\xA6\xD8\x9C") == "\\u2028\\u2066\\u061c");
}

TEST_CASE("text of any language stays, bytes that are no text become U+FFFD") {
  const std::string text = "layers.0 \xC3\xA9 \xE2\x82\xAC \xE4\xB8\xAD \xF0\x9F\x98\x80 \\x1b";
  CHECK(printable(text) == text);
  CHECK(printable(printable("\x1b\xFF")) == printable("\x1b\xFF"));
  CHECK(printable("a\xC3(\xED\xA0\x80") == "a\xEF\xBF\xBD(\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_CASE("of several lines, line feeds and tabs stay") {
  CHECK(printable_lines("a\n\tb\r\x1b") == "a\n\tb\\r\\x1b");
}

TEST_CASE("long text is cut between characters") {
  CHECK(shown("abc", 3) == "abc");
  CHECK(shown("abcd", 3) == "abc...");
  CHECK(shown("ab\xE2\x82\xAC"
              "d",
              4) == "ab...");
  CHECK(shown(std::string(300, 'x')) == std::string(200, 'x') + "...");
  CHECK(shown(std::string(9, '\x80'), 4) == "...");
}

TEST_CASE("alternatives are listed with an or before the last") {
  CHECK(either_of({}).empty());
  CHECK(either_of({"a"}) == "a");
  CHECK(either_of({"a", "b"}) == "a or b");
  CHECK(either_of({"a", "b", "c"}) == "a, b or c");
}

}  // namespace attnbench
