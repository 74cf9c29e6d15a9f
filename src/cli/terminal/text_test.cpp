#include "cli/terminal/text.h"

#include <doctest/doctest.h>

#include <regex>

namespace attnbench {
namespace {

TEST_CASE("hanging text stays right of its column and left of the end") {
  const std::string text = "one two three four five six seven";
  CHECK(hang(text, 10, 34, 10) == "one two three four five\n          six seven");
  CHECK(hang(text, 10, 100, 10) == text);
  CHECK(hang(text, 10, 29, 10) == text);  // fewer than 20 columns are no help
  CHECK(hang("", 10, 80, 10).empty());
}

TEST_CASE("a word that the shell would take apart is quoted") {
  CHECK(shell_quote("scenarios/smoke.yaml") == "scenarios/smoke.yaml");
  CHECK(shell_quote("attention.head_size=64") == "attention.head_size=64");
  CHECK(shell_quote("^a$") == "'^a$'");
  CHECK(shell_quote("it's") == "'it'\\''s'");
  CHECK(shell_quote("a b") == "'a b'");
  CHECK(shell_quote("").size() == 2);
}

TEST_CASE("an escaped id matches itself and nothing near it") {
  const std::string id = "s/60q1s4k,attention.sinks=[1,2]{x}(y)#2|^$*+?\\/FLASH_ATTN";
  const std::regex expression(exact_regex(id));
  CHECK(std::regex_search(id, expression));
  CHECK_FALSE(std::regex_search("s/60q1s4k,attention+sinks=[1,2]", expression));
  CHECK_FALSE(std::regex_search("aXb", std::regex(exact_regex("a.b"))));
}

TEST_CASE("the nearest name is the likely typing error, and there may be none") {
  const std::vector<std::string> names = {"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"};
  CHECK(nearest_name("FLASH_ATN", names) == "FLASH_ATTN");
  CHECK(nearest_name("flash_attn", names) == "FLASH_ATTN");
  CHECK(nearest_name("TRITON", names) == "TRITON_ATTN");
  CHECK(nearest_name("zzz", names).empty());
  CHECK(nearest_name("rnu", {"gate", "run", "diff"}) == "run");
  CHECK(did_you_mean("zzz", names).empty());
  CHECK(did_you_mean("FLASH_ATTM", names) == "; did you mean 'FLASH_ATTN'?");
}

TEST_CASE("a long id keeps both ends") {
  CHECK(cut_middle("abcdefghij", 10) == "abcdefghij");
  CHECK(cut_middle("abcdefghijk", 10) == "abcd...ijk");
  CHECK(cut_middle("abcdefghijk", 2) == "ab");
}

TEST_CASE("numbers are shown with their units") {
  CHECK(format_elapsed(59.9) == "59s");
  CHECK(format_elapsed(65) == "1m05s");
  CHECK(format_bytes(100) == "100 B");
  CHECK(format_bytes(1536) == "1.50 KiB");
  CHECK(format_si(1234567, "FLOP") == "1.23 MFLOP");
  CHECK(format_si(12, "B") == "12 B");
}

}  // namespace
}  // namespace attnbench
