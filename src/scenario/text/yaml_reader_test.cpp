#include "scenario/text/yaml_reader.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/error.h"

namespace attnbench {
namespace {

Value read(const std::string& text) {
  return read_yaml(text, std::make_shared<const std::string>("f.yaml"));
}

std::string yaml_error(const std::string& text) {
  try {
    read(text);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kFormat);
    return error.what();
  }
  return "no error";
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("values keep kind, order and line") {
  const Value root = read("b: 1\na:\n  - x\n  - 2.5\nc: {d: null, e: true}\n");
  REQUIRE(root.is_map());
  CHECK(root.entries[0].key == "b");
  CHECK(root.entries[0].value.integer == 1);
  CHECK(root.entries[1].key_mark.line == 2);
  CHECK(root.find("a")->items[1].number == 2.5);
  CHECK(root.find("a")->items[1].mark.line == 4);
  CHECK(root.find_path("c.d")->is_null());
  CHECK(root.find_path("c.e")->boolean);
  CHECK(root.find_path("c.e")->mark.line == 5);
  CHECK(*root.find_path("c.e")->mark.file == "f.yaml");
}

TEST_CASE("JSON reads the same, with tabs and without spaces") {
  const Value root = read("{\n\t\"a\":{\"b\":[1,2.0,\"3\",null,false]},\n\t\"c\":\"x\\/\\u00e9\"}");
  const Value& list = *root.find_path("a.b");
  CHECK(list.items[0].integer == 1);
  CHECK(list.items[1].number == 2.0);
  CHECK(list.items[2].is_string("3"));
  CHECK(list.items[3].is_null());
  CHECK(list.items[4].is_bool());
  CHECK(root.find("c")->text == "x/\xc3\xa9");
}

TEST_CASE("scalars follow the YAML 1.2 core schema") {
  const auto scalar = [](const std::string& text) { return read("a: " + text).entries[0].value; };
  CHECK(scalar("-12").integer == -12);
  CHECK(scalar("+7").integer == 7);
  CHECK(scalar("0x1F").integer == 31);
  CHECK(scalar("0o17").integer == 15);
  CHECK(scalar("9223372036854775807").integer == 9223372036854775807);
  CHECK(scalar("1e3").number == 1000.0);
  CHECK(scalar(".5").number == 0.5);
  CHECK(scalar("-1.").number == -1.0);
  CHECK(std::isinf(scalar("-.inf").number));
  CHECK(std::isnan(scalar(".nan").number));
  CHECK(scalar("~").is_null());
  CHECK(scalar("").is_null());
  for (const char* text :
       {"on", "yes", "010", "1_000", "2d", "0x", "0x-5", "1e", ".", "'12'", "+"}) {
    CAPTURE(text);
    CHECK(scalar(text).is_string());
  }
}

TEST_CASE("numbers outside their range are errors with key and line") {
  for (const char* text : {"1e999", "-1e999", "1000000000000000000000000000000", "1e-999"}) {
    const std::string message = yaml_error(std::string("x: 1\na:\n  b: ") + text + "\n");
    CAPTURE(message);
    CHECK(holds(message, "f.yaml:3: a.b: expected a number in range, found "));
    CHECK(holds(message, text));
  }
}

TEST_CASE("duplicate keys are found at every level") {
  CHECK(yaml_error("a: 1\nb: 2\na: 3\n") == "f.yaml:3: duplicate key 'a'");
  CHECK(yaml_error("a:\n  c: 1\n  c: 2\n") == "f.yaml:3: duplicate key 'c'");
  CHECK(yaml_error("{\"a\": 1,\n \"a\": 1}") == "f.yaml:2: duplicate key 'a'");
  CHECK(yaml_error("- {x: 1, x: 1}") == "f.yaml:1: duplicate key 'x'");
}

TEST_CASE("empty, binary and broken files are refused") {
  CHECK(yaml_error("") == "f.yaml:1: expected a scenario, found an empty file");
  CHECK(yaml_error("# only a comment\n") == "f.yaml:1: expected a scenario, found an empty file");
  CHECK(yaml_error("---\n") == "f.yaml:1: expected a scenario, found an empty file");
  CHECK(yaml_error(std::string("a: 1\n\0b", 7)) ==
        "f.yaml:2: expected a text file in UTF-8, found byte 0x00");
  CHECK(yaml_error("a: \xff\xfe") == "f.yaml:1: expected a text file in UTF-8, found byte 0xff");
  CHECK(yaml_error("a: \xed\xa0\x80") ==
        "f.yaml:1: expected a text file in UTF-8, found byte 0xed");
  CHECK(yaml_error("a: \xc0\xaf") == "f.yaml:1: expected a text file in UTF-8, found byte 0xc0");
  CHECK(yaml_error("\x7f"
                   "ELF") == "f.yaml:1: expected a text file in UTF-8, found byte 0x7f");
  CHECK(holds(yaml_error("a: [1, 2\nb: 3"), "f.yaml:"));
  CHECK(holds(yaml_error("a: 1\n  b: 2\n"), "f.yaml:2: expected YAML or JSON"));
}

TEST_CASE("what is no YAML is named in words of its own, at its line") {
  const auto found = [](const std::string& text) {
    const std::string error = yaml_error(text);
    const std::string_view expected = ": expected YAML or JSON, found: ";
    const std::size_t at = error.find(expected);
    return at == std::string::npos ? error
                                   : error.substr(0, at) + " " + error.substr(at + expected.size());
  };
  CHECK(found("a: [1, 2\n") == "f.yaml:2 a '[' that is never closed");
  CHECK(found("a: {b: 1\n") == "f.yaml:2 a '{' that is never closed");
  CHECK(found("{\"a\": 1,\n \"b\": {\"c\": \"}\"\n") == "f.yaml:2 a '{' that is never closed");
  CHECK(found("{\"a\": 1,\n \"b\": {\"c\": \"\\\"}\"}\n\n") ==
        "f.yaml:2 a '{' that is never closed");
  CHECK(found("{\"a\":\n [1, 2") == "f.yaml:2 a '[' that is never closed");
  CHECK(found("a: 1]\nb: ]\n") == "f.yaml:2 an unmatched ']' or '}'");
  CHECK(found("a:\n\tb: 1\n") == "f.yaml:2 a tab in the indentation; YAML takes only spaces there");
  CHECK(found("a:\n  b: 1\n c: 2\n") == "f.yaml:3 a line that is indented unlike those before it");
  CHECK(holds(found("a: b: 1\n"), "f.yaml:1 a ':' where none can be; check the indentation"));
  CHECK(found("a: \"\\q\"\n") == "f.yaml:1 an unknown escape sequence; single quotes keep a '\\'");
  CHECK(holds(found("a: @x\n"), "f.yaml:1 a character that begins no value"));
  CHECK(holds(found("a: 1\n- b\n"), "f.yaml:2 a "));
}

TEST_CASE("what scenarios do not need of YAML is refused by name") {
  CHECK(yaml_error("a: &x 1\nb: 2\n") ==
        "f.yaml:1: anchors and aliases are not allowed, found an anchor");
  CHECK(holds(yaml_error("a: &x [1]\nb: *x\n"), "f.yaml:1: anchors and aliases are not allowed"));
  CHECK(holds(yaml_error("a: !!int 3"), "f.yaml:1: tags are not allowed, found '"));
  CHECK(holds(yaml_error("a: !mine {b: 1}"), "f.yaml:1: tags are not allowed, found '"));
  CHECK(yaml_error("a:\n  <<: {b: 1}") == "f.yaml:2: merge keys are not allowed, found '<<'");
  CHECK(yaml_error("a: 1\n---\nb: 2\n") == "f.yaml:2: expected one document, found a second one");
  CHECK(yaml_error("? [a, b]\n: 1\n") == "f.yaml:1: expected text as key, found a list or mapping");
}

TEST_CASE("deep nesting is an error, not a crash") {
  CHECK(holds(yaml_error(std::string(10u << 20, '[')), "f.yaml:1: expected at most 64 nested"));
  CHECK(holds(yaml_error(std::string(10u << 20, '{')), "f.yaml:1: expected at most 64 nested"));
  std::string dashes, questions, hidden, indented;
  for (int i = 0; i < 100000; ++i) {
    dashes += "- ";
    questions += "? ";
  }
  for (int i = 0; i < 3000; ++i) hidden += "[ \"]\" , ";
  for (std::size_t i = 0; i < 200; ++i) indented += std::string(i, ' ') + "a:\n";
  CHECK(holds(yaml_error(dashes), "expected at most 64 nested"));
  CHECK(holds(yaml_error(questions), "f.yaml:1: "));
  CHECK(holds(yaml_error(hidden), "expected at most 64 nested"));
  CHECK(yaml_error(indented) == "f.yaml:65: expected at most 64 nested levels, found more");
  CHECK(holds(yaml_error(std::string(17u << 20, 'a')), "expected at most 16777216 bytes"));
}

TEST_CASE("brackets in quotes and comments do not count as nesting") {
  const std::string brackets(100, '[');
  CHECK(read("a: '" + brackets + "'  # " + brackets + "\nb: \"\\\"" + brackets + "\"\n")
            .find("a")
            ->text == brackets);
}

}  // namespace
}  // namespace attnbench
