#include "inputs/files/kv_scale_file.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/test_folder.h"

namespace attnbench {
namespace fs = std::filesystem;
namespace {

std::string fault_of(const std::string& text) {
  try {
    parse_kv_scales(text, "s.json");
  } catch (const Error& error) {
    return error.full_message();
  }
  return "";
}

Problem problem_with(const fs::path& path) {
  Problem problem;
  problem.attention.num_heads = 4;
  problem.attention.num_kv_heads = 2;
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  problem.kv_cache.scale_file = path.string();
  return problem;
}

}  // namespace

TEST_CASE("a layer of the kv-cache form has numbers, or a list of one a head") {
  const KvScaleFile file = parse_kv_scales(
      R"({"a": {"k_scale": 0.5, "v_scale": [1, "0.25"], "q_scale": 2}, "b": {"k_scale": 1, "v_scale": 1}})",
      "s");
  CHECK_FALSE(file.is_legacy);
  REQUIRE(file.layers.size() == 2);
  CHECK(file.layers[0].second.k == std::vector<double>{0.5});
  CHECK(file.layers[0].second.v == std::vector<double>{1, 0.25});
  CHECK(file.layers[0].second.q == 2);
  CHECK(file.layers[1].second.q == 1);
  REQUIRE(file.notices.size() == 1);
  CHECK(file.notices[0].find("'b' has no q_scale") != std::string::npos);
}

TEST_CASE("what is no scale of a layer is named") {
  const KvScaleFile file = parse_kv_scales(
      R"({"note": "x", "layers": {"a": {"k_scale": 1, "v_scale": 1, "q_scale": 1, "qscale": 2}}})",
      "s");
  REQUIRE(file.notices.size() == 2);
  CHECK(file.notices[0] == "KV-cache scale file s: left out: 'note'");
  CHECK(file.notices[1] == "KV-cache scale file s: layer 'a': left out: 'qscale'");
}

TEST_CASE("the legacy form has one scale a layer, for keys and values") {
  const KvScaleFile file = parse_kv_scales(
      R"({"model_type": "llama", "kv_cache": {"dtype": "float8_e4m3fn",
          "scaling_factor": {"0": {"0": 0.5, "1": 0.25}}}})",
      "s");
  CHECK(file.is_legacy);
  REQUIRE(file.layers.size() == 2);
  CHECK(file.layers[1].first == "1");
  CHECK(file.layers[1].second.k == std::vector<double>{0.25});
  CHECK(file.layers[1].second.v == std::vector<double>{0.25});
}

TEST_CASE("scales of a cache that are not finite and positive are refused with their layer") {
  for (const char* scale : {"0", "-1", "NaN", "Infinity", "1e300", "1e-60", "\"nan\"", "[1, 0]"}) {
    CAPTURE(scale);
    const std::string found =
        fault_of(std::string(R"({"lay": {"v_scale": 1, "k_scale": )") + scale + "}}");
    CHECK(found.starts_with("E-VALUE: KV-cache scale file s.json: k_scale of layer 'lay': "));
    const std::string of_query =
        fault_of(std::string(R"({"lay": {"v_scale": 1, "k_scale": 1, "q_scale": )") +
                 (scale[0] == '[' ? "0" : scale) + "}}");
    CHECK(of_query.starts_with("E-VALUE: "));
    if (scale[0] == '[') continue;
    const std::string of_vllm = fault_of(
        std::string(R"({"kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": {"0": )") +
        scale + "}}}}");
    CHECK(of_vllm.starts_with("E-VALUE: "));
  }
  CHECK(fault_of("{}").starts_with("E-VALUE: "));
}

TEST_CASE("what is no scale file of a cache is a matter of format") {
  for (const char* text :
       {"", "[]", "{", R"({"a": 1})", R"({"a": {"k_scale": 1}})", R"({"a": {"v_scale": 1}})",
        R"({"a": {"k_scale": [], "v_scale": 1}})", R"({"a": {"k_scale": {}, "v_scale": 1}})",
        R"({"a": {"k_scale": [[1]], "v_scale": 1}})", R"({"a": {"k_scale": null, "v_scale": 1}})",
        R"({"kv_cache": 1})", R"({"kv_cache": {"dtype": "float8_e5m2"}})",
        R"({"kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": []}})",
        R"({"kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"1": {"0": 1}}}})"}) {
    CAPTURE(text);
    CHECK(fault_of(text).starts_with("E-FORMAT: "));
  }
  const std::string deep = std::string(R"({"a": {"k_scale": )") + std::string(100000, '[');
  CHECK(fault_of(deep + std::string(100000, ']') + "}}").starts_with("E-FORMAT: "));
}

