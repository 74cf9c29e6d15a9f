#include "inputs/files/encoder_scale_file.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/error.h"
#include "core/test_folder.h"

namespace attnbench {
namespace fs = std::filesystem;
namespace {

/// "E-VALUE: ...", or "" for text that is accepted.
std::string complaint_about(const std::string& text) {
  try {
    parse_mm_scales(text, "s.json");
  } catch (const Error& error) {
    return error.full_message();
  }
  return "";
}

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.rfind(prefix, 0) == 0;
}

}  // namespace

TEST_CASE("short keys, long keys and numbers in strings are read") {
  const MmScaleFile file = parse_mm_scales(
      R"({"a": {"q": 0.5, "k": 1, "v": 2.25}, "b": {"q_scale": "0.125", "k_scale": " 2e-3 ", "v": 3}})",
      "s");
  REQUIRE(file.layers.size() == 2);
  CHECK(file.find("a")->q == 0.5);
  CHECK(file.find("a")->k == 1.0);
  CHECK(file.find("a")->v == 2.25);
  CHECK(file.find("b")->q == 0.125);
  CHECK(file.find("b")->k == 2e-3);
  CHECK(file.find("b")->v == 3.0);
  CHECK(file.find("c") == nullptr);
  CHECK(file.notices.empty());
}

TEST_CASE("a top-level object `layers` holds the entries, anything else of that name is an entry") {
  CHECK(parse_mm_scales(R"({"x": {"q":1,"k":1,"v":1}, "layers": {"a": {"q":1,"k":1,"v":1}}})", "s")
            .layers[0]
            .first == "a");
  const MmScaleFile file = parse_mm_scales(R"({"x": {"q":1,"k":1,"v":1}, "layers": 3})", "s");
  CHECK(file.layers.size() == 1);
  CHECK(file.notices.size() == 1);
}

TEST_CASE("the short key wins even as null, and incomplete entries are named") {
  const MmScaleFile file = parse_mm_scales(
      R"({"a": {"q": 0.5, "q_scale": 7, "k": 1, "v": 1}, "b": {"q": null, "q_scale": 7, "k": 1, "v": 1},
          "c": {"q": 1, "k": 1}, "d": [1], "e": {"q": -1, "v": 1}})",
      "s");
  CHECK(file.layers.size() == 1);
  CHECK(file.find("a")->q == 0.5);
  REQUIRE(file.notices.size() == 4);
  CHECK(file.notices[0].find("'b'") != std::string::npos);
  CHECK(file.notices[1].find("'c'") != std::string::npos);
  CHECK(file.notices[2].find("'d' is left out: it is not an object") != std::string::npos);
}

TEST_CASE("of a name that stands twice the last counts, and a notice says so") {
  const MmScaleFile file = parse_mm_scales(
      R"({"a": {"q":1,"k":1,"v":1}, "b": {"q":2,"k":2,"v":2,"\u0071":4}, "a": {"q":3,"k":3,"v":3}})",
      "s.json");
  REQUIRE(file.layers.size() == 2);
  CHECK(file.find("a")->q == 3);
  CHECK(file.find("b")->q == 4);
  CHECK(file.notices ==
        std::vector<std::string>{
            "FP8 scale file s.json: duplicate name 'q', in 'b': the last one counts",
            "FP8 scale file s.json: duplicate name 'a': the last one counts"});
}

TEST_CASE("names from a file cannot move the cursor") {
  const std::string complaint = complaint_about("{\"\\u001b[2Ja\\n\": {\"q\":0,\"k\":1,\"v\":1}}");
  CHECK(complaint.ends_with("for layer '\\x1b[2Ja\\n'"));
}

TEST_CASE("scales that are not positive are refused in upstream's words") {
  CHECK(complaint_about(R"({"l": {"q": 0, "k": 1e-5, "v": -2.5}})") ==
        "E-VALUE: FP8 scales must be positive, got q=0.0, k=1e-05, v=-2.5 for layer 'l'");
  CHECK(complaint_about(R"({"l": {"q": 1, "k": "-0", "v": 1}})") ==
        "E-VALUE: FP8 scales must be positive, got q=1.0, k=-0.0, v=1.0 for layer 'l'");
}

