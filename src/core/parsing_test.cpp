#include "core/parsing.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace attnbench {

using Groups = Pattern::Groups;

TEST_CASE("a pattern matches a whole text or a place in it, and tells its groups") {
  const Pattern pattern("([a-z]+)(?::(\\d))?");
  CHECK(pattern.match("cuda:1") == Groups{"cuda:1", "cuda", "1"});
  CHECK(pattern.match("cuda") == Groups{"cuda", "cuda", ""});
  CHECK(pattern.match("cuda:1!").empty());
  CHECK(pattern.search("--cuda:1!") == Groups{"cuda:1", "cuda", "1"});
  CHECK(pattern.search("--").empty());
  CHECK(pattern.is_in("--cuda"));
  CHECK_FALSE(pattern.is_in("--"));
}

TEST_CASE("a pattern is found in every place") {
  const Pattern line("(?:^|\n)(\\w+)");
  const std::vector<Groups> all = line.search_all("one two\nthree");
  REQUIRE(all.size() == 2);
  CHECK(all[0] == Groups{"one", "one"});
  CHECK(all[1] == Groups{"\nthree", "three"});
  CHECK(line.search_all(" ").empty());
}

TEST_CASE("a copy of a pattern is the same pattern") {
  Pattern pattern("a");
  const Pattern copy = pattern;
  pattern = Pattern("b");
  CHECK(copy.is_in("a"));
  CHECK(pattern.is_in("b"));
}

TEST_CASE("no regular expression is no pattern") {
  CHECK_THROWS_AS(Pattern("("), std::runtime_error);
}

TEST_CASE("JSON is read in order or by name; what is none is discarded") {
  const std::string text = R"({"b": 1, "a": [null]})";
  CHECK(parse_json<nlohmann::ordered_json>(text).dump() == R"({"b":1,"a":[null]})");
  CHECK(parse_json<nlohmann::json>(text).dump() == R"({"a":[null],"b":1})");
  CHECK(parse_json<nlohmann::json>(text + "}").is_discarded());
  CHECK(parse_json<nlohmann::ordered_json>("").is_discarded());
}

}  // namespace attnbench