TEST_CASE("a name that an object has twice is refused and named, with its place") {
  const std::string entry = R"({"k_scale": 1, "v_scale": 1})";
  CHECK(fault_of(R"({"a": )" + entry + R"(, "b": )" + entry + R"(, "a": )" + entry + "}") ==
        "E-FORMAT: KV-cache scale file s.json: duplicate name 'a'");
  CHECK(fault_of(R"({"layers": {"a": {"k_scale": 1, "k_scale": 2, "v_scale": 1}}})") ==
        "E-FORMAT: KV-cache scale file s.json: duplicate name 'k_scale', in 'layers', 'a'");
  CHECK(fault_of(R"({"a": {"k_scale": 1e999, "v_scale": 1}})")
            .starts_with("E-VALUE: KV-cache scale file s.json, in 'a', 'k_scale': "));
  CHECK(fault_of(R"({"a": )" + entry + R"(, "b": )" + entry + "}").empty());
}

TEST_CASE("a file of names without end is refused in time") {
  std::string text = "{";
  for (int i = 0; i < 400'000; ++i) text += "\"" + std::to_string(i) + "\": 0, ";
  CHECK(fault_of(text + "\"end\": 0}") ==
        "E-FORMAT: KV-cache scale file s.json: expected at most 50000 names");
  // So is one that is no JSON behind them.
  CHECK(fault_of(text) == "E-FORMAT: KV-cache scale file s.json: expected at most 50000 names");
  // So are as many in several objects.
  const std::string object = text.substr(0, text.find("\"10000\"")) + "\"end\": 0}";
  std::string objects = "{\"a\": " + object;
  for (const char* name : {"b", "c", "d", "e"}) {
    objects += ", \"" + std::string(name) + "\": " + object;
  }
  CHECK(fault_of(objects + "}") ==
        "E-FORMAT: KV-cache scale file s.json: expected at most 50000 names");
}

TEST_CASE("written scales of a cache read back, and the legacy form is vLLM's") {
  KvLayerScales scales;
  scales.k = {0.5, static_cast<double>(1.0f / 3)};
  scales.v = {0.125};
  scales.q = 3;
  const KvScaleFile file =
      parse_kv_scales(kv_scales_text({{"model.layers.0.self_attn", scales}}), "s");
  CHECK(file.layers[0].second.k == scales.k);
  CHECK(file.layers[0].second.v == scales.v);
  CHECK(file.layers[0].second.q == 3);
  CHECK(file.notices.empty());
  CHECK(legacy_kv_scales_text({0.5, 2}, "llama") ==
        "{\n  \"model_type\": \"llama\",\n  \"kv_cache\": {\n    \"dtype\": \"float8_e4m3fn\",\n"
        "    \"scaling_factor\": {\n      \"0\": {\n        \"0\": 0.5,\n        \"1\": 2.0\n      "
        "}\n"
        "    }\n  }\n}");
  scales.v = {0};
  CHECK_THROWS_AS(kv_scales_text({{"a", scales}}), Error);
  CHECK_THROWS_AS(legacy_kv_scales_text({1, -1}, "llama"), Error);
}

TEST_CASE("a problem takes the scales of the first layer in natural order") {
  const TestFolder folder;
  const fs::path file = folder.write("s.json",
                                     R"({"layers.10": {"k_scale": 9, "v_scale": 9, "q_scale": 9},
          "layers.9": {"k_scale": [0.5, 0.25], "v_scale": 2, "q_scale": 4}})");
  Problem problem = problem_with(file);
  const std::vector<std::string> notices = adopt_kv_scale_file(problem, {});
  CHECK(problem.kv_cache.k_scale == std::vector<double>{0.5, 0.25});
  CHECK(problem.kv_cache.v_scale == std::vector<double>{2});
  CHECK(problem.kv_cache.q_scale == 4);
  REQUIRE(notices.size() == 1);
  CHECK(notices[0].find("2 layers, layer 'layers.9' is used") != std::string::npos);
  Problem other = problem_with(file);
  other.attention.num_kv_heads = 3;
  CHECK_THROWS_WITH_AS(adopt_kv_scale_file(other, {}), doctest::Contains("num_kv_heads = 3"),
                       Error);
}

TEST_CASE("a scale that the scenario gives beside a file must be the file's, also the default") {
  const TestFolder folder;
  const fs::path file =
      folder.write("s.json", R"({"a": {"k_scale": [0.5, 0.25], "v_scale": 2, "q_scale": 4}})");
  const std::map<std::string, std::string> given = {{"kv_cache.k_scale", "c.yaml:3: "},
                                                    {"kv_cache.v_scale", "c.yaml:4: "},
                                                    {"kv_cache.q_scale", "c.yaml:5: "}};
  Problem problem = problem_with(file);
  CHECK_THROWS_WITH_AS(
      adopt_kv_scale_file(problem, given),
      doctest::Contains("c.yaml:3: kv_cache.k_scale: expected no number beside scale_file"), Error);
  adopt_kv_scale_file(problem, {});
  adopt_kv_scale_file(problem, given);  // as read back from a result: the same numbers
  CHECK(problem.kv_cache.q_scale == 4);
  problem.kv_cache.v_scale = {1};
  CHECK_THROWS_WITH_AS(adopt_kv_scale_file(problem, given),
                       doctest::Contains("c.yaml:4: kv_cache.v_scale"), Error);
}

}  // namespace attnbench