TEST_CASE("scales that are not finite, or not as float32, are refused") {
  for (const char* scale : {"NaN", "Infinity", "-Infinity", "\"nan\"", "\"inf\"", "1e300", "1e-60",
                            "1e999", "\"1e999\""}) {
    CAPTURE(scale);
    const std::string text = std::string(R"({"NaN l\"": {"q": 1, "k": )") + scale + R"(, "v": 1}})";
    CHECK(starts_with(complaint_about(text), "E-VALUE: "));
  }
}

TEST_CASE("what is not an object of numbers is a matter of format") {
  for (const char* text :
       {"", "{", "[]", "3", "\"a\"", R"({"l": {"q": [], "k": 1, "v": 1}})",
        R"({"l": {"q": "one", "k": 1, "v": 1}})", R"({"l": {"q": "", "k": 1, "v": 1}})"}) {
    CAPTURE(text);
    CHECK(starts_with(complaint_about(text), "E-FORMAT: "));
  }
}

TEST_CASE("a missing layer is named with those that there are") {
  const MmScaleFile file =
      parse_mm_scales(R"({"b": {"q":1,"k":1,"v":1}, "a": {"q":1,"k":1,"v":1}})", "s.json");
  CHECK(require_mm_scales(file, "a", "s.json").q == 1);
  try {
    require_mm_scales(file, "c", "s.json");
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.full_message() ==
          "E-VALUE: FP8 attention enabled but scales not found for layer 'c' in s.json. Available "
          "layers: ['b', 'a']");
  }
}

TEST_CASE("of very many layers some are named") {
  MmScaleFile file;
  for (int i = 0; i < 52; ++i) file.layers.push_back({"l" + std::to_string(i), {}});
  CHECK_THROWS_WITH_AS(require_mm_scales(file, "c", "s.json"),
                       doctest::Contains("'l49', ... 2 more]"), Error);
}

TEST_CASE("a path that is no regular file is not found") {
  const TestFolder folder;
  for (const fs::path& path : {folder.path(), folder / "missing.json"}) {
    try {
      read_mm_scales(path);
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.full_message() == "E-IO: FP8 scale file not found: " + path.string());
    }
  }
}

TEST_CASE("written files are flat, indented by two, in the order given, and read back") {
  const TestFolder folder;
  const fs::path path = folder / "scales.json";
  const double third = static_cast<double>(1.0f / 3) * 1.5;
  write_mm_scales(path, {{"blocks.10", {0.5, third, 1e-40}}, {"blocks.9", {1, 2, 3}}});
  CHECK(text_of(path) ==
        "{\n  \"blocks.10\": {\n    \"q\": 0.5,\n    \"k\": 0.5000000149011612,\n    \"v\": 1e-40\n"
        "  },\n  \"blocks.9\": {\n    \"q\": 1.0,\n    \"k\": 2.0,\n    \"v\": 3.0\n  }\n}");
  const MmScaleFile file = read_mm_scales(path);
  CHECK(file.find("blocks.10")->k == third);
  CHECK(folder.num_files() == 1);
}

TEST_CASE("a bad scale or a missing folder writes nothing") {
  const TestFolder folder;
  const fs::path path = folder / "scales.json";
  CHECK_THROWS_AS(write_mm_scales(path, {{"a", {1, 1, 0}}}), Error);
  CHECK_THROWS_AS(write_mm_scales(path, {{"a", {1, NAN, 1}}}), Error);
  CHECK_THROWS_AS(write_mm_scales(folder / "none/s.json", {{"a", {1, 1, 1}}}), Error);
  CHECK_THROWS_AS(write_mm_scales(folder.path(), {{"a", {1, 1, 1}}}), Error);
  CHECK(folder.num_files() == 0);
}

}  // namespace attnbench
